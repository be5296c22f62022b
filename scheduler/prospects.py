"""Jobs that can do nothing in this pass, whatever is decided before their turn.

While no victim leaves, use only grows and free GPUs only shrink. A kind of job that has no room, no
victims and keeps nothing from others is then hopeless for the rest of the pass: its jobs are
answered together, without a turn of their own.
"""

import numpy as np

from scheduler.eviction import evictable
from scheduler.holders import Holder
from scheduler.judge import may_look
from scheduler.quota import TypeLimits
from scheduler.requests import JobClass
from scheduler.shapes import Shape
from scheduler.snapshot import Borrow, Ordering, Reclaim, WithinQueue
from scheduler.world import World

_NOBODY: frozenset[int] = frozenset()
Needs = dict[tuple[str, Shape], int]


class Prospects:
    """Answers for kinds, remembered until the next victim leaves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[JobClass, int] = {}
        # Queues with a kind for which quota would do, but no nodes: they hope again when any victim leaves.
        self.for_nodes: set[int] = set()
        # What the kinds looked at since `begin` need before a look at them is worth while: so many whole workers of a
        # shape. None: it cannot be said.
        self.needs: Needs | None = {}
        self.workers: dict[tuple[str, Shape], tuple[int, int]] = {}
        # Queues with running jobs, by root and GPU type.
        self.holding: dict[tuple[int, str], set[int]] = {}
        for (queue, gpu_type), holders in world.holders.items():
            if queue >= 0 and holders:
                self.holding.setdefault((world.tree.root[queue], gpu_type), set()).add(queue)

    def hopeless(self, kind: JobClass) -> bool:
        """Whether no job of the kind can start, be held, evict or reserve before a victim leaves."""
        if self.known.get(kind) == self.world.departures:
            return True
        short_of_nodes = False
        for gpu_type in kind.gpu_types:
            limits = self.world.tree.types.get(gpu_type)
            if limits is None or not limits.listed[kind.queue] or kind.size > limits.potential[kind.queue]:
                continue
            free = self.world.tree.available(limits, self.world.usage[gpu_type], kind.queue)
            if not kind.may_borrow:
                free = min(free, limits.subtree[kind.queue] - self.world.usage[gpu_type][kind.queue])
            if free >= kind.size:
                if not self._short_of_nodes(gpu_type, kind.shape):
                    return False
                short_of_nodes = True
            if not kind.may_preempt:
                continue
            if self._may_reserve(limits, kind) or self._may_reclaim(limits, kind):
                return False
            own = self._own_victims(limits, kind)
            if own and free + sum(holder.size for holder in own) >= kind.size:
                if self._nodes_would_do(gpu_type, kind.shape, own):
                    return False
                short_of_nodes = True
        if short_of_nodes and (self.world.policy.consolidation or self.world.policy.division):
            return False
        self.known[kind] = self.world.departures
        if short_of_nodes:
            self.for_nodes.add(kind.queue)
        return True

    def begin(self) -> None:
        """What is looked at from now on is counted anew in `needs`."""
        self.needs = {}

    def is_met(self, needs: Needs) -> bool:
        """Whether there are as many whole workers free as one of these needs."""
        return any(self._count(gpu_type, shape) >= least for (gpu_type, shape), least in needs.items())

    def _need(self, gpu_type: str, shape: Shape, least: int) -> None:
        if self.needs is not None:
            key = (gpu_type, shape)
            self.needs[key] = min(least, self.needs.get(key, least))

    def _short_of_nodes(self, gpu_type: str, shape: Shape) -> bool:
        """Whether the free GPUs are too few or too scattered for the shape. False when in doubt."""
        if shape.is_anywhere and gpu_type in self.world.pools and self._count(gpu_type, shape) < shape.num_workers:
            self._need(gpu_type, shape, shape.num_workers)
            return True
        if self.world.known_misfit(gpu_type, shape):
            self.needs = None
            return True
        return False

    def _count(self, gpu_type: str, shape: Shape) -> int:
        """Whole workers of the shape that the free GPUs held when they were last counted: never less than now."""
        known = self.workers.get((gpu_type, shape))
        if known is None or known[0] != self.world.departures:
            pool = self.world.pools[gpu_type]
            usable = pool.usable(pool.free, shape)
            whole = usable >= shape.worker if shape.spread else usable // shape.worker
            known = self.workers[gpu_type, shape] = (self.world.departures, int(np.sum(whole)))
        return known[1]

    def waiting_height(self, kind: JobClass) -> tuple[int, str]:
        """Borrow height with which a hopeless kind stands in line, and the GPU type that it waits for."""
        best: tuple[bool, int] | None = None
        chosen = kind.gpu_types[0]
        tree = self.world.tree
        for gpu_type in kind.gpu_types:
            limits = tree.types.get(gpu_type)
            if limits is None or not limits.listed[kind.queue] or kind.size > limits.potential[kind.queue]:
                continue
            height, below_root = tree.borrow_height(limits, self.world.usage[gpu_type], kind.queue, kind.size)
            rank = (kind.may_preempt and may_look(self.world, limits, kind, below_root), -height)
            if best is None or rank > best:
                best, chosen = rank, gpu_type
        return (0, chosen) if best is None else (-best[1], chosen)

    def _may_reserve(self, limits: TypeLimits, kind: JobClass) -> bool:
        """Whether a job of the kind without victims would keep capacity from others."""
        if self.world.tree.queues[kind.queue].preemption.reclaim_within_cohort == Reclaim.ANY:
            return False
        usage = self.world.usage[limits.gpu_type]
        _, below_root = self.world.tree.borrow_height(limits, usage, kind.queue, kind.size)
        return may_look(self.world, limits, kind, below_root)

    def _may_reclaim(self, limits: TypeLimits, kind: JobClass) -> bool:
        """Whether the kind might evict jobs of other queues. True when in doubt."""
        tree, queue = self.world.tree, kind.queue
        policy = tree.queues[queue].preemption
        if policy.reclaim_within_cohort == Reclaim.NEVER or tree.parent[queue] < 0:
            return False
        if not self.holding.get((tree.root[queue], limits.gpu_type), _NOBODY) - {queue}:
            return False
        if self.world.policy.ordering == Ordering.FAIR_SHARE or policy.borrow_within_cohort != Borrow.NEVER:
            return True
        usage = self.world.usage[limits.gpu_type]
        if usage[queue] + kind.size <= limits.subtree[queue]:
            return True
        # A right to evict that stems from a cohort's own quota, below the root.
        return tree.borrow_height(limits, usage, queue, kind.size)[1]

    def _own_victims(self, limits: TypeLimits, kind: JobClass) -> list[Holder]:
        """Jobs of the own queue that some job of the kind may evict."""
        policy = self.world.tree.queues[kind.queue].preemption
        if policy.within_queue == WithinQueue.NEVER:
            return []
        out: list[Holder] = []
        for holder in self.world.ordered(kind.queue, limits.gpu_type):
            equal = holder.priority == kind.priority and policy.within_queue == WithinQueue.LOWER_OR_NEWER_EQUAL
            if holder.priority >= kind.priority and not equal:
                break
            if evictable(self.world, holder):
                out.append(holder)
        return out

    def _nodes_would_do(self, gpu_type: str, shape: Shape, victims: list[Holder]) -> bool:
        """Whether the shape might fit if all these victims left. True when in doubt."""
        pool = self.world.pools.get(gpu_type)
        if pool is None:
            return self.world.count_only
        if not shape.is_anywhere:
            return True
        freed: dict[int, int] = {}
        for holder in victims:
            for node, gpus in holder.placement:
                freed[node] = freed.get(node, 0) + gpus
        count = self._count(gpu_type, shape)
        for node, gpus in freed.items():
            free = max(0, int(pool.free[node]))
            most = max(0, int(pool.free[node]) + gpus)
            if shape.spread:
                count += int(most >= shape.worker) - int(free >= shape.worker)
            else:
                count += most // shape.worker - free // shape.worker
        if count >= shape.num_workers:
            return True
        # What else is free on the victims' nodes may change: at most all of these nodes could serve.
        most = sum(1 if shape.spread else int(pool.total[node]) // shape.worker for node in freed)
        self._need(gpu_type, shape, shape.num_workers - most)
        return False
