"""Virtual time: submissions, ends and whatever a rule does at them."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Protocol

from scheduler.placement import Placement
from scheduler.sim.trace import TraceJob


@dataclass(slots=True, eq=False)
class SimJob:
    """A job of the trace and what became of it so far."""

    trace: TraceJob
    # Seconds of running that it still needs, restarts included. True: for rules that may know.
    left_s: float
    # GPU-seconds that it has held.
    service_gpu_s: float = 0
    # Since when it waits, or runs.
    since_s: float = 0
    is_running: bool = False
    placement: Placement = field(default_factory=list)
    first_start_s: float | None = None
    end_s: float | None = None
    preemptions: int = 0
    waited_s: float = 0
    # Rises with each start: an end that was foreseen before a preemption is void.
    starts: int = 0

    @property
    def id(self) -> str:
        """The trace's id."""
        return self.trace.id

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.trace.num_gpus

    def ran_s(self, now_s: float) -> float:
        """Seconds for which it has run in all."""
        return self.service_gpu_s / self.num_gpus + (now_s - self.since_s if self.is_running else 0)


@dataclass(slots=True)
class Moves:
    """What a rule does now: those told to stop first, then those that start."""

    preempt: list[SimJob] = field(default_factory=list)
    start: list[tuple[SimJob, Placement]] = field(default_factory=list)


class Rule(Protocol):
    """Who runs. It is told of every event, and asked after all events of one moment."""

    def submitted(self, job: SimJob, now_s: float) -> None:
        """The job waits from now on."""

    def ended(self, job: SimJob, now_s: float) -> None:
        """A running job is done."""

    def act(self, now_s: float) -> Moves:
        """What to do now. Asked again at once after a preemption, until it preempts nobody."""

    def next_s(self, now_s: float) -> float:
        """When to ask again although nothing happens: later than now, infinite for never."""


@dataclass(frozen=True, slots=True)
class Span:
    """A job's stay on its GPUs."""

    job: SimJob
    placement: Placement
    start_s: float
    end_s: float


@dataclass(slots=True)
class Outcome:
    """A whole replay."""

    jobs: list[SimJob]
    num_gpus: int
    decision_s: float = 0
    num_decisions: int = 0
    preemptions: int = 0
    lost_gpu_s: float = 0
    spans: list[Span] = field(default_factory=list)


class Stuck(RuntimeError):
    """Jobs wait, nothing runs and the rule starts nobody: the replay would never end."""


def replay(
    trace: Iterable[TraceJob],
    rule: Rule,
    num_gpus: int,
    *,
    restart_s: float = 0,
    keep_spans: bool = False,
    progress: Callable[[int, float], None] | None = None,
) -> Outcome:
    """Every job's fate under the rule.

    `restart_s`: a preempted job runs that much longer, on all its GPUs. `progress` is told the number
    of jobs that are done, and the time. Raises Stuck.
    """
    jobs = [SimJob(job, job.duration_s, since_s=job.submit_s) for job in trace]
    out = Outcome(jobs, num_gpus)
    ends: list[tuple[float, int, int]] = []
    number = {job.id: at for at, job in enumerate(jobs)}
    arrived = done = 0
    clock = -inf
    while done < len(jobs):
        now = min(
            jobs[arrived].trace.submit_s if arrived < len(jobs) else inf,
            ends[0][0] if ends else inf,
        )
        if clock > -inf:
            now = min(now, rule.next_s(clock))
        if now == inf:
            waiting = len([job for job in jobs[:arrived] if job.end_s is None])
            raise Stuck(f"{waiting} jobs wait, nothing runs, and the rule starts none of them.")
        clock = now
        while ends and ends[0][0] <= now:
            _, at, starts = heapq.heappop(ends)
            job = jobs[at]
            if starts == job.starts and job.is_running:
                _stop(job, now, out, keep_spans)
                job.left_s, job.end_s = 0, now
                done += 1
                rule.ended(job, now)
        while arrived < len(jobs) and jobs[arrived].trace.submit_s <= now:
            rule.submitted(jobs[arrived], now)
            arrived += 1
        again = True
        while again:
            begin = perf_counter()
            moves = rule.act(now)
            out.decision_s += perf_counter() - begin
            out.num_decisions += 1
            for job in moves.preempt:
                _stop(job, now, out, keep_spans)
                job.starts += 1
                job.left_s += restart_s
                job.preemptions += 1
                out.preemptions += 1
                out.lost_gpu_s += restart_s * job.num_gpus
                rule.submitted(job, now)
            for job, placement in moves.start:
                job.waited_s += now - job.since_s
                job.since_s, job.is_running, job.placement = now, True, placement
                job.starts += 1
                if job.first_start_s is None:
                    job.first_start_s = now
                heapq.heappush(ends, (now + job.left_s, number[job.id], job.starts))
            again = bool(moves.preempt)
        if progress is not None:
            progress(done, now)
    return out


def _stop(job: SimJob, now_s: float, out: Outcome, keep_spans: bool) -> None:
    ran = now_s - job.since_s
    job.left_s -= ran
    job.service_gpu_s += ran * job.num_gpus
    if keep_spans:
        out.spans.append(Span(job, job.placement, job.since_s, now_s))
    job.is_running, job.since_s = False, now_s
