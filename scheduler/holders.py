"""Jobs that hold GPUs, as the search for victims sees them."""

from dataclasses import dataclass, replace
from math import inf, isfinite

from scheduler.nodes import Pool
from scheduler.placement import Placement
from scheduler.quota import QuotaTree
from scheduler.shapes import Shape
from scheduler.snapshot import Policy, RunningJob, VictimOrder

# Victims go in this order: lower priority, then (by policy) least lost, newest, id.
Rank = tuple[float, float, float, str]


@dataclass(slots=True, eq=False)
class Holder:
    """A job that holds GPUs: one that runs, or one that a trial has put there."""

    id: str
    queue: int
    gpu_type: str
    size: int
    priority: float
    submitted_s: float
    started_s: float
    placement: Placement
    protected_until_s: float
    rank: Rank
    # None for a job that this pass has placed.
    job: RunningJob | None = None
    shape: Shape | None = None
    # A worker that an elastic job can do without: it may leave while the job goes on.
    is_surplus: bool = False

    def lost_gpu_s(self, now_s: float) -> float:
        """GPU-seconds of work since its last checkpoint, or since its start."""
        saved = self.started_s
        if self.job is not None and self.job.last_checkpoint_s is not None:
            saved = max(saved, self.job.last_checkpoint_s)
        return max(0.0, now_s - saved) * self.size


def running_fault(job: RunningJob) -> str:
    """What makes the job unfit to be counted and compared, or an empty text."""
    numbers = (job.priority, job.submitted_s, job.started_s, job.time_limit_s, job.last_checkpoint_s)
    if any(v is not None and (type(v) not in (int, float) or not isfinite(v)) for v in numbers):
        return "its priority and times must be finite numbers"
    sizes = (job.num_gpus, job.num_nodes, job.gpus_per_node)
    if any(v is not None and (type(v) is not int or v < 0) for v in sizes):
        return "its size must be whole numbers"
    if any(type(g) is not int or g < 0 for g in job.placement.values()):
        return "its placement must be whole numbers of GPUs"
    return ""


def holder_of(job: RunningJob, tree: QuotaTree, pools: dict[str, Pool], policy: Policy, now_s: float) -> Holder:
    """The running job as a holder. Nodes that are no longer there hold nothing."""
    queue = tree.queue_number.get(job.queue, -1)
    pool = pools.get(job.gpu_type)
    placement: Placement = []
    if pool is not None:
        number = pool.number
        placement = [(number[node], gpus) for node, gpus in job.placement.items() if node in number and gpus > 0]
    holder = Holder(
        id=job.id,
        queue=queue,
        gpu_type=job.gpu_type,
        size=job.size,
        priority=job.priority,
        submitted_s=job.submitted_s,
        started_s=job.started_s,
        placement=placement,
        protected_until_s=_protected_until(job, policy, tree, queue),
        rank=(job.priority, 0.0, -job.started_s, job.id),
        job=job,
    )
    if policy.victim_order == VictimOrder.LEAST_LOST:
        holder.rank = rank_of(holder, policy, now_s)
    return holder


def parts_of(holder: Holder, policy: Policy) -> list[Holder]:
    """The holder as one part that the job needs and one for each surplus worker, if surplus may be taken.

    Workers leave from nodes with few of them first, so that whole nodes come free.
    """
    job = holder.job
    if job is None or not (policy.elastic_shrink or policy.division):
        return [holder]
    if job.num_gpus is not None:
        worker, least = job.chunk, job.num_gpus_min
    else:
        worker, least = job.gpus_per_node or 0, (job.num_nodes_min or 0) * (job.gpus_per_node or 0)
    if not least or worker <= 0 or (holder.size - least) < worker:
        return [holder]
    held = dict(holder.placement)
    parts: list[Holder] = []
    for _ in range((holder.size - least) // worker):
        place: Placement = []
        if held:
            node = min((n for n, g in held.items() if g >= worker), key=lambda n: (held[n], -n), default=None)
            if node is None:
                break
            held[node] -= worker
            held = {n: g for n, g in held.items() if g}
            place = [(node, worker)]
        # Before whole jobs of the same priority.
        rank = (holder.priority, -1.0, -holder.started_s, holder.id)
        parts.append(replace(holder, size=worker, placement=place, rank=rank, is_surplus=True))
    rest = holder.size - worker * len(parts)
    return [*parts, replace(holder, size=rest, placement=sorted(held.items()))]


def rank_of(holder: Holder, policy: Policy, now_s: float) -> Rank:
    """Sort key among victims."""
    lost = holder.lost_gpu_s(now_s) if policy.victim_order == VictimOrder.LEAST_LOST else 0.0
    return (holder.priority, lost, -holder.started_s, holder.id)


def _protected_until(job: RunningJob, policy: Policy, tree: QuotaTree, queue: int) -> float:
    if not job.preemptible:
        return inf
    most = policy.max_preemptions_per_job
    if most is not None and job.preempted_count >= most:
        return inf
    minimum = policy.min_runtime_s
    own = tree.queues[queue].min_runtime_s if queue >= 0 else None
    if own is not None:
        minimum = max(minimum, own)
    until = job.started_s + minimum if minimum > 0 else -inf
    return until if job.protected_until_s is None else max(until, job.protected_until_s)
