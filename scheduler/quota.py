"""Quota trees: what a queue may use, lend and borrow, per GPU type.

Queues and cohorts are numbered; a tree holds what never changes in a pass, and use is a plain list
of GPUs per number, so that a trial is an addition and its undoing a subtraction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from scheduler.snapshot import Cohort, Limit, Queue

Usage = list[int]
# No organisation has more levels; longer chains are mistakes.
MAX_LEVELS = 50


@dataclass(slots=True)
class TypeLimits:
    """Limits of one GPU type, by node number.

    `subtree` is what a node and all below it own, `local` the part of it that the parent never
    sees, `potential` the most that could ever be used at the node.
    """

    gpu_type: str
    listed: list[bool]
    nominal: list[int]
    borrow: list[int | None]
    subtree: list[int]
    local: list[int]
    potential: list[int]


@dataclass(slots=True)
class QuotaTree:
    """All queues and cohorts. Queues come first in the numbering; a root has parent -1."""

    names: list[str]
    queues: list[Queue]
    parent: list[int]
    weight: list[Fraction]
    height: list[int]
    root: list[int]
    # The way down to each node, from its root to itself.
    down: list[tuple[int, ...]]
    children: list[list[int]]
    queue_number: dict[str, int]
    types: dict[str, TypeLimits]
    # Queues whose cohorts form a cycle: nothing can be decided for them.
    broken: set[int]
    problems: list[str] = field(default_factory=list)

    def path(self, node: int) -> Sequence[int]:
        """The cohorts above the node, nearest first."""
        return self.down[node][-2::-1]

    def add(self, limits: TypeLimits, usage: Usage, node: int, amount: int) -> None:
        """Add GPUs (or take them away: a negative amount) at the node and where they show above it."""
        parent, local = self.parent, limits.local
        while amount:
            old = usage[node]
            new = old + amount
            usage[node] = new
            above = parent[node]
            if above < 0:
                return
            kept = local[node]
            amount = (new - kept if new > kept else 0) - (old - kept if old > kept else 0)
            node = above

    def available(self, limits: TypeLimits, usage: Usage, node: int) -> int:
        """GPUs that the node could take now, with what it may borrow; negative when over its limits."""
        path = self.down[node]
        root = path[0]
        lent = limits.subtree[root] - usage[root]
        for below in path[1:]:
            spare = limits.local[below] - usage[below]
            most = limits.borrow[below]
            if most is not None:
                limit = limits.subtree[below] - limits.local[below] + most
                if spare < 0:
                    limit += spare
                if limit < lent:
                    lent = limit
            if spare > 0:
                lent += spare
        return lent

    def borrows_with(self, limits: TypeLimits, usage: Usage, node: int, amount: int) -> bool:
        """Whether the node would use more than its subtree owns."""
        return usage[node] + amount > limits.subtree[node]

    def borrow_height(self, limits: TypeLimits, usage: Usage, queue: int, amount: int) -> tuple[int, bool]:
        """Height of the lowest subtree that holds the request in its own quota, and whether it is below a root.

        0 is the queue itself. When even the root does not, its height.
        """
        parent, subtree, local = self.parent, limits.subtree, limits.local
        if usage[queue] + amount <= subtree[queue] or parent[queue] < 0:
            return 0, parent[queue] >= 0
        node = queue
        while True:
            free = local[node] - usage[node]
            if free > 0:
                amount -= free
            node = parent[node]
            above = parent[node]
            if usage[node] + amount <= subtree[node]:
                return self.height[node], above >= 0
            if above < 0:
                return self.height[node], False


def tree_build(queues: Sequence[Queue], cohorts: Sequence[Cohort]) -> QuotaTree:
    """Number the queues and cohorts and compute their limits; faults become sentences, never errors."""
    problems: list[str] = []
    by_name: dict[str, Queue] = {}
    for queue in queues:
        if queue.name in by_name:
            problems.append(f"Queue {queue.name} is listed twice; the first one counts.")
        by_name.setdefault(queue.name, queue)
    listed: dict[str, Cohort] = {}
    for cohort in cohorts:
        if cohort.name in listed:
            problems.append(f"Cohort {cohort.name} is listed twice; the first one counts.")
        listed.setdefault(cohort.name, cohort)
    # A cohort that is named but not listed exists, with no quota and no parent.
    for named in [*(q.cohort for q in by_name.values()), *(c.parent for c in list(listed.values()))]:
        if named is not None and named not in listed:
            listed[named] = Cohort(named)
    kept = list(by_name.values())
    num_queues = len(kept)
    number = {name: num_queues + i for i, name in enumerate(listed)}
    above = [q.cohort for q in kept] + [c.parent for c in listed.values()]
    parent = [number[name] if name is not None else -1 for name in above]
    cyclic = _cut_cycles(parent)
    names = [q.name for q in kept] + list(listed)
    if cyclic:
        told = sorted({names[n] for n in cyclic if n >= num_queues})
        problems.append(f"Cohorts {', '.join(told)} are above themselves, or too many; their queues are not served.")
    items: list[Queue | Cohort] = [*kept, *listed.values()]
    children: list[list[int]] = [[] for _ in items]
    for node, up in enumerate(parent):
        if up >= 0:
            children[up].append(node)
    order = _bottom_up(parent, children)
    height, root = [0] * len(items), list(range(len(items)))
    down: list[tuple[int, ...]] = [(node,) for node in range(len(items))]
    for node in order:
        if node >= num_queues:
            height[node] = 1 + max((height[c] for c in children[node]), default=0)
    for node in reversed(order):
        if parent[node] >= 0:
            root[node] = root[parent[node]]
            down[node] = (*down[parent[node]], node)
    weights = [_weight(item, problems) for item in items]
    gpu_types = sorted({t for item in items for t in item.quota})
    types = {t: _limits(t, items, num_queues, parent, children, order, problems) for t in gpu_types}
    return QuotaTree(
        names=names,
        queues=kept,
        parent=parent,
        weight=weights,
        height=height,
        root=root,
        down=down,
        children=children,
        queue_number={q.name: i for i, q in enumerate(kept)},
        types=types,
        broken={n for n in cyclic if n < num_queues},
        problems=problems,
    )


def _cut_cycles(parent: list[int]) -> set[int]:
    """Nodes whose path upwards never ends, or is absurdly long; each is made a root of its own."""
    bad: set[int] = set()
    for start in range(len(parent)):
        seen: list[int] = []
        mark: set[int] = set()
        node = start
        while node >= 0 and node not in bad and node not in mark and len(seen) <= MAX_LEVELS:
            seen.append(node)
            mark.add(node)
            node = parent[node]
        if node >= 0:
            bad.update(seen)
    for node in bad:
        parent[node] = -1
    return bad


def _bottom_up(parent: list[int], children: list[list[int]]) -> list[int]:
    order = [node for node, up in enumerate(parent) if up < 0]
    for node in order:  # the list grows while it is read: parents before children
        order.extend(children[node])
    return order[::-1]


def _weight(item: Queue | Cohort, problems: list[str]) -> Fraction:
    try:
        weight = Fraction(item.weight)
    except (ValueError, OverflowError):
        problems.append(f"The weight of {item.name} is no number; 1 is used.")
        return Fraction(1)
    if weight < 0:
        problems.append(f"The weight of {item.name} is negative; 0 is used.")
        return Fraction(0)
    return weight


def _limits(
    gpu_type: str,
    items: Sequence[Queue | Cohort],
    num_queues: int,
    parent: list[int],
    children: list[list[int]],
    order: list[int],
    problems: list[str],
) -> TypeLimits:
    size = len(items)
    out = TypeLimits(gpu_type, [False] * size, [0] * size, [None] * size, [0] * size, [0] * size, [0] * size)
    for node in order:
        limit = items[node].quota.get(gpu_type)
        own = Limit(0) if limit is None else _sane(items[node].name, gpu_type, limit, problems)
        out.listed[node] = limit is not None
        out.nominal[node] = own.nominal
        out.borrow[node] = own.borrow_limit
        out.subtree[node] = own.nominal + sum(out.subtree[c] - out.local[c] for c in children[node])
        if own.lend_limit is not None and parent[node] >= 0:
            out.local[node] = max(0, out.subtree[node] - own.lend_limit)
        if node < num_queues and parent[node] < 0 and own.borrow_limit:
            problems.append(f"Queue {items[node].name} may borrow {gpu_type} but is in no cohort to borrow from.")
    for node in reversed(order):
        up = parent[node]
        if up < 0:
            out.potential[node] = out.subtree[node]
            continue
        most = out.local[node] + out.potential[up]
        borrow = out.borrow[node]
        out.potential[node] = most if borrow is None else min(most, out.subtree[node] + borrow)
    return out


def _sane(name: str, gpu_type: str, limit: Limit, problems: list[str]) -> Limit:
    values = (limit.nominal, limit.borrow_limit, limit.lend_limit)
    if all(v is None or v >= 0 for v in values):
        return limit
    problems.append(f"A limit of {name} on {gpu_type} is negative; 0 is used instead.")
    return Limit(*(None if v is None else max(0, v) for v in values))  # type: ignore[arg-type]
