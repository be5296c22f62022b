"""The rules by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.sim.attained import LeastAttained
from scheduler.sim.planned import Planned, Ranking
from scheduler.sim.replay import Rule, SimJob
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


def _by_submission(job: SimJob) -> float:
    return job.trace.submit_s


def _by_run_time(job: SimJob) -> float:
    return job.trace.duration_s


def _planned(setting: Setting, ranking: Ranking | None = None) -> Rule:
    return Planned(
        setting.num_nodes,
        setting.gpus_per_node,
        count_only=setting.count_only,
        ranking=ranking,
        quotas=setting.quotas,
    )


RULES: dict[str, Named] = {
    "fifo": Named("strictly by submission", lambda s: InOrder(s.space(), _by_submission)),
    "easy": Named("EASY backfill with true run times", lambda s: Easy(s.space()), True),
    "sjf": Named("shortest job first, nobody stopped", lambda s: InOrder(s.space(), _by_run_time), True),
    "srtf": Named("shortest remaining time first", lambda s: Srtf(s.space()), True),
    "default": Named("the scheduler as it is installed", _planned),
    "las": Named("least attained service first", lambda s: _planned(s, LeastAttained(s.gpus_per_node))),
}


def rule_build(name: str, setting: Setting) -> Rule:
    """The rule of that name, on an empty cluster. KeyError for one that is not in RULES."""
    return RULES[name].build(setting)
