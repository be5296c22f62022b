"""The state of one pass: who holds what, what is free, and what it would be without some of them.

Two views are kept. *Landed* is the state when the victims of this pass (and jobs already told to
stop) are gone; *present* still counts them. A job starts only if it fits both.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import isfinite

from scheduler.holders import Holder, holder_of, parts_of, rank_of, running_fault
from scheduler.nodes import Pool, pools_build
from scheduler.placement import Placement, place
from scheduler.quota import QuotaTree, TypeLimits, Usage, tree_build
from scheduler.shapes import Shape
from scheduler.snapshot import Policy, RunningJob, Snapshot, VictimOrder

HolderKey = tuple[int, str]


@dataclass(slots=True)
class World:
    """All of it. `version` moves with every change, `departures` with every change that frees something."""

    now_s: float
    policy: Policy
    tree: QuotaTree
    pools: dict[str, Pool]
    usage: dict[str, Usage]
    present: dict[str, Usage]
    holders: dict[HolderKey, list[Holder]]
    count_only: bool
    levels: tuple[str, ...]
    problems: list[str] = field(default_factory=list)
    in_order: dict[HolderKey, list[Holder]] = field(default_factory=dict)
    # Running jobs that were told to stop before; `gone`: those and the victims of this pass.
    stopping: set[Holder] = field(default_factory=set)
    gone: set[Holder] = field(default_factory=set)
    version: int = 0
    # Shared with all copies: no two states of a tree have one number.
    clock: Iterator[int] = field(default_factory=lambda: count(1))
    departures: int = 0
    # Each queue's part of a divided cluster, by GPU type.
    parts: dict[str, dict[str, int]] = field(default_factory=dict)
    # No more victims in this pass: nobody looks for any.
    is_calm: bool = False
    last_release: int = 0
    # When something last changed in the tree of each root.
    root_version: dict[int, int] = field(default_factory=dict)
    # Ends of protections to come, with their queues.
    protected: list[tuple[float, int]] = field(default_factory=list)
    # Searches for victims that found none: (what was asked) -> (version of the root, releases of the pool).
    fruitless: dict[object, tuple[int, int]] = field(default_factory=dict)

    def begin(self, now_s: float) -> "World":
        """A copy for one pass: its changes do not show in the original."""
        usage = {gpu_type: list(use) for gpu_type, use in self.usage.items()}
        world = World(
            now_s=now_s,
            policy=self.policy,
            tree=self.tree,
            pools={gpu_type: pool.copy() for gpu_type, pool in self.pools.items()},
            usage=usage,
            present=dict(usage),
            holders=dict(self.holders),
            count_only=self.count_only,
            levels=self.levels,
            problems=self.problems,
            in_order=dict(self.in_order),
            version=self.version,
            clock=self.clock,
            parts=self.parts,
            root_version=dict(self.root_version),
        )
        if self.policy.victim_order == VictimOrder.LEAST_LOST:
            world.in_order = {}
            for holders in world.holders.values():
                for holder in (h for h in holders if not h.is_surplus):
                    holder.rank = rank_of(holder, self.policy, now_s)
        else:
            self.in_order = world.in_order  # sorted once for all passes
        world.leave(sorted(self.stopping, key=lambda h: h.id))
        return world

    def lapse(self, now_s: float) -> None:
        """Notice protections that end by this time: their jobs may be victims from now on."""
        while self.protected and self.protected[0][0] <= now_s:
            self.touch(heappop(self.protected)[1])

    def add_running(self, job: RunningJob) -> Holder | None:
        """Count a running job; a faulty one becomes a problem, and its nodes' GPUs stay taken."""
        fault = running_fault(job)
        if fault:
            self.problems.append(f"Running job {job.id} is not counted: {fault}.")
            return None
        holder = holder_of(job, self.tree, self.pools, self.policy, self.now_s)
        key = (holder.queue, holder.gpu_type)
        parts = parts_of(holder, self.policy)
        self.holders[key] = [*self.holders.get(key, ()), *parts]
        self.in_order.pop(key, None)
        self.put_back(holder)
        self.touch(holder.queue)
        if isfinite(holder.protected_until_s):
            heappush(self.protected, (holder.protected_until_s, holder.queue))
        if job.evicting:
            self.stopping.update(parts)
        return holder

    def drop_running(self, holder: Holder) -> None:
        """Undo `add_running`."""
        key = (holder.queue, holder.gpu_type)
        self.stopping.difference_update(h for h in self.holders[key] if h.id == holder.id)
        self.holders[key] = [h for h in self.holders[key] if h.id != holder.id]
        self.in_order.pop(key, None)
        self.remove(holder)
        self.touch(holder.queue)

    def ordered(self, queue: int, gpu_type: str) -> list[Holder]:
        """The queue's holders in the order in which they would be victims."""
        key = (queue, gpu_type)
        found = self.in_order.get(key)
        if found is None:
            found = self.in_order[key] = sorted(self.holders.get(key, ()), key=lambda h: h.rank)
        return found

    def admit(self, holder: Holder) -> None:
        """Put one more holder, that may be a victim, into the landed view."""
        insort(self.ordered(holder.queue, holder.gpu_type), holder, key=lambda h: h.rank)
        self.put_back(holder)

    def expel(self, holder: Holder) -> None:
        """Undo `admit`."""
        self.remove(holder)
        self.ordered(holder.queue, holder.gpu_type).remove(holder)

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
        if present:
            if shape in pool.absent:
                return None
            found = place(pool, pool.present, shape, self.policy.placement)
            if found is None:
                pool.absent.add(shape)
            return found
        if pool.misfits.get(shape) == pool.releases:
            return None
        found = place(pool, pool.free, shape, self.policy.placement)
        if found is None:
            pool.misfits[shape] = pool.releases
        return found

    def known_misfit(self, gpu_type: str, shape: Shape) -> bool:
        """Whether the shape was tried on the landed view and nothing came free since."""
        pool = self.pools.get(gpu_type)
        return not self.count_only and (pool is None or pool.misfits.get(shape) == pool.releases)

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

    def merge(self, gpu_type: str) -> None:
        """Undo `split`, while the two views are alike."""
        if gpu_type in self.usage:
            self.present[gpu_type] = self.usage[gpu_type]
        if gpu_type in self.pools:
            self.pools[gpu_type].present = self.pools[gpu_type].free

    def take(self, queue: int, gpu_type: str, size: int, placement: Placement) -> None:
        """Count a job that starts or is held, in both views."""
        self.touch(queue)
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
        """Take the holder out of the landed view, as a trial or for good."""
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
        for victim in victims:
            self.split(victim.gpu_type)
            self.remove(victim)
            self.gone.add(victim)
            key = (victim.queue, victim.gpu_type)
            self.in_order[key] = [h for h in self.ordered(*key) if h is not victim]
            self.touch(victim.queue)
            self.departures += 1

    def move(self, holder: Holder, placement: Placement) -> None:
        """The job will go on elsewhere: it has both places until it has moved, and only the new one then."""
        self.split(holder.gpu_type)
        pool = self.pools[holder.gpu_type]
        for node, gpus in holder.placement:
            pool.free[node] += gpus
        for node, gpus in placement:
            pool.free[node] -= gpus
            pool.present[node] -= gpus
        self.last_release += 1
        pool.releases = self.last_release
        self.departures += 1
        moved = replace(holder, placement=placement)
        key = (holder.queue, holder.gpu_type)
        self.holders[key] = [moved if h is holder else h for h in self.holders[key]]
        self.in_order.pop(key, None)
        # One disturbance a pass is enough for it.
        self.gone.add(moved)
        self.touch(holder.queue)

    def touch(self, queue: int) -> None:
        """Something changed in the queue's tree."""
        self.version = next(self.clock)
        if queue >= 0:
            self.root_version[self.tree.root[queue]] = self.version


def world_build(snapshot: Snapshot) -> World:
    """The state that the snapshot describes, with whatever is wrong in it as `problems`."""
    tree = tree_build(snapshot.queues, snapshot.cohorts)
    pools, problems = pools_build(snapshot.nodes, snapshot.topology)
    usage = {gpu_type: [0] * len(tree.names) for gpu_type in tree.types}
    world = World(
        now_s=snapshot.now_s,
        policy=snapshot.policy,
        tree=tree,
        pools=pools,
        usage=usage,
        present=usage,
        holders={},
        count_only=not snapshot.nodes,
        levels=tuple(snapshot.topology),
        problems=[*tree.problems, *problems],
    )
    if snapshot.nodes:
        unknown = sorted(set(tree.types) - set(pools))
        world.problems += [f"There is quota for {gpu_type}, but no node has that type." for gpu_type in unknown]
    _count_running(world, snapshot.running)
    return world


def _count_running(world: World, running: Iterable[RunningJob]) -> None:
    """`add_running` for many: each queue's sum is carried up its tree once."""
    seen: set[str] = set()
    totals: dict[HolderKey, int] = {}
    for job in running:
        fault = "it is listed twice" if job.id in seen else running_fault(job)
        seen.add(job.id)
        if fault:
            world.problems.append(f"Running job {job.id} is not counted: {fault}.")
            continue
        holder = holder_of(job, world.tree, world.pools, world.policy, world.now_s)
        key = (holder.queue, job.gpu_type)
        parts = parts_of(holder, world.policy)
        world.holders.setdefault(key, []).extend(parts)
        if job.evicting:
            world.stopping.update(parts)
        if isfinite(holder.protected_until_s):
            heappush(world.protected, (holder.protected_until_s, holder.queue))
        totals[key] = totals.get(key, 0) + holder.size
        if holder.placement:
            free = world.pools[job.gpu_type].free
            for node, gpus in holder.placement:
                free[node] -= gpus
    for (queue, gpu_type), size in totals.items():
        limits = world.tree.types.get(gpu_type)
        if limits is not None and queue >= 0:
            world.tree.add(limits, world.usage[gpu_type], queue, size)
