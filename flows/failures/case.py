"""What is known about an end, and what is concluded from it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RankExit:
    """How one rank ended. ``exit_code`` is negative for a signal; None: no exit was seen.

    ``t_s`` is on the clock of the rank's node: those of two nodes may differ by seconds.
    """

    rank: int
    node: str
    exit_code: int | None = None
    t_s: float | None = None
    record: Mapping[str, Any] | None = None
    log_tail: str = ""


@dataclass(frozen=True)
class Log:
    """One log: ``rank 3 stderr``, ``job output`` (ranks interleaved), ``launcher``, ``engine``, ``node n1 kernel``.

    ``lines`` gives its lines anew at each call: a flood of gigabytes is never held in memory.
    """

    source: str
    lines: Callable[[], Iterator[str]]


def log_of_lines(source: str, lines: Sequence[str]) -> Log:
    """A log that is in memory."""
    return Log(source, lambda: iter(lines))


@dataclass(frozen=True)
class Case:
    """One ended gang: where its ranks ran, how each of them ended, and what was written meanwhile."""

    engine: str
    num_nodes: int
    ranks_per_node: int
    node_names: tuple[str, ...]
    ranks: tuple[RankExit, ...]
    engine_state: str = ""
    launcher_exit_code: int | None = None
    logs: tuple[Log, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.num_nodes * self.ranks_per_node

    def node_of(self, rank: int | None) -> str | None:
        """Where a rank runs."""
        if rank is None or not 0 <= rank < self.world_size:
            return None
        place = rank // self.ranks_per_node
        return self.node_names[place] if place < len(self.node_names) else None


@dataclass(frozen=True)
class Cause:
    """Why it ended and what to do next: class, code and action as failure reports name them."""

    class_: str
    code: str
    action: str
    root_rank: int | None = None
    root_node: str | None = None
    exit_code: int | None = None
    evidence: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The form that rows keep and REST shows."""
        signal = -self.exit_code if self.exit_code is not None and self.exit_code < 0 else None
        return {
            "class": self.class_,
            "code": self.code,
            "action": self.action,
            "root_rank": self.root_rank,
            "root_node": self.root_node,
            "exit_code": self.exit_code,
            "signal": signal,
            "evidence": list(self.evidence),
        }
