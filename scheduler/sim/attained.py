"""Least attained service: whoever has used least goes first, since most jobs that are young end soon."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from scheduler.sim.replay import SimJob

HOUR_S = 3600.0
# GPU-hours after which a job goes one level down. Few: each costs restarts, and long jobs that take turns all end late.
LEVELS_GPU_H = (0.5, 4.0, 32.0)
# A gang over several nodes waits for whole nodes: it may use this much more before it goes down.
GANG_FACTOR = 64.0
# Rounding must not leave a job at the border of two levels for ever.
SLACK_GPU_S = 1e-3


class LeastAttained:
    """Multi-level least attained service (Tiresias, NSDI 2019): levels of GPU time used, submission inside a level."""

    def __init__(
        self, gpus_per_node: int, levels_gpu_h: Sequence[float] = LEVELS_GPU_H, gang_factor: float = GANG_FACTOR
    ) -> None:
        self.gpus_per_node = gpus_per_node
        self.borders = [hours * HOUR_S for hours in levels_gpu_h]
        self.gang_factor = gang_factor

    def rank(self, job: SimJob, now_s: float) -> int:
        """0 at first, one less with each level."""
        return -bisect_right(self.borders, self._used(job, now_s) + SLACK_GPU_S)

    def until_s(self, job: SimJob, now_s: float) -> float:
        """When a running job reaches the next level."""
        used = self._used(job, now_s)
        level = bisect_right(self.borders, used + SLACK_GPU_S)
        if not job.is_running or level == len(self.borders):
            return inf
        return now_s + (self.borders[level] - used) * self._weight(job) / job.num_gpus

    def learn(self, job: SimJob, now_s: float) -> bool:
        """It knows each job by itself."""
        return False

    def _weight(self, job: SimJob) -> float:
        return self.gang_factor if job.num_gpus > self.gpus_per_node else 1.0

    def _used(self, job: SimJob, now_s: float) -> float:
        return job.ran_s(now_s) * job.num_gpus / self._weight(job)
