"""Plans that would be undone at once are not used.

Published arguments show that one victim cannot return; two victims of one queue can (and then the
preemptor evicts them again, without end). So each plan is tried: could its victims, resubmitted,
evict the job for which they left?
"""

from collections.abc import Callable

from scheduler.eviction import own_allowed, reclaim_allowed
from scheduler.holders import Holder
from scheduler.shapes import Shape, shape_of
from scheduler.snapshot import Ordering
from scheduler.trial import Claim, Room
from scheduler.world import World

Search = Callable[[World, Claim], Room | None]


def is_stable(world: World, claim: Claim, room: Room, protected_s: float, search: Search) -> bool:
    """Whether no victim, alone or after the others have come back, could evict the claim's job."""
    if world.policy.ordering != Ordering.FAIR_SHARE:
        return True
    if max(world.policy.min_runtime_s, protected_s) >= world.policy.stable_after_s:
        return True
    intruder = _as_holder(world, claim, room)
    returning = [back for victim in room.victims if (back := _resubmitted(world, victim)) is not None]
    if not any(_may_target(world, back, intruder) for back in returning):
        return True
    for victim in room.victims:
        world.remove(victim)
        world.gone.add(victim)
    world.admit(intruder)
    came_back: list[Holder] = []
    try:
        alone = all(not _evicts(world, back, intruder, search) for back in returning)
        return alone and _together(world, returning, intruder, search, came_back)
    finally:
        for holder in reversed(came_back):
            world.remove(holder)
        world.expel(intruder)
        for victim in room.victims:
            world.gone.discard(victim)
            world.put_back(victim)


def _together(
    world: World,
    returning: list[Claim],
    intruder: Holder,
    search: Search,
    came_back: list[Holder],
) -> bool:
    """Let the victims come back one after the other, each where it fits."""
    for back in sorted(returning, key=lambda c: (-c.priority, c.submitted_s, c.id)):
        limits = world.tree.types[back.gpu_type]
        if world.fits_quota(limits, back.queue, back.size):
            placement = world.find(back.gpu_type, back.shape)
            if placement is not None:
                holder = _as_holder(world, back, Room([], placement))
                world.put_back(holder)
                came_back.append(holder)
                continue
        if _evicts(world, back, intruder, search):
            return False
    return True


def _evicts(world: World, back: Claim, intruder: Holder, search: Search) -> bool:
    if not _may_target(world, back, intruder):
        return False
    limits = world.tree.types[back.gpu_type]
    if world.fits_quota(limits, back.queue, back.size) and world.find(back.gpu_type, back.shape) is not None:
        return False
    room = search(world, back)
    return room is not None and intruder in room.victims


def _may_target(world: World, back: Claim, intruder: Holder) -> bool:
    policy = world.tree.queues[back.queue].preemption
    if back.queue == intruder.queue:
        return own_allowed(policy, back, intruder)
    return reclaim_allowed(policy, back, intruder)


def _resubmitted(world: World, victim: Holder) -> Claim | None:
    """The victim as a job that waits again, with the age it had."""
    if victim.job is None or victim.queue < 0 or victim.is_surplus:
        return None
    shape = victim.shape or shape_of(victim.job, world.levels)
    if not isinstance(shape, Shape):
        return None
    victim.shape = shape
    return Claim(victim.id, victim.queue, victim.gpu_type, shape, victim.priority, victim.submitted_s)


def _as_holder(world: World, claim: Claim, room: Room) -> Holder:
    return Holder(
        id=claim.id,
        queue=claim.queue,
        gpu_type=claim.gpu_type,
        size=claim.size,
        priority=claim.priority,
        submitted_s=claim.submitted_s,
        started_s=world.now_s,
        placement=room.placement,
        protected_until_s=float("-inf"),
        rank=(claim.priority, 0.0, -world.now_s, claim.id),
        shape=claim.shape,
    )
