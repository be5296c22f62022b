"""Who waited for whom: the last arrival at each collective of a step, found by one maximum over all ranks."""

import math
import time
from collections.abc import Mapping, Sequence

from trainer.collectives import Collective

Instances = Mapping[str, tuple[int, int]]


class Arrivals:
    """``instances``: by kind of group, how many groups of it there are, and which of them is this rank's.

    Every rank sends one number per collective and group. The count is fixed by the first step, so that the message has
    the same length on every rank and in every step, whatever happens in one of them.
    """

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._counts: dict[str, int] | None = None
        self.cost_ns = 0

    def numbers(self, entries: Sequence[Collective]) -> list[float]:
        """This rank's arrivals in its groups' places, nothing in the places of other groups."""
        begin = time.perf_counter_ns()
        found: list[float] = []
        if self._counts is None:
            self._counts = {name: sum(e.group == name for e in entries) for name in self._instances}
        for name, (groups, mine) in self._instances.items():
            count = self._counts[name]
            arrivals = [float(e.begin_ns) for e in entries if e.group == name][:count]
            arrivals += [-math.inf] * (count - len(arrivals))
            for group in range(groups):
                found += arrivals if group == mine else [-math.inf] * count
        self.cost_ns += time.perf_counter_ns() - begin
        return found

    def waited_ns(self, entries: Sequence[Collective], latest: Sequence[float]) -> int:
        """How long this rank stood in collectives before the last rank of the group had arrived."""
        begin = time.perf_counter_ns()
        total, offset = 0, 0
        assert self._counts is not None
        for name, (groups, mine) in self._instances.items():
            count = self._counts[name]
            place = offset + mine * count
            offset += groups * count
            ours = [e for e in entries if e.group == name][:count]
            for entry, last in zip(ours, latest[place : place + count], strict=False):
                if math.isfinite(last):
                    total += min(entry.exposed_ns, max(0, int(last) - entry.begin_ns))
        self.cost_ns += time.perf_counter_ns() - begin
        return total
