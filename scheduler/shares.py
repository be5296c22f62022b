"""Shares of the quota tree: how far each queue and cohort is above what it owns, as exact fractions."""

from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering

from scheduler.quota import QuotaTree, Usage


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
