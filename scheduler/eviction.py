"""Whom a job may evict, and in which order: the classical rules of quota and priority.

Every search works on the landed view itself and leaves it as it found it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduler.placement import Placement
from scheduler.quota import TypeLimits
from scheduler.shapes import Shape
from scheduler.snapshot import (
    Borrow,
    PreemptionPolicy,
    Reclaim,
    VictimOrder,
    WithinQueue,
)
from scheduler.world import Holder, World


@dataclass(slots=True, eq=False)
class Claim:
    """A job that looks for room on one GPU type."""

    id: str
    queue: int
    gpu_type: str
    shape: Shape
    priority: int
    submitted_s: float
    may_borrow: bool = True

    @property
    def size(self) -> int:
        """GPUs of the whole job."""
        return self.shape.size


@dataclass(slots=True, eq=False)
class Candidate:
    """A possible victim. `group`: 0 structural, 1 another queue's, 2 the own queue's."""

    holder: Holder
    group: int
    # May be evicted for a job that borrows.
    borrow_ok: bool
    # The lowest cohort that holds both queues.
    meeting: int


@dataclass(slots=True, eq=False)
class Room:
    """Victims whose leaving makes room, and where the job will then be."""

    victims: list[Holder]
    placement: Placement


def evictable(world: World, holder: Holder) -> bool:
    """Whether the holder may be a victim at all now."""
    return not holder.leaving and holder.protected_until_s <= world.now_s


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


def fits(world: World, limits: TypeLimits, claim: Claim, *, borrow: bool) -> Placement | None:
    """A placement on the landed view if quota and nodes hold the claim, else None."""
    usage = world.usage[claim.gpu_type]
    if not borrow and world.tree.borrows_with(limits, usage, claim.queue, claim.size):
        return None
    if world.tree.available(limits, usage, claim.queue) < claim.size:
        return None
    return world.find(claim.gpu_type, claim.shape)


def sort_key(world: World, candidate: Candidate) -> tuple[object, ...]:
    """Structural, other foreign, own; lower priority; then newest (or least lost); then id."""
    holder = candidate.holder
    lost = holder.lost_gpu_s if world.policy.victim_order == VictimOrder.LEAST_LOST else 0.0
    return (candidate.group, holder.priority, lost, -holder.started_s, holder.id)


def find_room(world: World, claim: Claim) -> Room | None:
    """The victims of the classical rules that make room for the claim, or None."""
    limits = world.tree.types[claim.gpu_type]
    policy = world.tree.queues[claim.queue].preemption
    candidates = [*_own(world, policy, claim), *_foreign(world, limits, policy, claim)]
    if not candidates:
        return None
    candidates.sort(key=lambda c: sort_key(world, c))
    world.split(claim.gpu_type)
    for borrow in _attempts(world, limits, policy, claim, candidates):
        if borrow and not claim.may_borrow:
            continue
        room = _attempt(world, limits, claim, candidates, borrow)
        if room is not None:
            return room
    return None


def _attempts(
    world: World, limits: TypeLimits, policy: PreemptionPolicy, claim: Claim, candidates: Sequence[Candidate]
) -> tuple[bool, ...]:
    """Whether borrowing is allowed, attempt by attempt."""
    if not claim.may_borrow:
        return (False,)
    forbidden = policy.borrow_within_cohort == Borrow.NEVER
    under = world.usage[claim.gpu_type][claim.queue] < limits.nominal[claim.queue]
    if all(c.group == 2 for c in candidates) or (forbidden and not under):
        return (True,)
    if forbidden and not any(c.group == 0 for c in candidates):
        return (False, True)
    return (True, False)


def _own(world: World, policy: PreemptionPolicy, claim: Claim) -> Iterator[Candidate]:
    if policy.within_queue == WithinQueue.NEVER:
        return
    for holder in world.holders.get((claim.queue, claim.gpu_type), ()):
        if evictable(world, holder) and own_allowed(policy, claim, holder):
            yield Candidate(holder, 2, True, -1)


def _foreign(world: World, limits: TypeLimits, policy: PreemptionPolicy, claim: Claim) -> Iterator[Candidate]:
    """Jobs of queues over their quota, from the nearest cohort outwards."""
    tree, usage = world.tree, world.usage[claim.gpu_type]
    if policy.reclaim_within_cohort == Reclaim.NEVER:
        return
    rest = claim.size
    structural = False
    below = claim.queue
    for cohort in tree.path(claim.queue):
        # Once a subtree with the claim and without the victim holds the rest, the claim has the older right.
        structural = structural or usage[below] + rest <= limits.subtree[below]
        rest = max(0, rest - max(0, limits.local[below] - usage[below]))
        for queue in _over_quota(world, limits, cohort, below):
            for holder in world.holders.get((queue, claim.gpu_type), ()):
                if evictable(world, holder) and reclaim_allowed(policy, claim, holder):
                    borrow_ok = structural or _borrow_ok(policy, claim, holder)
                    yield Candidate(holder, 0 if structural else 1, borrow_ok, cohort)
        below = cohort


def _over_quota(world: World, limits: TypeLimits, cohort: int, skip: int) -> Iterator[int]:
    """Queues below the cohort, outside `skip`, that are over their quota together with all between."""
    tree, usage = world.tree, world.usage[limits.gpu_type]
    for child in tree.children[cohort]:
        if child == skip or usage[child] <= limits.subtree[child]:
            continue
        if child < len(tree.queues):
            yield child
        else:
            yield from _over_quota(world, limits, child, skip)


def _borrow_ok(policy: PreemptionPolicy, claim: Claim, holder: Holder) -> bool:
    if policy.borrow_within_cohort != Borrow.LOWER_PRIORITY or holder.priority >= claim.priority:
        return False
    most = policy.max_priority_threshold
    return most is None or holder.priority <= most


def _still_over(world: World, limits: TypeLimits, candidate: Candidate) -> bool:
    """Whether the victim's queue, and each cohort up to the meeting point, still uses more than its own."""
    usage = world.usage[limits.gpu_type]
    node = candidate.holder.queue
    while node != candidate.meeting:
        if usage[node] <= limits.subtree[node]:
            return False
        node = world.tree.parent[node]
    return True


def _attempt(
    world: World, limits: TypeLimits, claim: Claim, candidates: Sequence[Candidate], borrow: bool
) -> Room | None:
    taken: list[Holder] = []
    room = None
    for candidate in candidates:
        if candidate.group != 2:
            if borrow and not candidate.borrow_ok:
                continue
            if not _still_over(world, limits, candidate):
                continue
        world.remove(candidate.holder)
        taken.append(candidate.holder)
        placement = fits(world, limits, claim, borrow=borrow)
        if placement is not None:
            room = give_back(world, limits, claim, taken, placement, borrow=borrow)
            break
    for holder in taken if room is None else room.victims:
        world.put_back(holder)
    return room


def give_back(
    world: World, limits: TypeLimits, claim: Claim, taken: list[Holder], placement: Placement, *, borrow: bool
) -> Room:
    """Walk back, newest victim first, and put back each (but the last) whose return still leaves room."""
    kept = taken[-1:]
    for holder in reversed(taken[:-1]):
        world.put_back(holder)
        still = fits(world, limits, claim, borrow=borrow)
        if still is None:
            world.remove(holder)
            kept.append(holder)
        else:
            placement = still
    return Room(kept[::-1], placement)
