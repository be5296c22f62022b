"""Nodes as arrays: per GPU type, in name order of their whole path, so that a domain is a range."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scheduler.shapes import Shape
from scheduler.snapshot import Node, NodeState

Ints = NDArray[np.int64]
# Free GPUs of a node that takes no new work: so far below zero that no leaving job lifts it above.
CLOSED = -(1 << 40)


@dataclass(slots=True)
class Pool:
    """The nodes of one GPU type.

    `free` is what is left when the victims of this pass are gone, `present` what is left while they
    are still there (one array until there is a victim); both count the jobs that were started or
    held. `releases` counts how often GPUs came free, so that a "does not fit" is remembered until
    then. `starts[l]` are the first nodes of each domain of level l; `inner[l]` the first domain of
    level l + 1 in each domain of level l.
    """

    gpu_type: str
    names: list[str]
    number: dict[str, int]
    total: Ints
    free: Ints
    present: Ints
    starts: list[Ints]
    inner: list[Ints]
    releases: int = 0
    misfits: dict[Shape, int] = field(default_factory=dict)
    # Shapes that do not fit what is present: nothing comes free there during a pass.
    absent: set[Shape] = field(default_factory=set)
    masks: dict[frozenset[str], NDArray[np.bool_] | None] = field(default_factory=dict)

    def copy(self) -> "Pool":
        """The same nodes with their own books, nobody on the way out and nothing known of shapes."""
        free = self.free.copy()
        return Pool(
            self.gpu_type, self.names, self.number, self.total, free, free, self.starts, self.inner, masks=self.masks
        )

    @property
    def num_nodes(self) -> int:
        """How many nodes there are, whatever their state."""
        return len(self.names)

    def domain(self, level: int, node: int) -> tuple[int, int]:
        """First and last + 1 node of the domain of this level that holds the node."""
        starts = self.starts[level]
        at = int(np.searchsorted(starts, node, side="right")) - 1
        end = int(starts[at + 1]) if at + 1 < len(starts) else self.num_nodes
        return int(starts[at]), end

    def usable(self, free: Ints, shape: Shape) -> Ints:
        """Free GPUs per node that the shape may use, never below zero."""
        clipped = np.maximum(free, 0)
        if shape.excluded:
            mask = self.mask(shape.excluded)
            if mask is not None:
                clipped[mask] = 0
        return clipped

    def mask(self, excluded: frozenset[str]) -> NDArray[np.bool_] | None:
        """Which nodes these names are, or None when there are none of them here."""
        if excluded not in self.masks:
            at = [self.number[name] for name in excluded if name in self.number]
            mask = np.zeros(self.num_nodes, dtype=bool)
            mask[at] = True
            self.masks[excluded] = mask if at else None
        return self.masks[excluded]


def pools_build(nodes: Iterable[Node], topology: Sequence[str]) -> tuple[dict[str, Pool], list[str]]:
    """One pool per GPU type with every GPU of its ready nodes free, and what was wrong with the list."""
    problems: list[str] = []
    seen: set[str] = set()
    by_type: dict[str, list[Node]] = {}
    for node in nodes:
        if node.name in seen:
            problems.append(f"Node {node.name} is listed twice; the first one counts.")
            continue
        seen.add(node.name)
        if node.num_gpus < 0:
            problems.append(f"Node {node.name} has a negative number of GPUs; it is not used.")
            continue
        by_type.setdefault(node.gpu_type, []).append(node)
    levels = tuple(topology)
    return {gpu_type: _pool(gpu_type, group, levels) for gpu_type, group in sorted(by_type.items())}, problems


def _pool(gpu_type: str, nodes: list[Node], levels: tuple[str, ...]) -> Pool:
    def path(node: Node) -> tuple[str, ...]:
        return (*(node.labels.get(level, "") for level in levels), node.name)

    ordered = sorted(nodes, key=path)
    total = np.array([n.num_gpus if n.state == NodeState.READY else CLOSED for n in ordered], dtype=np.int64)
    starts: list[Ints] = []
    for depth in range(1, len(levels) + 1):
        keys = [path(node)[:depth] for node in ordered]
        firsts = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
        starts.append(np.array(firsts, dtype=np.int64))
    starts.append(np.arange(len(ordered), dtype=np.int64))
    inner = [np.searchsorted(below, above).astype(np.int64) for above, below in pairwise(starts)]
    free = total.copy()
    return Pool(
        gpu_type=gpu_type,
        names=[n.name for n in ordered],
        number={n.name: i for i, n in enumerate(ordered)},
        total=np.maximum(total, 0),
        free=free,
        present=free,
        starts=starts,
        inner=inner,
    )


def as_mapping(pool: Pool, placement: Iterable[tuple[int, int]]) -> Mapping[str, int]:
    """{node name: GPUs} of pairs (node number, GPUs)."""
    return {pool.names[node]: gpus for node, gpus in placement}
