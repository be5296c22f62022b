"""Carrying out a plan: each batch one transaction, behind the lease's fence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import structlog
from django.db import IntegrityError, transaction

from portal.dispatch.lease import lease_fence
from portal.dispatch.models import LaunchOrder
from portal.errors import PortalError
from portal.jobs.attempts import attempt_lock
from portal.jobs.lifecycle import JOB_PENDING, AttemptState
from portal.jobs.models import Attempt, Job
from portal.jobs.queries import time_text
from portal.jobs.services import attempt_stop
from portal.jobs.starts import Placed, attempts_start
from scheduler import Plan

log = structlog.get_logger(__name__)
# Small enough that other writers wait for milliseconds, large enough that commits do not dominate.
BATCH = 40


@dataclass
class Applied:
    """What a pass changed."""

    orders: list[int] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def plan_apply(*, plan: Plan, epoch: int, now: datetime, lease: timedelta, reasons: bool = True) -> Applied:
    """Start, preempt and explain as the plan says.

    A start that no longer fits (the job was cancelled, a node went away meanwhile) is skipped alone; the
    next pass sees why. ``LeaseLost`` ends it: the batch in which it happens is not written.
    """
    applied = Applied()
    for starts in _batches(plan.start, BATCH):
        with transaction.atomic():
            lease_fence(epoch=epoch, now=now, length=lease)
            _start([Placed(start.job, start.placement) for start in starts], now, applied)
    if plan.preempt:
        with transaction.atomic():
            lease_fence(epoch=epoch, now=now, length=lease)
            for victim in plan.preempt:
                _preempt(victim.job, victim.preemptor, now, applied)
    if reasons:
        _explain(plan, epoch, now, lease)
    return applied


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _start(starts: list[Placed], now: datetime, applied: Applied) -> None:
    """Start all of them; when one no longer fits, each by itself, and that one is skipped."""
    try:
        with transaction.atomic():
            attempts = attempts_start(starts=starts, now=now)
            orders = LaunchOrder.objects.bulk_create(
                LaunchOrder(attempt=a, epoch=a.epoch, created_at=now, next_try_at=now) for a in attempts
            )
    except (PortalError, IntegrityError) as error:
        if len(starts) > 1:
            for start in starts:
                _start([start], now, applied)
            return
        log.warning("start_skipped", job=starts[0].job_id, why=str(error))
        applied.skipped.append(starts[0].job_id)
        return
    applied.started += [start.job_id for start in starts]
    applied.orders += [order.pk for order in orders]


def _preempt(victim: str, preemptor: str, now: datetime, applied: Applied) -> None:
    row = Attempt.objects.filter(job_id=victim, outcome="", ended_at__isnull=True).first()
    if row is None:
        return
    attempt = attempt_lock(row.pk)
    cause = {
        "class": "preempted",
        "code": "preempted",
        "action": "requeue",
        "evidence": [f"its GPUs go to job {preemptor}"],
    }
    attempt_stop(attempt=attempt, outcome=AttemptState.PREEMPTED, cause=cause, now=now, save=True)
    applied.preempted.append(victim)


def _explain(plan: Plan, epoch: int, now: datetime, lease: timedelta) -> None:
    """Write each waiting job's reason where it differs from the one it has."""
    planned = {row.job: row.start_s for row in plan.planned}
    fresh = {row.job: (str(row.reason), dict(row.detail)) for row in plan.pending}
    for job_ids in _batches(sorted(fresh), 500):
        with transaction.atomic():
            lease_fence(epoch=epoch, now=now, length=lease)
            changed = []
            for job in Job.objects.filter(pk__in=job_ids, state__in=[*JOB_PENDING, "held"]).only(
                "pk", "pending_reason"
            ):
                code, detail = fresh[job.pk]
                old = job.pending_reason or {}
                new = {"code": code, "detail": detail, "planned_start_s": planned.get(job.pk)}
                if all(old.get(key) == value for key, value in new.items()):
                    continue
                since = old.get("since") if old.get("code") == code else time_text(now)
                job.pending_reason = {**new, "since": since, "checked_at": time_text(now)}
                changed.append(job)
            Job.objects.bulk_update(changed, ["pending_reason"], batch_size=200)
