"""The rules by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.sim.planned import Planned
from scheduler.sim.replay import Rule
from scheduler.sim.space import Space
from scheduler.sim.textbook import Easy, InOrder, Srtf


@dataclass(frozen=True, slots=True)
class Setting:
    """The cluster of a replay. `quotas`: GPUs that belong to teams; None: everybody shares one queue."""

    num_nodes: int
    gpus_per_node: int
    count_only: bool = False
    quotas: Mapping[str, int] | None = None

    def space(self) -> Space:
        """The cluster with every GPU free."""
        return Space(self.num_nodes, self.gpus_per_node, count_only=self.count_only)


@dataclass(frozen=True, slots=True)
class Named:
    """A rule, what it is, and how it is made."""

    about: str
    build: Callable[[Setting], Rule]
    # Whether it reads true run times, as no real scheduler can.
    knows_run_times: bool = False
