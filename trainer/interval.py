"""When a checkpoint is due: by steps, by time, or by Young's and Daly's rule. Pure."""

import math

from trainer.config import CheckpointConfig


def young_daly_s(stall_s: float, mtbf_s: float) -> float:
    """The interval that loses least to saving and to failures together (Daly 2006, first order: √(2·δ·M)).

    ``stall_s`` is what one save costs, ``mtbf_s`` the mean time between failures of the whole gang.
    """
    return math.sqrt(2.0 * max(stall_s, 1e-3) * mtbf_s)


class DueByTime:
    """Rank 0's clock says when the next save is due; the others follow it."""

    def __init__(self, config: CheckpointConfig, now_s: float) -> None:
        self.config, self._last_s = config, now_s

    def interval_s(self, stalls_ns: list[int]) -> float:
        """Seconds between saves; 0 when time plays no part. Until a stall has been measured: 30 s."""
        if self.config.young_daly:
            if not stalls_ns:
                return 30.0
            recent = sorted(stalls_ns[-20:])
            return young_daly_s(recent[len(recent) // 2] / 1e9, self.config.mtbf_s)
        return self.config.interval_s

    def due(self, now_s: float, stalls_ns: list[int]) -> bool:
        """Whether it is time."""
        interval = self.interval_s(stalls_ns)
        return interval > 0 and now_s - self._last_s >= interval

    def saved(self, now_s: float) -> None:
        """A save has begun."""
        self._last_s = now_s
