"""Whom fair share lets a job evict: always from the highest share, as long as that brings shares together."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from scheduler.eviction import evictable, own_victims
from scheduler.holders import Holder
from scheduler.quota import TypeLimits
from scheduler.shares import ZERO, Share, share_of
from scheduler.snapshot import Reclaim, ShareStrategy
from scheduler.trial import Claim, Room, Trial
from scheduler.world import World


def find_room_fairly(world: World, claim: Claim) -> Room | None:
    """The victims that fair share allows and that make room for the claim, or None."""
    limits = world.tree.types[claim.gpu_type]
    search = _Search(world, limits, claim)
    search.trial.count_claim()
    found = search.first(world.policy.fair_sharing_strategies)
    room = search.trial.room(borrow=claim.may_borrow) if found else None
    search.trial.undo()
    return room


class _Search:
    """Removes victims until the claim fits. Shares are compared as if the job ran already."""

    def __init__(self, world: World, limits: TypeLimits, claim: Claim) -> None:
        self.world, self.limits, self.claim = world, limits, claim
        self.tree = world.tree
        self.trial = Trial(world, limits, claim)
        self.usage = world.usage[claim.gpu_type]
        self.policy = world.tree.queues[claim.queue].preemption
        self.on_path = set(self.tree.path(claim.queue))
        self.shares: dict[int, Share] = {}
        self.reclaims = self.policy.reclaim_within_cohort != Reclaim.NEVER and bool(self.on_path)

    def first(self, strategies: Sequence[ShareStrategy]) -> bool:
        """Run the first strategy over all candidates, then a second one over those that failed it."""
        order = _Targets(self, self.candidates, self._may_have_victims())
        strategy = _STRATEGIES[strategies[0]] if strategies else _final
        failed: dict[int, list[Holder]] = {}
        while (queue := order.next()) is not None:
            waiting = order.waiting[queue]
            if queue == self.claim.queue or self._within_nominal():
                if self._take(waiting.popleft()):
                    return True
                continue
            mine, theirs = self._below_meeting(queue)
            new, old = self.share(mine), self.share(theirs)
            while waiting:
                holder = waiting.popleft()
                if strategy(new, old, self._share_without(theirs, holder)):
                    if self._take(holder):
                        return True
                    break
                failed.setdefault(queue, []).append(holder)
        return len(strategies) > 1 and self._second(failed)

    def _second(self, failed: dict[int, list[Holder]]) -> bool:
        alive = {node for queue in failed for node in (queue, *self.tree.path(queue))}
        order = _Targets(self, lambda queue: failed.get(queue, ()), alive)
        while (queue := order.next()) is not None:
            mine, theirs = self._below_meeting(queue)
            if self.share(mine) < self.share(theirs) and self._take(order.waiting[queue][0]):
                return True
            order.drop(queue)
        return False

    def candidates(self, queue: int) -> Iterable[Holder]:
        """The queue's jobs that may be evicted for the claim, in order."""
        if queue == self.claim.queue:
            yield from own_victims(self.world, self.policy, self.claim)
            return
        lower = self.policy.reclaim_within_cohort == Reclaim.LOWER_PRIORITY
        for holder in self.world.ordered(queue, self.claim.gpu_type):
            if lower and holder.priority >= self.claim.priority:
                return
            if evictable(self.world, holder):
                yield holder

    def _may_have_victims(self) -> set[int]:
        """The own queue and, if it may reclaim, all nodes of its tree that borrow the type."""
        alive = {self.claim.queue, *self.on_path}
        if self.reclaims:
            todo = [self.tree.root[self.claim.queue]]
            while todo:
                for child in self.tree.children[todo.pop()]:
                    if self.usage[child] > self.limits.subtree[child]:
                        alive.add(child)
                    if child >= len(self.tree.queues) and child in alive:
                        todo.append(child)
        return alive

    def _within_nominal(self) -> bool:
        return self.usage[self.claim.queue] <= self.limits.nominal[self.claim.queue]

    def _take(self, holder: Holder) -> bool:
        self.trial.remove(holder)
        for node in (holder.queue, *self.tree.path(holder.queue)):
            self.shares.pop(node, None)
        return self.trial.fits(borrow=self.claim.may_borrow)

    def share(self, node: int) -> Share:
        """The node's share now, with the claim counted."""
        found = self.shares.get(node)
        if found is None:
            found = self.shares[node] = share_of(self.tree, self.world.usage, node)
        return found

    def _share_without(self, node: int, holder: Holder) -> Share:
        self.tree.add(self.limits, self.usage, holder.queue, -holder.size)
        share = share_of(self.tree, self.world.usage, node)
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

    def __init__(self, search: _Search, source: Callable[[int], Iterable[Holder]], alive: set[int]) -> None:
        self.search = search
        self.tree = search.tree
        self.source = source
        self.alive = alive
        self.waiting: dict[int, deque[Holder]] = {}

    def next(self) -> int | None:
        """The queue to take from, or None when nobody is left."""
        own = self.search.claim.queue
        if self.tree.parent[own] < 0:
            return own if self._line(own) else None
        root = self.tree.root[own]
        while root in self.alive:
            queue = self._descend(root)
            if queue is not None:
                return queue
        return None

    def drop(self, queue: int) -> None:
        """No more victims from this queue."""
        self.alive.discard(queue)

    def _line(self, queue: int) -> deque[Holder]:
        line = self.waiting.get(queue)
        if line is None:
            line = self.waiting[queue] = deque(self.source(queue))
        return line

    def _descend(self, cohort: int) -> int | None:
        best_queue, best_cohort = -1, -1
        queue_share, cohort_share = ZERO, ZERO
        usage, limits = self.search.usage, self.search.limits
        for child in self.tree.children[cohort]:
            if child not in self.alive:
                continue
            over = usage[child] > limits.subtree[child]
            if child < len(self.tree.queues):
                if (not over and child != self.search.claim.queue) or not self._line(child):
                    self.alive.discard(child)
                    continue
                share = self.search.share(child)
                if best_queue < 0 or share > queue_share or (share == queue_share and self._earlier(child, best_queue)):
                    best_queue, queue_share = child, share
            else:
                if not over and child not in self.search.on_path:
                    self.alive.discard(child)
                    continue
                share = self.search.share(child)
                if best_cohort < 0 or share > cohort_share:
                    best_cohort, cohort_share = child, share
        if best_cohort >= 0 and (best_queue < 0 or cohort_share >= queue_share):
            return self._descend(best_cohort)
        if best_queue < 0:
            self.alive.discard(cohort)
            return None
        return best_queue

    def _earlier(self, queue: int, other: int) -> bool:
        return self._key(queue) < self._key(other)

    def _key(self, queue: int) -> tuple[bool, tuple[float, float, float, str]]:
        """Other queues' jobs before the own ones."""
        return (queue == self.search.claim.queue, self.waiting[queue][0].rank)


def _final(new: Share, old: Share, after: Share) -> bool:
    return new <= after


def _initial(new: Share, old: Share, after: Share) -> bool:
    return new < old


_STRATEGIES: dict[ShareStrategy, Callable[[Share, Share, Share], bool]] = {
    ShareStrategy.FINAL_SHARE: _final,
    ShareStrategy.INITIAL_SHARE: _initial,
}
