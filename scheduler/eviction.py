"""Whom a job may evict, and in which order: the classical rules of quota and priority.

Every search works on the landed view itself and leaves it as it found it.
"""

import heapq
from collections.abc import Iterator, Sequence

from scheduler.holders import Holder
from scheduler.quota import TypeLimits
from scheduler.snapshot import (
    Borrow,
    PreemptionPolicy,
    Reclaim,
    WithinQueue,
)
from scheduler.trial import Claim, Room, Trial
from scheduler.world import World


def evictable(world: World, holder: Holder) -> bool:
    """Whether the holder may be a victim at all now."""
    return holder.protected_until_s <= world.now_s and holder not in world.gone


def own_allowed(policy: PreemptionPolicy, claim: Claim, holder: Holder) -> bool:
    """Whether the claim may evict this job of its own queue."""
    if policy.within_queue == WithinQueue.NEVER:
        return False
    if holder.priority < claim.priority:
        return True
    newer = holder.priority == claim.priority and holder.submitted_s > claim.submitted_s
    return newer and policy.within_queue == WithinQueue.LOWER_OR_NEWER_EQUAL


def reclaim_allowed(policy: PreemptionPolicy, claim: Claim, holder: Holder) -> bool:
    """Whether the claim may evict this job of another queue that borrows."""
    if policy.reclaim_within_cohort == Reclaim.ANY:
        return True
    return policy.reclaim_within_cohort == Reclaim.LOWER_PRIORITY and holder.priority < claim.priority


def find_room(world: World, claim: Claim) -> Room | None:
    """The victims of the classical rules that make room for the claim, or None."""
    limits = world.tree.types[claim.gpu_type]
    search = _Search(world, limits, claim, world.tree.queues[claim.queue].preemption)
    for borrow in search.attempts():
        room = search.run(borrow)
        if room is not None:
            return room
    return None


def own_victims(world: World, policy: PreemptionPolicy, claim: Claim) -> Iterator[Holder]:
    """Candidates of the claim's own queue, in order."""
    if policy.within_queue == WithinQueue.NEVER:
        return
    for holder in world.ordered(claim.queue, claim.gpu_type):
        if holder.priority > claim.priority:
            return
        if evictable(world, holder) and own_allowed(policy, claim, holder):
            yield holder


class _Search:
    """One claim's candidates, read lazily: most plans need few of them."""

    def __init__(self, world: World, limits: TypeLimits, claim: Claim, policy: PreemptionPolicy) -> None:
        self.world, self.limits, self.claim, self.policy = world, limits, claim, policy
        self.usage = world.usage[claim.gpu_type]
        # Queues over their quota with the lowest cohort that holds them and the claim's queue.
        self.structural: list[tuple[int, int]] = []
        self.others: list[tuple[int, int]] = []
        self.borrow_forbidden = policy.borrow_within_cohort == Borrow.NEVER
        self.under_nominal = self.usage[claim.queue] < limits.nominal[claim.queue]
        if policy.reclaim_within_cohort != Reclaim.NEVER:
            self._foreign()

    def attempts(self) -> tuple[bool, ...]:
        """Whether borrowing is allowed, attempt by attempt."""
        if not self.claim.may_borrow:
            return (False,)
        structural = self._has_victims(self.structural)
        foreign = structural or self._has_victims(self.others)
        if not foreign:
            return (True,) if _any(self.own()) else ()
        if self.borrow_forbidden and not self.under_nominal:
            return (True,)
        if self.borrow_forbidden and not structural:
            return (False, True)
        return (True, False)

    def _has_victims(self, queues: Sequence[tuple[int, int]]) -> bool:
        return any(_any(self._of_queue(queue, meeting)) for queue, meeting in queues)

    def run(self, borrow: bool) -> Room | None:
        """Remove victims in order until the claim fits; the view is left as it was found."""
        if not borrow and not self._may_stay_inside():
            return None
        trial = Trial(self.world, self.limits, self.claim)
        room = None
        for holder, meeting in self._candidates(borrow):
            if meeting >= 0 and not self._still_over(holder.queue, meeting):
                continue
            trial.remove(holder)
            if trial.fits(borrow=borrow):
                room = trial.room(borrow=borrow)
                break
        trial.undo()
        return room

    def own(self) -> Iterator[Holder]:
        """Candidates of the own queue, in order."""
        return own_victims(self.world, self.policy, self.claim)

    def of_others(self, queues: Sequence[tuple[int, int]]) -> Iterator[tuple[Holder, int]]:
        """Candidates of these queues, in one order over all, each with its meeting cohort."""
        lines = [self._of_queue(queue, meeting) for queue, meeting in queues]
        if len(lines) == 1:
            return lines[0]
        return heapq.merge(*lines, key=_by_rank)

    def _candidates(self, borrow: bool) -> Iterator[tuple[Holder, int]]:
        """Structural ones, other foreign ones, the own queue's (these have no meeting cohort: -1)."""
        yield from self.of_others(self.structural)
        if not (borrow and self.borrow_forbidden):
            for holder, meeting in self.of_others(self.others):
                if not borrow or self._borrow_ok(holder):
                    yield holder, meeting
        for holder in self.own():
            yield holder, -1

    def _of_queue(self, queue: int, meeting: int) -> Iterator[tuple[Holder, int]]:
        lower = self.policy.reclaim_within_cohort == Reclaim.LOWER_PRIORITY
        for holder in self.world.ordered(queue, self.claim.gpu_type):
            if lower and holder.priority >= self.claim.priority:
                return
            if evictable(self.world, holder):
                yield holder, meeting

    def _foreign(self) -> None:
        """Queues over their quota, from the nearest cohort outwards."""
        claim, usage, limits = self.claim, self.usage, self.limits
        rest = claim.size
        structural = False
        below = claim.queue
        for cohort in self.world.tree.path(claim.queue):
            # Once a subtree with the claim and without the victim holds the rest, the claim has the older right.
            structural = structural or usage[below] + rest <= limits.subtree[below]
            rest = max(0, rest - max(0, limits.local[below] - usage[below]))
            kept = self.structural if structural else self.others
            # Without that right, and borrowing, nobody of another queue may be evicted.
            if structural or not self.borrow_forbidden or self.under_nominal:
                kept.extend((queue, cohort) for queue in self._over_quota(cohort, below))
            below = cohort

    def _over_quota(self, cohort: int, skip: int) -> Iterator[int]:
        """Queues below the cohort, outside `skip`, that are over their quota together with all between."""
        usage, subtree, num_queues = self.usage, self.limits.subtree, len(self.world.tree.queues)
        for child in self.world.tree.children[cohort]:
            if usage[child] > subtree[child] and child != skip:
                if child < num_queues:
                    yield child
                else:
                    yield from self._over_quota(child, skip)

    def _borrow_ok(self, holder: Holder) -> bool:
        if self.borrow_forbidden or holder.priority >= self.claim.priority:
            return False
        most = self.policy.max_priority_threshold
        return most is None or holder.priority <= most

    def _still_over(self, node: int, meeting: int) -> bool:
        """Whether the victim's queue, and each cohort up to the meeting point, still uses more than its own."""
        while node != meeting:
            if self.usage[node] <= self.limits.subtree[node]:
                return False
            node = self.world.tree.parent[node]
        return True

    def _may_stay_inside(self) -> bool:
        """Whether the queue could hold the claim in its own quota if all its candidates left."""
        over = self.usage[self.claim.queue] + self.claim.size - self.limits.subtree[self.claim.queue]
        return over <= 0 or over <= sum(holder.size for holder in self.own())


def _any(items: Iterator[object]) -> bool:
    return next(items, None) is not None


def _by_rank(pair: tuple[Holder, int]) -> tuple[float, float, float, str]:
    return pair[0].rank
