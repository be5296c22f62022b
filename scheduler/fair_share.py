"""Shares of the quota tree, and whom fair share lets a job evict. All comparisons are exact."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering

from scheduler.eviction import (
    Candidate,
    Claim,
    Room,
    evictable,
    fits,
    give_back,
    own_allowed,
    reclaim_allowed,
    sort_key,
)
from scheduler.quota import QuotaTree, TypeLimits, Usage
from scheduler.snapshot import Reclaim, ShareStrategy, WithinQueue
from scheduler.world import Holder, World


@total_ordering
@dataclass(frozen=True, slots=True)
class Share:
    """How far a node is above what it owns: `over / (lendable * weight)`, infinite at weight 0.

    Two infinite shares compare by the ratio without the weight.
    """

    infinite: bool
    ratio: Fraction

    def __lt__(self, other: "Share") -> bool:
        if self.infinite != other.infinite:
            return other.infinite
        return self.ratio < other.ratio

    @property
    def per_mille(self) -> Fraction | None:
        """The share times 1000; None is infinite."""
        return None if self.infinite else self.ratio * 1000


ZERO = Share(False, Fraction(0))


def share_of(tree: QuotaTree, usage: dict[str, Usage], node: int) -> Share:
    """The node's share over all GPU types."""
    parent = tree.parent[node]
    if parent < 0:
        return ZERO
    over = lendable = 0
    for gpu_type, limits in tree.types.items():
        lendable += limits.potential[parent]
        over += max(0, usage[gpu_type][node] - limits.subtree[node])
    return share_from(over, lendable, tree.weight[node])


def share_from(over: int, lendable: int, weight: Fraction) -> Share:
    """The share of a node that uses `over` GPUs more than it owns."""
    if over == 0 or lendable == 0:
        return ZERO
    ratio = Fraction(over, lendable)
    return Share(True, ratio) if weight == 0 else Share(False, ratio / weight)


def all_shares(tree: QuotaTree, usage: dict[str, Usage]) -> dict[str, Fraction | None]:
    """Shares times 1000 of every queue and cohort by name; a queue's stands where names collide."""
    out: dict[str, Fraction | None] = {}
    for node in range(len(tree.names) - 1, -1, -1):
        out[tree.names[node]] = share_of(tree, usage, node).per_mille
    return out


def find_room_fairly(world: World, claim: Claim) -> Room | None:
    """The victims that fair share allows and that make room for the claim, or None."""
    limits = world.tree.types[claim.gpu_type]
    candidates = _candidates(world, limits, claim)
    if not candidates:
        return None
    world.split(claim.gpu_type)
    search = _Search(world, limits, claim)
    # Shares are compared as if the job ran already.
    world.tree.add(limits, world.usage[claim.gpu_type], claim.queue, claim.size)
    try:
        found = search.first(candidates, world.policy.fair_sharing_strategies)
    finally:
        world.tree.add(limits, world.usage[claim.gpu_type], claim.queue, -claim.size)
    room = None
    if found:
        placement = fits(world, limits, claim, borrow=claim.may_borrow)
        assert placement is not None, "the search ends when the job fits"
        room = give_back(world, limits, claim, search.taken, placement, borrow=claim.may_borrow)
    for holder in search.taken if room is None else room.victims:
        world.put_back(holder)
    return room


def _candidates(world: World, limits: TypeLimits, claim: Claim) -> list[Candidate]:
    tree, usage = world.tree, world.usage[claim.gpu_type]
    policy = tree.queues[claim.queue].preemption
    out: list[Candidate] = []
    if policy.within_queue != WithinQueue.NEVER:
        for holder in world.holders.get((claim.queue, claim.gpu_type), ()):
            if evictable(world, holder) and own_allowed(policy, claim, holder):
                out.append(Candidate(holder, 2, True, -1))
    if policy.reclaim_within_cohort != Reclaim.NEVER and tree.parent[claim.queue] >= 0:
        root = tree.root[claim.queue]
        for (queue, gpu_type), holders in world.holders.items():
            if gpu_type != claim.gpu_type or queue in (-1, claim.queue) or tree.root[queue] != root:
                continue
            if usage[queue] <= limits.subtree[queue]:
                continue
            for holder in holders:
                if evictable(world, holder) and reclaim_allowed(policy, claim, holder):
                    out.append(Candidate(holder, 1, True, -1))
    out.sort(key=lambda c: sort_key(world, c))
    return out


class _Search:
    """Removes victims until the claim fits; `taken` are those removed."""

    def __init__(self, world: World, limits: TypeLimits, claim: Claim) -> None:
        self.world, self.limits, self.claim = world, limits, claim
        self.tree = world.tree
        self.usage = world.usage[claim.gpu_type]
        self.taken: list[Holder] = []
        self.on_path = set(self.tree.path(claim.queue))

    def first(self, candidates: Sequence[Candidate], strategies: Sequence[ShareStrategy]) -> bool:
        """Run the first strategy over all candidates, then a second one over those that failed it."""
        order = _Targets(self, candidates)
        strategy = _STRATEGIES[strategies[0]] if strategies else _final
        failed: list[Candidate] = []
        while (queue := order.next()) is not None:
            waiting = order.waiting[queue]
            if queue == self.claim.queue or self._within_nominal():
                if self._take(waiting.pop(0)):
                    return True
                continue
            mine, theirs = self._below_meeting(queue)
            new, old = self._share(mine), self._share(theirs)
            while waiting:
                candidate = waiting.pop(0)
                if strategy(new, old, self._share_without(theirs, candidate)):
                    if self._take(candidate):
                        return True
                    break
                failed.append(candidate)
        if len(strategies) < 2:
            return False
        return self._second(failed)

    def _second(self, failed: Sequence[Candidate]) -> bool:
        order = _Targets(self, failed)
        while (queue := order.next()) is not None:
            mine, theirs = self._below_meeting(queue)
            if self._share(mine) < self._share(theirs) and self._take(order.waiting[queue][0]):
                return True
            order.drop(queue)
        return False

    def _within_nominal(self) -> bool:
        return self.usage[self.claim.queue] <= self.limits.nominal[self.claim.queue]

    def _take(self, candidate: Candidate) -> bool:
        self.world.remove(candidate.holder)
        self.taken.append(candidate.holder)
        self.tree.add(self.limits, self.usage, self.claim.queue, -self.claim.size)
        found = fits(self.world, self.limits, self.claim, borrow=self.claim.may_borrow) is not None
        self.tree.add(self.limits, self.usage, self.claim.queue, self.claim.size)
        return found

    def _share(self, node: int) -> Share:
        return share_of(self.tree, self.world.usage, node)

    def _share_without(self, node: int, candidate: Candidate) -> Share:
        holder = candidate.holder
        self.tree.add(self.limits, self.usage, holder.queue, -holder.size)
        share = self._share(node)
        self.tree.add(self.limits, self.usage, holder.queue, holder.size)
        return share

    def _below_meeting(self, queue: int) -> tuple[int, int]:
        """The two nodes just below the lowest common cohort: the claim's side and the victim's."""
        node = queue
        while self.tree.parent[node] not in self.on_path:
            node = self.tree.parent[node]
        meeting = self.tree.parent[node]
        mine = self.claim.queue
        while self.tree.parent[mine] != meeting:
            mine = self.tree.parent[mine]
        return mine, node


class _Targets:
    """Which queue gives the next victim: down the tree, always to the highest share."""

    def __init__(self, search: _Search, candidates: Sequence[Candidate]) -> None:
        self.search = search
        self.tree = search.tree
        self.waiting: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            self.waiting.setdefault(candidate.holder.queue, []).append(candidate)
        self.rank = {id(c): i for i, c in enumerate(candidates)}
        self.alive = {node for queue in self.waiting for node in (queue, *self.tree.path(queue))}

    def next(self) -> int | None:
        """The queue to take from, or None when nobody is left."""
        own = self.search.claim.queue
        if self.tree.parent[own] < 0:
            return own if self.waiting.get(own) else None
        root = self.tree.root[own]
        while root in self.alive:
            queue = self._descend(root)
            if queue is not None:
                return queue
        return None

    def drop(self, queue: int) -> None:
        """No more victims from this queue."""
        self.alive.discard(queue)

    def _descend(self, cohort: int) -> int | None:
        best_queue, best_cohort = -1, -1
        queue_share, cohort_share = ZERO, ZERO
        usage, limits = self.search.usage, self.search.limits
        for child in self.tree.children[cohort]:
            if child not in self.alive:
                continue
            over = usage[child] > limits.subtree[child]
            if child < len(self.tree.queues):
                if not self.waiting.get(child) or (not over and child != self.search.claim.queue):
                    self.alive.discard(child)
                    continue
                share = self.search._share(child)
                if best_queue < 0 or share > queue_share or (share == queue_share and self._earlier(child, best_queue)):
                    best_queue, queue_share = child, share
            else:
                if not over and child not in self.search.on_path:
                    self.alive.discard(child)
                    continue
                share = self.search._share(child)
                if best_cohort < 0 or share > cohort_share:
                    best_cohort, cohort_share = child, share
        if best_cohort >= 0 and (best_queue < 0 or cohort_share >= queue_share):
            return self._descend(best_cohort)
        if best_queue < 0:
            self.alive.discard(cohort)
            return None
        return best_queue

    def _earlier(self, queue: int, other: int) -> bool:
        return self.rank[id(self.waiting[queue][0])] < self.rank[id(self.waiting[other][0])]


def _final(new: Share, old: Share, after: Share) -> bool:
    return new <= after


def _initial(new: Share, old: Share, after: Share) -> bool:
    return new < old


_STRATEGIES: dict[ShareStrategy, Callable[[Share, Share, Share], bool]] = {
    ShareStrategy.FINAL_SHARE: _final,
    ShareStrategy.INITIAL_SHARE: _initial,
}
