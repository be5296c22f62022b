"""What a replay came to: times of jobs, of gangs and of teams."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from scheduler.sim.replay import Outcome, SimJob


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles, all None of nothing."""
    if not values:
        return {"mean": None, "p50": None, "p90": None, "p99": None}
    array = np.asarray(values, dtype=float)
    p50, p90, p99 = np.percentile(array, [50, 90, 99])
    return {"mean": float(array.mean()), "p50": float(p50), "p90": float(p90), "p99": float(p99)}


def completion_s(job: SimJob) -> float:
    """From submission to end."""
    assert job.end_s is not None, "the replay runs until all are done"
    return job.end_s - job.trace.submit_s


def delay_s(job: SimJob) -> float:
    """What the job took beyond its own run time: waiting, and restarts after preemptions."""
    return completion_s(job) - job.trace.duration_s


def summary(outcome: Outcome, gpus_per_node: int) -> dict[str, Any]:
    """The figures of a replay. A gang is a job that needs more than one node."""
    jobs = outcome.jobs
    begin = min(job.trace.submit_s for job in jobs)
    makespan = max(job.end_s or 0 for job in jobs) - begin
    worked = sum(job.trace.duration_s * job.num_gpus for job in jobs)
    return {
        "jobs": len(jobs),
        "jct_s": spread([completion_s(job) for job in jobs]),
        "queue_delay_s": spread([delay_s(job) for job in jobs]),
        "first_start_delay_s": spread([(job.first_start_s or 0) - job.trace.submit_s for job in jobs]),
        "gang_queue_delay_s": spread([delay_s(job) for job in jobs if job.num_gpus > gpus_per_node]),
        "utilisation": worked / (outcome.num_gpus * makespan),
        "makespan_s": makespan,
        "preemptions": outcome.preemptions,
        "lost_gpu_hours": outcome.lost_gpu_s / 3600,
        "decision_s": outcome.decision_s,
        "decisions": outcome.num_decisions,
    }


def by_team(outcome: Outcome) -> dict[str, dict[str, float]]:
    """Of each team, in name order: jobs, mean completion time, mean queue delay, GPU-hours."""
    teams: dict[str, list[SimJob]] = {}
    for job in outcome.jobs:
        teams.setdefault(job.trace.team, []).append(job)
    return {
        team: {
            "jobs": len(jobs),
            "jct_s": sum(map(completion_s, jobs)) / len(jobs),
            "queue_delay_s": sum(map(delay_s, jobs)) / len(jobs),
            "gpu_hours": sum(job.trace.duration_s * job.num_gpus for job in jobs) / 3600,
        }
        for team, jobs in sorted(teams.items())
    }


def job_rows(jobs: Iterable[SimJob]) -> Iterator[tuple[str, float, float, float, int, int]]:
    """For each job: id, submitted, first started, ended (seconds), GPUs, preemptions."""
    for job in jobs:
        yield job.id, job.trace.submit_s, job.first_start_s or 0, job.end_s or 0, job.num_gpus, job.preemptions
