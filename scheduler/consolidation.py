"""Moving running jobs together, so that a waiting one fits on the nodes that come free."""

from dataclasses import dataclass

from scheduler.eviction import evictable
from scheduler.holders import Holder
from scheduler.nodes import Ints
from scheduler.placement import Placement, place
from scheduler.shapes import Shape, shape_of
from scheduler.trial import Claim
from scheduler.world import World

# A move costs a restart from a checkpoint: more of them for one job are not worth it.
MAX_MOVES = 4


@dataclass(slots=True, eq=False)
class Moves:
    """Where each moved job goes, and the waiting one then."""

    moved: list[tuple[Holder, Placement]]
    placement: Placement


def find_moves(world: World, claim: Claim) -> Moves | None:
    """The fewest moves (tried smallest jobs first) after which the claim fits the free GPUs, or None.

    Each moved job goes to GPUs that are free now, so that it need not wait for others to leave.
    """
    pool = world.pools.get(claim.gpu_type)
    if pool is None or int(pool.usable(pool.present, claim.shape).sum()) < claim.size:
        return None
    movable = [
        holder
        for (_, gpu_type), holders in sorted(world.holders.items())
        if gpu_type == claim.gpu_type
        for holder in holders
        if evictable(world, holder) and not holder.is_surplus and holder.placement and _shape(world, holder)
    ]
    movable.sort(key=lambda h: (h.size, h.rank))
    for holder in movable:
        found = _move(world, claim, pool.present.copy(), [holder])
        if found is not None:
            return found
    chosen: list[Holder] = []
    for holder in movable[:MAX_MOVES]:
        chosen.append(holder)
        found = _move(world, claim, pool.present.copy(), chosen) if len(chosen) > 1 else None
        if found is not None:
            return found
    return None


def _move(world: World, claim: Claim, free: Ints, holders: list[Holder]) -> Moves | None:
    """Put the claim where the holders were, and the holders elsewhere; None if that does not work out."""
    rule = world.policy.placement
    pool = world.pools[claim.gpu_type]
    before = free.copy()
    for holder in holders:
        for node, gpus in holder.placement:
            free[node] += gpus
    placement = place(pool, free, claim.shape, rule)
    if placement is None:
        return None
    # What a moved job leaves is busy until it has moved: only GPUs free from the start take it in.
    for node, gpus in placement:
        before[node] -= max(0, gpus - int(free[node] - before[node]))
    moved: list[tuple[Holder, Placement]] = []
    for holder in holders:
        shape = _shape(world, holder)
        target = place(pool, before, shape, rule) if shape is not None else None
        if target is None:
            return None
        for node, gpus in target:
            before[node] -= gpus
        moved.append((holder, target))
    return Moves(moved, placement)


def _shape(world: World, holder: Holder) -> Shape | None:
    if holder.shape is None and holder.job is not None:
        shape = shape_of(holder.job, world.levels)
        holder.shape = shape if isinstance(shape, Shape) and shape.size == holder.size else None
    return holder.shape
