"""Giving waiting jobs their GPUs: attempts, allocations, quota and events of many starts in a dozen statements."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Count, F

from portal.cluster.models import Node, NodeState
from portal.events.models import Event
from portal.events.services import event_of
from portal.jobs.lifecycle import JobAction, JobState, next_job_state
from portal.jobs.models import Allocation, Attempt, AttemptNode, Job, Restart
from portal.jobs.services import JobMoved
from portal.quotas.models import Quota


@dataclass(frozen=True)
class Placed:
    """A job and its GPUs: how many of which node, in the order of the gang's workers."""

    job_id: str
    placement: Mapping[str, int]


def attempt_start(*, job: Job, placement: Mapping[str, int], now: datetime) -> Attempt:
    """The new attempt of one job, holding its GPUs."""
    attempt = attempts_start(starts=[Placed(job.pk, placement)], now=now)[0]
    job.refresh_from_db()
    return attempt


@transaction.atomic
def attempts_start(*, starts: Sequence[Placed], now: datetime) -> list[Attempt]:
    """The new attempts, holding their GPUs; state, allocation, quota and events are one transaction.

    All or none: ``JobMoved`` when one of the jobs no longer waits, or its nodes or quota have gone, and
    ``IntegrityError`` when somebody else took a GPU at this moment.
    """
    jobs = {job.pk: job for job in _jobs_locked([start.job_id for start in starts])}
    events = _jobs_admit([(jobs[s.job_id], s.placement) for s in starts if s.job_id in jobs], now)
    if len(jobs) < len(starts):
        gone = next(s.job_id for s in starts if s.job_id not in jobs)
        raise JobMoved(f"Job {gone} is not there any more.")
    numbers = dict(Attempt.objects.filter(job__in=list(jobs)).values_list("job_id").annotate(count=Count("id")))
    attempts = [
        Attempt(
            job=jobs[start.job_id],
            number=numbers.get(start.job_id, 0) + 1,
            state_since=now,
            created_at=now,
            max_step=jobs[start.job_id].max_step,
            grace_s=jobs[start.job_id].spec.get("grace_s", 30.0),
        )
        for start in starts
    ]
    Attempt.objects.bulk_create(attempts)
    rows = _allocations(list(zip(attempts, [start.placement for start in starts], strict=True)), now)
    Allocation.objects.bulk_create(rows)
    AttemptNode.objects.bulk_create(
        AttemptNode(attempt=attempt, node_id=name, node_rank=rank)
        for attempt, start in zip(attempts, starts, strict=True)
        for rank, name in enumerate(start.placement)
    )
    Restart.objects.bulk_create(
        Restart(attempt=attempt, number=0, began_at=now, max_step_before=attempt.max_step) for attempt in attempts
    )
    _quota_take(rows)
    events += [
        event_of(subject=a, verb="allocate", after=dict(s.placement), at=now, team_id=a.job.team_id)
        for a, s in zip(attempts, starts, strict=True)
    ]
    Event.objects.bulk_create(events)
    return attempts


def _jobs_locked(ids: Sequence[str]) -> list[Job]:
    # In the order of their ids: of two writers none waits for what the other one holds.
    return list(Job.objects.select_for_update().filter(pk__in=ids).order_by("pk"))


def _jobs_admit(jobs: Sequence[tuple[Job, Mapping[str, int]]], now: datetime) -> list[Event]:
    """The events of jobs that begin to start; ``next_job_state`` refuses one that does not wait."""
    events: list[Event] = []
    by_state: dict[JobState, list[str]] = {}
    for job, placement in jobs:
        old = JobState(job.state)
        new = next_job_state(old, JobAction.ADMIT)
        by_state.setdefault(old, []).append(job.pk)
        reason = ", ".join(placement)
        events.append(
            event_of(subject=job, verb=JobAction.ADMIT.value, before=old.value, after=new.value, reason=reason, at=now)
        )
        job.state = new
    for old, ids in by_state.items():
        values = {"state": JobState.STARTING, "state_since": now, "pending_reason": None}
        # The update names the state that we read: SQLite knows no row locks.
        if Job.objects.filter(pk__in=ids, state=old).update(**values) != len(ids):
            raise JobMoved("A job of this batch was changed by somebody else at this moment.")
    return events


def _allocations(placed: Sequence[tuple[Attempt, Mapping[str, int]]], now: datetime) -> list[Allocation]:
    """A row for each GPU, the lowest free numbers of each node first."""
    names = {name for _, placement in placed for name in placement}
    sizes = dict(Node.objects.filter(name__in=names, state=NodeState.READY).values_list("name", "num_gpus"))
    free = {name: list(range(sizes.get(name, 0) - 1, -1, -1)) for name in names}
    for name, index in Allocation.objects.filter(node__in=names, until__isnull=True).values_list(
        "node_id", "gpu_index"
    ):
        if index in free[name]:
            free[name].remove(index)
    rows: list[Allocation] = []
    for attempt, placement in placed:
        for name, count in placement.items():
            if len(free[name]) < count:
                raise JobMoved(f"Node {name} no longer has {count} free GPUs.")
            rows += [
                Allocation(attempt=attempt, node_id=name, gpu_index=free[name].pop(), since=now) for _ in range(count)
            ]
    return rows


def _quota_take(rows: Sequence[Allocation]) -> None:
    taken = Counter((row.attempt.job.queue_id, row.attempt.job.gpu_type) for row in rows)
    for (queue_id, gpu_type), count in sorted(taken.items()):
        if Quota.objects.filter(queue_id=queue_id, gpu_type=gpu_type).update(used=F("used") + count) != 1:
            raise JobMoved(f"Queue {queue_id} lost its quota for {gpu_type}.")
