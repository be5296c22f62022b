"""Comparing what should be with what is, for every attempt that holds GPUs. Level-triggered: no memory."""

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from portal.dispatch.models import LaunchOrder
from portal.jobs.attempts import attempt_lock
from portal.jobs.gang import gang_break
from portal.jobs.lifecycle import ATTEMPT_FINAL, AttemptAction, AttemptState
from portal.jobs.models import Attempt, Restart
from portal.jobs.queries import live_attempts
from portal.jobs.services import attempt_move, attempt_stop
from portal.usage.services import ledger_book

log = structlog.get_logger(__name__)
# A worker takes a flow run within seconds; after this the run is taken for lost (its worker died with it).
CLAIM_TIMEOUT = timedelta(seconds=45)
# What an agent needs beyond the grace to report that its ranks are gone.
GRACE_SLACK = timedelta(seconds=15)
BEFORE_RUNNING = (AttemptState.LAUNCHING, AttemptState.RENDEZVOUS)
GOING = (AttemptState.LAUNCHING, AttemptState.RENDEZVOUS, AttemptState.RUNNING)


def sweep(*, now: datetime) -> int:
    """Look at every live attempt once; the number of attempts that needed something."""
    acted = 0
    for attempt_id in list(live_attempts().values_list("pk", flat=True)):
        acted += attempt_sweep(attempt_id=attempt_id, now=now)
    return acted


@transaction.atomic
def attempt_sweep(*, attempt_id: str, now: datetime) -> bool:
    """Whether something had to be done about the attempt: at most one thing a pass."""
    attempt = attempt_lock(attempt_id)
    if attempt.state in ATTEMPT_FINAL:
        return False
    if _flow_is_gone(attempt, now):
        flow_replace(attempt=attempt, now=now)
        return True
    if _time_is_up(attempt, now):
        cause = _cause("time_limit", "time_limit", "fail_config", [f"time limit of {attempt.job.time_limit_s} s"])
        attempt_stop(attempt=attempt, outcome=AttemptState.FAILED, cause=cause, now=now, save=True)
        return True
    if _grace_is_over(attempt, now):
        attempt_move(attempt=attempt, action=AttemptAction.STOP, now=now, reason="grace is over")
        return True
    if attempt.state not in GOING:
        return False
    silent = _silent_node(attempt, now)
    if silent is not None:
        cause = _cause("node_lost", "agent_silent", "retry_exclude_node", [f"no report of node {silent}"])
        gang_break(attempt=attempt, cause={**cause, "root_node": silent}, nodes_alive=False, now=now)
        return True
    if _rendezvous_overdue(attempt, now):
        cause = _cause("rendezvous", "rendezvous_timeout", "retry_same", ["ranks did not get together in time"])
        gang_break(attempt=attempt, cause=cause, nodes_alive=False, now=now)
        return True
    return False


def _grace_is_over(attempt: Attempt, now: datetime) -> bool:
    if attempt.state != AttemptState.SAVING or attempt.stop_requested_at is None:
        return False
    return now > attempt.stop_requested_at + timedelta(seconds=attempt.grace_s) + GRACE_SLACK


def _cause(class_: str, code: str, action: str, evidence: list[str]) -> dict[str, Any]:
    return {"class": class_, "code": code, "action": action, "evidence": evidence}


def _flow_is_gone(attempt: Attempt, now: datetime) -> bool:
    """Its flow has been silent, or nobody has taken its flow run."""
    if attempt.flow_seen_at is not None:
        return now - attempt.flow_seen_at > timedelta(seconds=settings.ENVIRONMENT.flow_silent_s)
    order = LaunchOrder.objects.filter(attempt=attempt, epoch=attempt.epoch).first()
    if order is None:
        return True
    return order.sent_at is not None and now - order.sent_at > CLAIM_TIMEOUT


@transaction.atomic
def flow_replace(*, attempt: Attempt, now: datetime) -> None:
    """Ask for another flow run under the next epoch; training goes on meanwhile. The old flow is fenced."""
    log.warning("flow_replaced", attempt=attempt.pk, epoch=attempt.epoch)
    attempt.epoch += 1
    attempt.flow_holder, attempt.flow_seen_at, attempt.flow_run_id = "", None, ""
    attempt.save(update_fields=["epoch", "flow_holder", "flow_seen_at", "flow_run_id"])
    LaunchOrder.objects.create(attempt=attempt, epoch=attempt.epoch, created_at=now, next_try_at=now)


def _time_is_up(attempt: Attempt, now: datetime) -> bool:
    limit = attempt.job.time_limit_s
    if limit is None or attempt.outcome or attempt.running_at is None:
        return False
    return now - attempt.running_at > timedelta(seconds=limit)


def _silent_node(attempt: Attempt, now: datetime) -> str | None:
    """A node whose launched agent has not reported for too long, while its flow has been heard all along.

    After an outage of the portal nobody has been heard: flows are replaced first, and the time counts from
    the new epoch, so that agents can report before they are taken for lost.
    """
    limit = timedelta(seconds=settings.ENVIRONMENT.agent_lost_s)
    order = LaunchOrder.objects.filter(attempt=attempt, epoch=attempt.epoch).first()
    if order is None or now - order.created_at <= limit or not attempt.flow_holder:
        return None
    for part in attempt.nodes.filter(generation__gt=0):
        last = part.seen_at or part.launched_at
        if last is not None and now - last > limit:
            return str(part.node_id)
    return None


def _rendezvous_overdue(attempt: Attempt, now: datetime) -> bool:
    if attempt.state not in BEFORE_RUNNING:
        return False
    restart = Restart.objects.get(attempt=attempt, number=attempt.restart)
    return now - restart.began_at > timedelta(seconds=settings.ENVIRONMENT.rendezvous_timeout_s)


def books_close(*, now: datetime) -> int:
    """Close the ledger of attempts that ended, in case that no worker did; the number of attempts."""
    ended = Attempt.objects.filter(
        state__in=sorted(ATTEMPT_FINAL), ledger_closed=False, ended_at__lt=now - timedelta(seconds=2)
    )
    ids = list(ended.values_list("pk", flat=True)[:50])
    for attempt_id in ids:
        ledger_book(attempt_id=attempt_id, now=now)
    return len(ids)
