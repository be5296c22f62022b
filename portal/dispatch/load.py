"""The rows as the scheduler's snapshot."""

from collections import defaultdict
from datetime import datetime

from portal.cluster.models import Node
from portal.jobs.lifecycle import ATTEMPT_FINAL, JOB_PENDING, JobState
from portal.jobs.models import Allocation, Attempt, Checkpoint, Job
from portal.quotas.models import Cohort, Queue, Quota
from scheduler import snapshot as seen


def snapshot_load(*, now: datetime) -> seen.Snapshot:
    """Everything that one pass sees, read in a handful of queries."""
    pending = list(Job.objects.select_related("queue").filter(state__in=[*JOB_PENDING, JobState.HELD]))
    return seen.Snapshot(
        now_s=now.timestamp(),
        policy=seen.Policy(victim_order=seen.VictimOrder.LEAST_LOST, max_preemptions_per_job=10, min_runtime_s=60),
        cohorts=_cohorts(),
        queues=_queues(),
        nodes=_nodes(),
        running=_running(),
        pending=tuple(_pending(job) for job in pending),
    )


def _limit(quota: Quota) -> seen.Limit:
    return seen.Limit(quota.nominal, quota.borrow_limit, quota.lend_limit)


def _cohorts() -> tuple[seen.Cohort, ...]:
    limits: dict[str, dict[str, seen.Limit]] = defaultdict(dict)
    for quota in Quota.objects.filter(cohort__isnull=False):
        limits[str(quota.cohort_id)][quota.gpu_type] = _limit(quota)
    return tuple(
        seen.Cohort(name=c.pk, parent=c.parent_id, weight=c.weight, quota=limits[c.pk]) for c in Cohort.objects.all()
    )


def _queues() -> tuple[seen.Queue, ...]:
    limits: dict[str, dict[str, seen.Limit]] = defaultdict(dict)
    for quota in Quota.objects.filter(queue__isnull=False):
        limits[str(quota.queue_id)][quota.gpu_type] = _limit(quota)
    return tuple(
        seen.Queue(
            name=q.name,
            cohort=q.cohort_id,
            weight=q.weight,
            quota=limits[q.pk],
            preemption=seen.PreemptionPolicy(
                within_queue=seen.WithinQueue(q.within_queue),
                reclaim_within_cohort=seen.Reclaim(q.reclaim_within_cohort),
                borrow_within_cohort=seen.Borrow(q.borrow_within_cohort),
            ),
        )
        for q in Queue.objects.all()
    )


def _nodes() -> tuple[seen.Node, ...]:
    return tuple(
        seen.Node(
            name=n.pk,
            gpu_type=n.gpu_type,
            num_gpus=n.num_gpus,
            labels=n.labels,
            state=seen.NodeState(n.state),
        )
        for n in Node.objects.all()
    )


def _running() -> tuple[seen.RunningJob, ...]:
    """Every attempt that holds GPUs, whatever its state: what it holds is not free."""
    placements: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for attempt_id, node in Allocation.objects.filter(until__isnull=True).values_list("attempt_id", "node_id"):
        placements[attempt_id][node] += 1
    rows = Attempt.objects.exclude(state__in=sorted(ATTEMPT_FINAL)).select_related("job__queue")
    saved = dict(
        Checkpoint.objects.filter(attempt__in=[r.pk for r in rows], state__in=("durable", "verified"))
        .order_by("written_at")
        .values_list("attempt_id", "written_at")
    )
    return tuple(
        seen.RunningJob(
            id=row.job_id,
            queue=row.job.queue.name,
            gpu_type=row.job.gpu_type,
            num_nodes=row.job.num_nodes,
            gpus_per_node=row.job.gpus_per_node,
            placement=dict(placements[row.pk]),
            priority=row.job.priority,
            submitted_s=row.job.submitted_at.timestamp(),
            started_s=row.created_at.timestamp(),
            time_limit_s=row.job.time_limit_s,
            last_checkpoint_s=saved[row.pk].timestamp() if row.pk in saved else None,
            evicting=bool(row.outcome),
        )
        for row in rows
    )


def _pending(job: Job) -> seen.PendingJob:
    return seen.PendingJob(
        id=job.pk,
        queue=job.queue.name,
        gpu_types=(job.gpu_type,),
        num_nodes=job.num_nodes,
        gpus_per_node=job.gpus_per_node,
        priority=job.priority,
        submitted_s=job.submitted_at.timestamp(),
        time_limit_s=job.time_limit_s,
        excluded_nodes=frozenset(job.excluded_nodes),
        hold=job.hold,
        not_before_s=job.not_before.timestamp() if job.not_before else None,
        held=bool((job.pending_reason or {}).get("code") == "waiting_for_preemption"),
    )
