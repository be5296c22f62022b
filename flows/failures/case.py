"""What is known about an end, and what is concluded from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RankExit:
    """How one rank ended. ``exit_code`` is negative for a signal; None: no exit was seen."""

    rank: int
    node: str
    exit_code: int | None = None
    t_s: float | None = None
    record: Mapping[str, Any] | None = None
    log_tail: str = ""


@dataclass(frozen=True)
class Case:
    """One ended gang: where its ranks ran and how each of them ended."""

    engine: str
    num_nodes: int
    ranks_per_node: int
    node_names: tuple[str, ...]
    ranks: tuple[RankExit, ...]


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
