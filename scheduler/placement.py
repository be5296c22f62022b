"""Where a gang goes: whole or not at all, few racks before few nodes, small gaps before empty nodes."""

from dataclasses import dataclass

import numpy as np

from scheduler.nodes import Ints, Pool
from scheduler.shapes import Shape
from scheduler.snapshot import PlacementRule

# Pairs of node number and GPUs on it.
Placement = list[tuple[int, int]]
_NEVER = np.iinfo(np.int64).max
_SHORT = np.iinfo(np.int16).max


@dataclass(slots=True)
class Capacity:
    """How much of a shape each domain holds.

    `units[l]` counts whole workers, or at the finest slice level and above whole slices; `left[l]`
    the free GPUs that they leave over. `ratio` is workers per slice, `slice_level` where they begin.
    """

    units: list[Ints]
    left: list[Ints]
    ratio: int
    slice_level: int
    amount: int


def capacity(pool: Pool, free: Ints, shape: Shape) -> Capacity:
    """Whole workers and slices per domain of every level, of what is free."""
    usable = pool.usable(free, shape)
    node_level = len(pool.starts) - 1
    workers = (usable >= shape.worker).astype(np.int64) if shape.spread else usable // shape.worker
    sizes = dict(shape.slices)
    slice_level, ratio = shape.slices[-1] if shape.slices else (node_level + 1, 1)
    units: list[Ints] = []
    left: list[Ints] = []
    here, gpus = workers, usable
    for level in range(node_level, -1, -1):
        if level < node_level:
            here = np.add.reduceat(here, pool.inner[level])
            gpus = np.add.reduceat(gpus, pool.inner[level])
        if level == slice_level:
            here = here // ratio
        elif level in sizes:
            step = sizes[level] // ratio
            here = here // step * step
        units.append(here)
        per_unit = shape.worker * (ratio if level <= slice_level else 1)
        left.append(gpus - here * per_unit)
    return Capacity(units[::-1], left[::-1], ratio, slice_level, shape.num_workers // ratio)


def place(pool: Pool, free: Ints, shape: Shape, rule: PlacementRule) -> Placement | None:
    """Nodes and GPUs for every worker of the gang, or None: half a gang would hold GPUs that no step can use."""
    if not pool.names:
        return None
    if shape.required is None and shape.preferred is None and not shape.slices:
        return _place_anywhere(pool, free, shape, rule)
    cap = capacity(pool, free, shape)
    if rule == PlacementRule.BALANCED:
        return _place_balanced(pool, cap, shape)
    found = _top(cap, shape, rule)
    if found is None:
        return None
    level, chosen = found
    out: Placement = []
    for domain, amount in chosen:
        _descend(pool, cap, shape, rule, level, domain, amount, out)
    return sorted(out)


def fits_somewhere(pool: Pool, free: Ints, shape: Shape) -> bool:
    """Whether the workers fit when the topology wish is left aside."""
    usable = pool.usable(free, shape)
    workers = (usable >= shape.worker) if shape.spread else usable // shape.worker
    return int(workers.sum()) >= shape.num_workers


def _place_anywhere(pool: Pool, free: Ints, shape: Shape, rule: PlacementRule) -> Placement | None:
    mask = pool.mask(shape.excluded) if shape.excluded else None
    if mask is not None:
        free = np.where(mask, 0, free)
    if rule == PlacementRule.BEST_FIT:
        if shape.spread:
            return _place_spread(free, shape)
        # Least free is least whole workers, and of these least left over.
        one = np.where(free >= shape.size, free, _NEVER)
        best = int(one.argmin())
        if one[best] != _NEVER:
            return [(best, shape.size)]
        if shape.num_workers == 1:
            return None
    usable = np.maximum(free, 0)
    if shape.worker == 1 and not shape.spread:
        units, left = usable, None
    elif shape.spread:
        units = (usable >= shape.worker).astype(np.int64)
        left = usable - units * shape.worker
    else:
        units = usable // shape.worker
        left = usable - units * shape.worker
    if rule == PlacementRule.BALANCED:
        chosen = _balance(units, shape.num_workers)
    else:
        chosen = _pick(units, left, shape.num_workers, rule)
    if chosen is None:
        return None
    return sorted((node, amount * shape.worker) for node, amount in chosen)


def _place_spread(free: Ints, shape: Shape) -> Placement | None:
    """Distinct nodes with room for one worker each: those that keep least free beside it."""
    able = np.flatnonzero(free >= shape.worker)
    if len(able) < shape.num_workers:
        return None
    if len(able) > shape.num_workers:
        left = free[able] - shape.worker
        # Short integers are sorted by radix, in one sweep.
        short = left.astype(np.int16) if int(left.max()) < _SHORT else left
        able = np.sort(able[np.argsort(short, kind="stable")[: shape.num_workers]])
    return [(node, shape.worker) for node in able.tolist()]


def _top(cap: Capacity, shape: Shape, rule: PlacementRule) -> tuple[int, Placement] | None:
    """The level at which the gang is held, and how much goes to which of its domains."""
    if shape.required is not None:
        one = _pick_one(cap.units[shape.required], cap.left[shape.required], cap.amount)
        return None if one is None else (shape.required, [(one, cap.amount)])
    if shape.preferred is not None:
        for level in range(shape.preferred, -1, -1):
            one = _pick_one(cap.units[level], cap.left[level], cap.amount)
            if one is not None:
                return level, [(one, cap.amount)]
        level = 0
    else:
        level = shape.slices[0][0]
    chosen = _pick(cap.units[level], cap.left[level], cap.amount, rule)
    return None if chosen is None else (level, chosen)


def _descend(
    pool: Pool,
    cap: Capacity,
    shape: Shape,
    rule: PlacementRule,
    level: int,
    domain: int,
    amount: int,
    out: Placement,
) -> None:
    """Divide what a domain got among the domains inside it, down to the nodes."""
    if level == cap.slice_level:
        amount *= cap.ratio
    if level == len(pool.starts) - 1:
        out.append((domain, amount * shape.worker))
        return
    first = int(pool.inner[level][domain])
    last = int(pool.inner[level][domain + 1]) if domain + 1 < len(pool.inner[level]) else len(cap.units[level + 1])
    inside = _pick(cap.units[level + 1][first:last], cap.left[level + 1][first:last], amount, rule)
    assert inside is not None, "a domain holds what its parts hold"
    for child, part in inside:
        _descend(pool, cap, shape, rule, level + 1, first + child, part, out)


def _pick_one(units: Ints, left: Ints | None, amount: int) -> int | None:
    """The domain with least capacity that still holds everything; then least left over; then by name."""
    key = np.where(units >= amount, units, _NEVER)
    best = int(key.argmin())
    least = int(key[best])
    if least == _NEVER:
        return None
    if left is None:
        return best
    # Of those with the least capacity, the one that leaves least over.
    return int(np.where(key == least, left, _NEVER).argmin())


def _pick(units: Ints, left: Ints | None, amount: int, rule: PlacementRule) -> Placement | None:
    """Which domains take how much; None when all of them together hold too little."""
    if rule == PlacementRule.LEAST_FREE:
        return _fill_ascending(units, left, amount)
    one = _pick_one(units, left, amount)
    if one is not None:
        return [(one, amount)]
    if int(units.sum()) < amount:
        return None
    # The largest are filled until one of the rest holds what remains.
    order = np.argsort(-units, kind="stable") if left is None else np.lexsort((left, -units))
    sizes = units[order]
    remains = amount - np.cumsum(sizes)
    following = np.append(sizes[1:], 0)
    enough = int(np.argmax((remains <= 0) | (remains <= following)))
    taken = [(int(order[i]), int(sizes[i])) for i in range(enough + 1)]
    rest = int(remains[enough])
    if rest > 0:
        unused = np.sort(order[enough + 1 :])
        last = _pick_one(units[unused], None if left is None else left[unused], rest)
        assert last is not None, "the next largest domain holds the rest"
        taken.append((int(unused[last]), rest))
    return taken


def _fill_ascending(units: Ints, left: Ints | None, amount: int) -> Placement | None:
    if int(units.sum()) < amount:
        return None
    order = np.argsort(units, kind="stable") if left is None else np.lexsort((left, units))
    taken: Placement = []
    for domain in order[np.searchsorted(units[order], 1) :]:
        part = min(amount, int(units[domain]))
        taken.append((int(domain), part))
        amount -= part
        if amount == 0:
            break
    return taken


def _balance(units: Ints, amount: int) -> Placement | None:
    """The fewest domains that hold everything, as evenly loaded as they can be."""
    if int(units.sum()) < amount:
        return None
    order = np.argsort(-units, kind="stable")
    few = int(np.searchsorted(np.cumsum(units[order]), amount)) + 1
    taken: Placement = []
    # The smallest first: what it cannot take is divided among the larger ones.
    for position in range(few - 1, -1, -1):
        part = min(int(units[order[position]]), amount // (position + 1))
        taken.append((int(order[position]), part))
        amount -= part
    return taken


def _place_balanced(pool: Pool, cap: Capacity, shape: Shape) -> Placement | None:
    """Inside the smallest domain that holds the gang, nodes as evenly loaded as possible.

    Of several such domains the one whose nodes' loads differ least, then the one with fewest nodes.
    Slices are kept whole by dividing slices, not workers, among the domains of their level.
    """
    leaf = min(cap.slice_level, len(pool.starts) - 1)
    if shape.required is not None:
        levels = [shape.required]
    else:
        levels = list(range(shape.preferred if shape.preferred is not None else leaf, -1, -1))
    for level in levels:
        options: list[tuple[int, int, int, Placement]] = []
        for domain in np.flatnonzero(cap.units[level] >= cap.amount):
            first, last = _leaves(pool, level, int(domain), max(level, leaf), len(cap.units[max(level, leaf)]))
            chosen = _balance(cap.units[max(level, leaf)][first:last], cap.amount)
            if chosen is not None:
                loads = [part for _, part in chosen]
                moved = [(first + at, part) for at, part in chosen]
                options.append((max(loads) - min(loads), len(loads), int(domain), moved))
        if options:
            return _settle(pool, cap, shape, max(level, leaf), min(options)[3])
    if shape.required is not None:
        return None
    chosen = _balance(cap.units[leaf], cap.amount)
    return None if chosen is None else _settle(pool, cap, shape, leaf, chosen)


def _leaves(pool: Pool, level: int, domain: int, leaf: int, num_leaves: int) -> tuple[int, int]:
    first, last = domain, domain + 1
    for below in range(level, leaf):
        starts = pool.inner[below]
        first = int(starts[first])
        if last < len(starts):
            last = int(starts[last])
        else:
            last = num_leaves if below + 1 == leaf else len(pool.inner[below + 1])
    return first, last


def _settle(pool: Pool, cap: Capacity, shape: Shape, level: int, chosen: Placement) -> Placement:
    out: Placement = []
    for domain, amount in chosen:
        _descend(pool, cap, shape, PlacementRule.BEST_FIT, level, domain, amount, out)
    return sorted(out)
