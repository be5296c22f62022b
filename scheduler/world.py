"""The state of one pass: who holds what, what is free, and what it would be without some of them.

Two views are kept. *Landed* is the state when the victims of this pass (and jobs already told to
stop) are gone; *present* still counts them. A job starts only if it fits both.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scheduler.nodes import Pool, pools_build
from scheduler.placement import Placement, place
from scheduler.quota import QuotaTree, TypeLimits, Usage, tree_build
from scheduler.shapes import Shape
from scheduler.snapshot import PlacementRule, Policy, RunningJob, Snapshot, VictimOrder


@dataclass(slots=True, eq=False)
class Holder:
    """A job that holds GPUs: one that runs, or one that this pass made a place for."""

    id: str
    queue: int
    gpu_type: str
    size: int
    priority: int
    submitted_s: float
    started_s: float
    placement: Placement
    protected_until_s: float
    lost_gpu_s: float = 0
    # Victims go in this order: lower priority, then (by policy) least lost, newest, id.
    rank: tuple[float, float, float, str] = (0.0, 0.0, 0.0, "")
    # None for a job that this pass has placed.
    job: RunningJob | None = None
    shape: Shape | None = None
    # Told to stop, earlier or in this pass.
    leaving: bool = False


@dataclass(slots=True)
class World:
    """All of it. `version` moves with every change, so that answers can be remembered."""

    now_s: float
    policy: Policy
    tree: QuotaTree
    pools: dict[str, Pool]
    usage: dict[str, Usage]
    present: dict[str, Usage]
    holders: dict[tuple[int, str], list[Holder]]
    count_only: bool
    rule: PlacementRule
    levels: tuple[str, ...]
    version: int = 0
    last_release: int = 0
    in_order: dict[tuple[int, str], list[Holder]] = field(default_factory=dict)

    def ordered(self, queue: int, gpu_type: str) -> list[Holder]:
        """The queue's holders in the order in which they would be victims."""
        key = (queue, gpu_type)
        found = self.in_order.get(key)
        if found is None:
            found = self.in_order[key] = sorted(self.holders.get(key, ()), key=lambda h: h.rank)
        return found

    def admit(self, holder: Holder) -> None:
        """Count one more holder, that may be a victim, in the landed view."""
        self.ordered(holder.queue, holder.gpu_type)
        self.holders.setdefault((holder.queue, holder.gpu_type), []).append(holder)
        insort(self.in_order[holder.queue, holder.gpu_type], holder, key=lambda h: h.rank)
        self.put_back(holder)

    def expel(self, holder: Holder) -> None:
        """Undo `admit`."""
        self.remove(holder)
        self.holders[holder.queue, holder.gpu_type].remove(holder)
        self.in_order[holder.queue, holder.gpu_type].remove(holder)

    def fits_quota(self, limits: TypeLimits, queue: int, amount: int, *, present: bool = False) -> bool:
        """Whether the queue may use that much more."""
        usage = (self.present if present else self.usage)[limits.gpu_type]
        return self.tree.available(limits, usage, queue) >= amount

    def find(self, gpu_type: str, shape: Shape, *, present: bool = False) -> Placement | None:
        """Free GPUs for the shape, [] where only counts are known, None when it fits nowhere."""
        if self.count_only:
            return []
        pool = self.pools.get(gpu_type)
        if pool is None:
            return None
        if not present and pool.misfits.get(shape) == pool.releases:
            return None
        found = place(pool, pool.present if present else pool.free, shape, self.rule)
        if found is None and not present:
            pool.misfits[shape] = pool.releases
        return found

    def is_split(self, gpu_type: str) -> bool:
        """Whether somebody is on the way out, so that landed and present differ."""
        pool = self.pools.get(gpu_type)
        split = self.usage.get(gpu_type) is not self.present.get(gpu_type)
        return split or (pool is not None and pool.free is not pool.present)

    def split(self, gpu_type: str) -> None:
        """Keep two views from now on: the first victim leaves."""
        if gpu_type in self.usage and self.usage[gpu_type] is self.present[gpu_type]:
            self.present[gpu_type] = list(self.usage[gpu_type])
        pool = self.pools.get(gpu_type)
        if pool is not None and pool.free is pool.present:
            pool.present = pool.free.copy()

    def take(self, queue: int, gpu_type: str, size: int, placement: Placement) -> None:
        """Count a job that starts or is held, in both views."""
        self.version += 1
        limits = self.tree.types.get(gpu_type)
        if limits is not None and queue >= 0:
            self.tree.add(limits, self.usage[gpu_type], queue, size)
            if self.present[gpu_type] is not self.usage[gpu_type]:
                self.tree.add(limits, self.present[gpu_type], queue, size)
        pool = self.pools.get(gpu_type)
        if pool is not None:
            for node, gpus in placement:
                pool.free[node] -= gpus
            if pool.present is not pool.free:
                for node, gpus in placement:
                    pool.present[node] -= gpus

    def remove(self, holder: Holder) -> None:
        """Take the holder out of the landed view, as a trial or for good. The view must be split."""
        limits = self.tree.types.get(holder.gpu_type)
        if limits is not None and holder.queue >= 0:
            self.tree.add(limits, self.usage[holder.gpu_type], holder.queue, -holder.size)
        pool = self.pools.get(holder.gpu_type)
        if pool is not None:
            self.last_release += 1
            pool.releases = self.last_release
            for node, gpus in holder.placement:
                pool.free[node] += gpus

    def put_back(self, holder: Holder) -> None:
        """Undo `remove`."""
        limits = self.tree.types.get(holder.gpu_type)
        if limits is not None and holder.queue >= 0:
            self.tree.add(limits, self.usage[holder.gpu_type], holder.queue, holder.size)
        pool = self.pools.get(holder.gpu_type)
        if pool is not None:
            for node, gpus in holder.placement:
                pool.free[node] -= gpus

    def leave(self, victims: Iterable[Holder]) -> None:
        """The victims are chosen: they are gone from the landed view from now on."""
        self.version += 1
        for victim in victims:
            self.split(victim.gpu_type)
            self.remove(victim)
            victim.leaving = True


def world_build(snapshot: Snapshot) -> tuple[World, list[str]]:
    """The state before the first decision, and what is wrong with quotas, nodes and running jobs."""
    tree = tree_build(snapshot.queues, snapshot.cohorts)
    pools, problems = pools_build(snapshot.nodes, snapshot.topology)
    usage = {gpu_type: [0] * len(tree.names) for gpu_type in tree.types}
    world = World(
        now_s=snapshot.now_s,
        policy=snapshot.policy,
        tree=tree,
        pools=pools,
        usage=usage,
        present=dict(usage),
        holders={},
        count_only=not snapshot.nodes,
        rule=snapshot.policy.placement,
        levels=tuple(snapshot.topology),
    )
    problems = tree.problems + problems
    if snapshot.nodes:
        unknown = sorted(set(tree.types) - set(pools))
        problems += [f"There is quota for {gpu_type}, but no node has that type." for gpu_type in unknown]
    _count_running(world, snapshot.running, problems)
    return world, problems


def _count_running(world: World, running: Sequence[RunningJob], problems: list[str]) -> None:
    seen: set[str] = set()
    leaving: list[Holder] = []
    totals: dict[tuple[int, str], int] = {}
    for job in running:
        if job.id in seen:
            problems.append(f"Running job {job.id} is listed twice; the first one counts.")
            continue
        seen.add(job.id)
        holder = holder_of(world, job)
        world.holders.setdefault((holder.queue, job.gpu_type), []).append(holder)
        totals[holder.queue, job.gpu_type] = totals.get((holder.queue, job.gpu_type), 0) + holder.size
        pool = world.pools.get(job.gpu_type)
        if pool is not None:
            for node, gpus in holder.placement:
                pool.free[node] -= gpus
        if job.evicting:
            leaving.append(holder)
    for (queue, gpu_type), size in totals.items():
        limits = world.tree.types.get(gpu_type)
        if limits is not None and queue >= 0:
            world.tree.add(limits, world.usage[gpu_type], queue, size)
    world.leave(leaving)
    world.version = 0


def holder_of(world: World, job: RunningJob) -> Holder:
    """The running job as a holder. Nodes that are no longer there hold nothing."""
    queue = world.tree.queue_number.get(job.queue, -1)
    pool = world.pools.get(job.gpu_type)
    number = pool.number if pool is not None else {}
    placement = [(number[node], gpus) for node, gpus in job.placement.items() if node in number and gpus > 0]
    lost = _lost(world.now_s, job)
    return Holder(
        id=job.id,
        queue=queue,
        gpu_type=job.gpu_type,
        size=max(0, job.size),
        priority=job.priority,
        submitted_s=job.submitted_s,
        started_s=job.started_s,
        placement=placement,
        protected_until_s=_protected_until(world, job, queue),
        lost_gpu_s=lost,
        rank=victim_rank(world.policy, job.priority, lost, job.started_s, job.id),
        job=job,
    )


def _protected_until(world: World, job: RunningJob, queue: int) -> float:
    policy = world.policy
    if not job.preemptible:
        return float("inf")
    most = policy.max_preemptions_per_job
    if most is not None and job.preempted_count >= most:
        return float("inf")
    minimum = policy.min_runtime_s
    own = world.tree.queues[queue].min_runtime_s if queue >= 0 else None
    if own is not None:
        minimum = max(minimum, own)
    until = job.started_s + minimum if minimum > 0 else float("-inf")
    return until if job.protected_until_s is None else max(until, job.protected_until_s)


def victim_rank(
    policy: Policy, priority: float, lost_gpu_s: float, started_s: float, job_id: str
) -> tuple[float, float, float, str]:
    """Sort key of victims: lower priority, least lost if the policy says so, newest, id."""
    return (priority, lost_gpu_s if policy.victim_order == VictimOrder.LEAST_LOST else 0.0, -started_s, job_id)


def _lost(now_s: float, job: RunningJob) -> float:
    """GPU-seconds of work since the last checkpoint, or since the start."""
    saved = job.started_s if job.last_checkpoint_s is None else max(job.last_checkpoint_s, job.started_s)
    return max(0.0, now_s - saved) * max(0, job.size)
