"""Users ranked by a tree of shares: Slurm's Fair Tree, and its older classic factor.

Fair Tree: siblings are sorted by shares over usage; the whole subtree of the better one is ranked
before the next; accounts that tie are merged. https://slurm.schedmd.com/fair_tree.html
Classic: 2^(-usage/shares), both normalised. https://slurm.schedmd.com/classic_fair_share.html
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scheduler.snapshot import ShareNode

# Shares over usage, exact, so that ties are ties; the first part orders "as the parent", infinite, finite.
_Level = tuple[int, Fraction]
_AS_PARENT, _UNUSED = (3, Fraction(0)), (2, Fraction(0))
_Entry = tuple[_Level, ShareNode, str]


def fair_tree_ranks(tree: Sequence[ShareNode]) -> dict[str, int]:
    """Rank of each user by path ("account/user"): the number of users for the best, 1 for the worst."""
    total = _num_users(tree)
    ranking = _Ranking({}, total, total)
    ranking.rank(_levels(tree, ""), tied=False)
    return ranking.ranks


def classic_factors(tree: Sequence[ShareNode]) -> dict[str, float]:
    """Factor of each user by path, between 0 (used far too much) and 1 (used nothing)."""
    factors: dict[str, float] = {}
    total = sum((_usage(node) for node in tree), Fraction(0))
    _classic(tree, "", Fraction(1), total, factors)
    return factors


@dataclass(slots=True)
class _Ranking:
    ranks: dict[str, int]
    rank_now: int
    num_left: int

    def rank(self, entries: Iterable[_Entry], *, tied: bool) -> None:
        """Rank the entries; `tied`: the first one shares the rank given last, as its account does."""
        ordered = sorted(entries, key=lambda e: (e[0], e[1].is_user), reverse=True)
        before: _Level | None = None
        at = 0
        while at < len(ordered):
            level, node, path = ordered[at]
            same = tied if before is None else level == before
            before = level
            if node.is_user:
                if not same:
                    self.rank_now = self.num_left
                self.ranks[path + node.name] = self.rank_now
                self.num_left -= 1
                at += 1
                continue
            # Users stand before accounts of the same level, so what follows on it are accounts: merged.
            merged: list[_Entry] = []
            while at < len(ordered) and ordered[at][0] == level:
                _, account, above = ordered[at]
                merged.extend(_levels(account.children, f"{above}{account.name}/"))
                at += 1
            self.rank(merged, tied=same)


def _num_users(nodes: Iterable[ShareNode]) -> int:
    return sum(1 if node.is_user else _num_users(node.children) for node in nodes)


def _usage(node: ShareNode) -> Fraction:
    return Fraction(node.usage) + sum((_usage(child) for child in node.children), Fraction(0))


def _dissolved(nodes: Sequence[ShareNode], path: str) -> list[tuple[ShareNode, str]]:
    """The siblings, with each account whose shares are its parent's replaced by its children."""
    out: list[tuple[ShareNode, str]] = []
    for node in nodes:
        if node.shares is None and not node.is_user:
            out.extend(_dissolved(node.children, f"{path}{node.name}/"))
        else:
            out.append((node, path))
    return out


def _levels(nodes: Sequence[ShareNode], path: str) -> list[_Entry]:
    """Each sibling with its level: its part of the siblings' shares over its part of their usage.

    A user whose shares are its parent's stands where the account stands: before its siblings.
    """
    group = _dissolved(nodes, path)
    all_shares = sum((Fraction(node.shares or 0) for node, _ in group), Fraction(0))
    all_usage = sum((_usage(node) for node, _ in group), Fraction(0))
    out: list[_Entry] = []
    for node, where in group:
        used = _usage(node)
        if node.shares is None:
            level = _AS_PARENT
        elif node.shares <= 0:
            level = (0, Fraction(0))
        elif used == 0:
            level = _UNUSED
        else:
            level = (1, (node.shares / all_shares) / (used / all_usage))
        out.append((level, node, where))
    return out


def _classic(
    nodes: Sequence[ShareNode], path: str, shares: Fraction, total: Fraction, factors: dict[str, float]
) -> None:
    listed = sum((Fraction(node.shares or 0) for node in nodes), Fraction(0))
    for node in nodes:
        part = shares
        if node.shares is not None:
            part = shares * node.shares / listed if listed else Fraction(0)
        used = _usage(node) / total if total else Fraction(0)
        if node.is_user:
            factors[path + node.name] = 0.0 if part == 0 else 2.0 ** float(-used / part)
        _classic(node.children, f"{path}{node.name}/", part, total, factors)
