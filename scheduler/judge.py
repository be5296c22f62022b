"""What a job may do now: start, wait for what is on its way out, evict, or wait."""

from dataclasses import dataclass
from enum import IntEnum

from scheduler.division import find_room_by_division
from scheduler.eviction import find_room, own_victims
from scheduler.fair_share import find_room_fairly
from scheduler.placement import Placement
from scheduler.quota import TypeLimits
from scheduler.requests import JobClass, Request
from scheduler.snapshot import Borrow, Ordering, PreemptionPolicy, Reclaim, WithinQueue
from scheduler.stability import is_stable
from scheduler.trial import Claim, Room
from scheduler.world import World


class Mode(IntEnum):
    """Better is higher."""

    CANNOT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2  # some victims are of the own queue
    RECLAIM = 3  # all victims borrow what others own
    FIT = 4


@dataclass(slots=True, eq=False)
class Verdict:
    """The best that a job can do, on which GPU type."""

    mode: Mode
    gpu_type: str
    # Height of the subtree that it borrows from; 0 is the own queue.
    height: int
    borrows: bool
    placement: Placement
    # It fits with all victims still there: start. Otherwise it is held until they are gone.
    at_once: bool = False
    room: Room | None = None


def judge(world: World, request: Request) -> Verdict:
    """Try the request's GPU types in order and take the best of what they offer."""
    queue = world.tree.queues[request.kind.queue]
    rules = queue.fungibility
    best: Verdict | None = None
    for gpu_type in request.kind.gpu_types:
        limits = world.tree.types.get(gpu_type)
        if limits is None or not limits.listed[request.kind.queue]:
            continue
        if request.kind.size > limits.potential[request.kind.queue]:
            continue
        found = _judge_type(world, limits, request)
        if found.mode == Mode.FIT and (not found.borrows or rules.when_can_borrow == "stop"):
            return found
        if found.mode in (Mode.PREEMPT, Mode.RECLAIM) and rules.when_can_preempt == "stop":
            return found
        if best is None or _rank(found, rules.preference) > _rank(best, rules.preference):
            best = found
    if best is None:
        return Verdict(Mode.CANNOT, request.kind.gpu_types[0], 0, False, [])
    return best


def current_height(world: World, request: Request) -> int:
    """The least borrow height of the request as things are, over its GPU types."""
    kind, tree = request.kind, world.tree
    heights = [
        tree.borrow_height(limits, world.usage[gpu_type], kind.queue, kind.size)[0]
        for gpu_type in kind.gpu_types
        if (limits := tree.types.get(gpu_type)) is not None and limits.listed[kind.queue]
    ]
    return min(heights, default=0)


def least_height(world: World, request: Request) -> int:
    """A lower bound of the borrow height of the request's verdict, found without a search.

    Victims of other queues leave the own queue's use as it is: a queue that borrows still does.
    """
    kind, tree = request.kind, world.tree
    least: int | None = None
    for gpu_type in kind.gpu_types:
        limits = tree.types.get(gpu_type)
        if limits is None or not limits.listed[kind.queue]:
            continue
        over = world.usage[gpu_type][kind.queue] + kind.size - limits.subtree[kind.queue]
        height = 0
        if over > 0 and tree.parent[kind.queue] >= 0:
            policy = tree.queues[kind.queue].preemption
            own = own_victims(world, policy, claim_of(request, gpu_type)) if kind.may_preempt else ()
            height = 0 if sum(holder.size for holder in own) >= over else 1
        least = height if least is None else min(least, height)
    return least or 0


def _rank(verdict: Verdict, preference: str) -> tuple[int, int]:
    if preference == "preempt_first":
        # A height is compared only among those that lead somewhere.
        useful = verdict.mode >= Mode.PREEMPT
        return (-verdict.height if useful else -1_000_000 - verdict.height, verdict.mode)
    return (verdict.mode, -verdict.height)


def claim_of(request: Request, gpu_type: str) -> Claim:
    """The request's claim on one GPU type."""
    kind = request.kind
    return Claim(request.id, kind.queue, gpu_type, kind.shape, kind.priority, request.job.submitted_s, kind.may_borrow)


def _judge_type(world: World, limits: TypeLimits, request: Request) -> Verdict:
    tree, kind = world.tree, request.kind
    usage = world.usage[limits.gpu_type]
    height, below_root = tree.borrow_height(limits, usage, kind.queue, kind.size)
    borrows = usage[kind.queue] + kind.size > limits.subtree[kind.queue]
    if (kind.may_borrow or not borrows) and tree.available(limits, usage, kind.queue) >= kind.size:
        placement = world.find(limits.gpu_type, kind.shape)
        if placement is not None:
            return _fit(world, limits, request, height, borrows, placement)
    policy = tree.queues[kind.queue].preemption
    if not kind.may_preempt or not may_look(world, limits, kind, below_root):
        return Verdict(Mode.CANNOT, limits.gpu_type, height, borrows, [])
    room = _stable_room(world, limits, request, policy)
    if room is None:
        return Verdict(Mode.NO_CANDIDATES, limits.gpu_type, height, borrows, [])
    own = any(victim.queue == kind.queue for victim in room.victims)
    for victim in room.victims:
        world.remove(victim)
    height, _ = tree.borrow_height(limits, usage, kind.queue, kind.size)
    for victim in room.victims:
        world.put_back(victim)
    mode = Mode.PREEMPT if own else Mode.RECLAIM
    return Verdict(mode, limits.gpu_type, height, height > 0, room.placement, room=room)


def _stable_room(world: World, limits: TypeLimits, request: Request, policy: PreemptionPolicy) -> Room | None:
    """Victims for the request, unless they could come back for it. Fruitless searches are remembered.

    A search stays fruitless while nothing changes in the queue's tree and no node's GPUs come free.
    """
    if world.is_calm:
        return None
    kind, job = request.kind, request.job
    by_age = policy.within_queue == WithinQueue.LOWER_OR_NEWER_EQUAL
    key = (kind, limits.gpu_type, job.submitted_s if by_age else None, job.protected_s)
    pool = world.pools.get(limits.gpu_type)
    state = (world.root_version.get(world.tree.root[kind.queue], 0), 0 if pool is None else pool.releases)
    if world.fruitless.get(key) == state:
        return None
    claim = claim_of(request, limits.gpu_type)
    room = look_for_room(world, claim)
    if room is not None and is_stable(world, claim, room, job.protected_s, look_for_room):
        return room
    world.fruitless[key] = state
    return None


def _fit(
    world: World, limits: TypeLimits, request: Request, height: int, borrows: bool, placement: Placement
) -> Verdict:
    kind = request.kind
    at_once = True
    if world.is_split(limits.gpu_type):
        at_once = world.fits_quota(limits, kind.queue, kind.size, present=True)
        now = world.find(limits.gpu_type, kind.shape, present=True) if at_once else None
        at_once = now is not None
        placement = placement if now is None else now
    return Verdict(Mode.FIT, limits.gpu_type, height, borrows, placement, at_once=at_once)


def may_look(world: World, limits: TypeLimits, kind: JobClass, below_root: bool) -> bool:
    """Whether eviction is considered at all for a request that does not fit."""
    policy = world.tree.queues[kind.queue].preemption
    if kind.size <= limits.nominal[kind.queue] or below_root or policy.borrow_within_cohort != Borrow.NEVER:
        return True
    return world.policy.ordering == Ordering.FAIR_SHARE and policy.reclaim_within_cohort != Reclaim.NEVER


def look_for_room(world: World, claim: Claim) -> Room | None:
    """Victims by the rules in force."""
    if world.policy.division:
        return find_room_by_division(world, claim, world.parts.get(claim.gpu_type, {}))
    if world.policy.ordering == Ordering.FAIR_SHARE:
        return find_room_fairly(world, claim)
    return find_room(world, claim)
