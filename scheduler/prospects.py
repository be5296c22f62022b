"""Jobs that can do nothing in this pass, whatever is decided before their turn.

While no victim leaves, use only grows and free GPUs only shrink. A kind of job that has no room, no
victims and keeps nothing from others is then hopeless for the rest of the pass: its jobs are
answered together, without a turn of their own.
"""

from scheduler.judge import may_look
from scheduler.quota import TypeLimits
from scheduler.requests import JobClass
from scheduler.snapshot import Borrow, Ordering, Reclaim, WithinQueue
from scheduler.world import World

_NOBODY: frozenset[int] = frozenset()


class Prospects:
    """Answers for kinds, remembered until the next victim leaves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[JobClass, int] = {}
        # Kinds for which quota would do, but no nodes: they hope again when any victim leaves.
        self.for_nodes: set[JobClass] = set()
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
            if self._has_quota(limits, kind):
                if not self.world.known_misfit(gpu_type, kind.shape):
                    return False
                short_of_nodes = True
            if self._may_act(limits, kind):
                return False
        self.known[kind] = self.world.departures
        if short_of_nodes:
            self.for_nodes.add(kind)
        return True

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

    def _has_quota(self, limits: TypeLimits, kind: JobClass) -> bool:
        usage = self.world.usage[limits.gpu_type]
        if not kind.may_borrow and usage[kind.queue] + kind.size > limits.subtree[kind.queue]:
            return False
        return self.world.tree.available(limits, usage, kind.queue) >= kind.size

    def _may_act(self, limits: TypeLimits, kind: JobClass) -> bool:
        """Whether the kind might evict, or keep capacity from others. True when in doubt."""
        tree, queue = self.world.tree, kind.queue
        policy = tree.queues[queue].preemption
        usage = self.world.usage[limits.gpu_type]
        if not kind.may_preempt:
            return False
        if policy.reclaim_within_cohort != Reclaim.ANY:
            _, below_root = tree.borrow_height(limits, usage, queue, kind.size)
            if may_look(self.world, limits, kind, below_root):
                return True  # without candidates it would reserve
        if policy.within_queue != WithinQueue.NEVER:
            first = self.world.ordered(queue, limits.gpu_type)
            if first and first[0].priority <= kind.priority:
                equal = policy.within_queue == WithinQueue.LOWER_OR_NEWER_EQUAL
                if equal or first[0].priority < kind.priority:
                    return True
        if policy.reclaim_within_cohort == Reclaim.NEVER or tree.parent[queue] < 0:
            return False
        if not self.holding.get((tree.root[queue], limits.gpu_type), _NOBODY) - {queue}:
            return False
        if self.world.policy.ordering == Ordering.FAIR_SHARE or policy.borrow_within_cohort != Borrow.NEVER:
            return True
        if usage[queue] + kind.size <= limits.subtree[queue]:
            return True
        # A right to evict that stems from a cohort's own quota, below the root.
        return tree.borrow_height(limits, usage, queue, kind.size)[1]
