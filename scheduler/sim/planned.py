"""Rules that leave every decision to `scheduler.decide`, as the live loop does."""

import heapq
from collections.abc import Mapping
from dataclasses import replace
from math import inf, nextafter
from typing import Protocol

from scheduler.plan import Start
from scheduler.sim.replay import Moves, SimJob
from scheduler.sim.trace import cluster_nodes
from scheduler.snapshot import (
    Cohort,
    Limit,
    PendingJob,
    Policy,
    PreemptionPolicy,
    Queue,
    Reclaim,
    Snapshot,
    WithinQueue,
)
from scheduler.state import Scheduler, started

GPU_TYPE = "gpu"
EVERYBODY = "everybody"


class Ranking(Protocol):
    """Gives jobs their priority from what is known of them: never from their true run time."""

    def rank(self, job: SimJob, now_s: float) -> int:
        """The job's priority now."""

    def until_s(self, job: SimJob, now_s: float) -> float:
        """When its priority will be another one if it goes on as now; infinite for never."""

    def learn(self, job: SimJob, now_s: float) -> bool:
        """The job is done; whether the priorities of others changed by that."""


class BySubmission:
    """The priority that the job came with."""

    def rank(self, job: SimJob, now_s: float) -> int:
        """The trace's."""
        return job.trace.priority

    def until_s(self, job: SimJob, now_s: float) -> float:
        """It stays."""
        return inf

    def learn(self, job: SimJob, now_s: float) -> bool:
        """Nothing is to be learned."""
        return False


def one_queue(total: int, *, strict: bool) -> tuple[tuple[Queue, ...], tuple[Cohort, ...]]:
    """Everybody in one queue that owns the cluster. `strict`: nobody is stopped, and nobody passes by."""
    preemption = PreemptionPolicy(within_queue=WithinQueue.LOWER_PRIORITY, reclaim_within_cohort=Reclaim.ANY)
    if strict:
        preemption = PreemptionPolicy()
    return (Queue(EVERYBODY, quota={GPU_TYPE: Limit(total)}, preemption=preemption),), ()


def team_queues(quotas: Mapping[str, int]) -> tuple[tuple[Queue, ...], tuple[Cohort, ...]]:
    """A queue for each team, with its GPUs; what is idle is lent, and taken back when its owner wants it."""
    preemption = PreemptionPolicy(within_queue=WithinQueue.LOWER_PRIORITY, reclaim_within_cohort=Reclaim.ANY)
    queues = tuple(
        Queue(team, cohort=EVERYBODY, quota={GPU_TYPE: Limit(gpus)}, preemption=preemption)
        for team, gpus in quotas.items()
    )
    return queues, (Cohort(EVERYBODY),)


class Planned:
    """`decide` over a snapshot that the events keep up to date."""

    def __init__(
        self,
        num_nodes: int,
        gpus_per_node: int,
        *,
        count_only: bool = False,
        strict: bool = False,
        ranking: Ranking | None = None,
        policy: Policy | None = None,
        quotas: Mapping[str, int] | None = None,
        verify: bool = False,
    ) -> None:
        total = num_nodes * gpus_per_node
        queues, cohorts = one_queue(total, strict=strict) if quotas is None else team_queues(quotas)
        nodes = () if count_only else cluster_nodes(num_nodes, gpus_per_node, GPU_TYPE)
        snapshot = Snapshot(now_s=0, policy=policy or Policy(), queues=queues, cohorts=cohorts, nodes=nodes)
        self.by_team = quotas is not None
        self.gpus_per_node = gpus_per_node
        self.ranking: Ranking = ranking or BySubmission()
        self.scheduler = Scheduler(snapshot, verify=verify)
        self.jobs: dict[str, SimJob] = {}
        self.ranks: dict[str, int] = {}
        # When a priority changes by itself: (time, job); stale ones are dropped when their time comes.
        self.changes: list[tuple[float, str]] = []
        self.dirty = False
        # Started since the last look at the clock.
        self.fresh: list[SimJob] = []

    def submitted(self, job: SimJob, now_s: float) -> None:
        """The job waits, new or preempted."""
        self.jobs[job.id] = job
        self.scheduler.submit(self._pending(job, self._rank(job, now_s)))

    def ended(self, job: SimJob, now_s: float) -> None:
        """A running job is done."""
        self.scheduler.remove(job.id)
        del self.jobs[job.id], self.ranks[job.id]
        self.dirty |= self.ranking.learn(job, now_s)

    def act(self, now_s: float) -> Moves:
        """One pass."""
        self._rank_anew(now_s)
        plan = self.scheduler.decide(now_s)
        moves = Moves()
        for start in plan.start:
            moves.start.append((self.jobs[start.job], self._run(start, now_s)))
        for hold in plan.hold:
            waiting = self.scheduler.pending[hold.job]
            if not waiting.held:
                self.scheduler.submit(replace(waiting, held=True))
        moves.preempt = [self.jobs[victim.job] for victim in plan.preempt]
        return moves

    def next_s(self, now_s: float) -> float:
        """When a priority changes next."""
        for job in self.fresh:
            self._expect(job, now_s)
        self.fresh.clear()
        while self.changes and (self.changes[0][1] not in self.jobs or self.changes[0][0] <= now_s):
            heapq.heappop(self.changes)
        return self.changes[0][0] if self.changes else inf

    def _run(self, start: Start, now_s: float) -> list[tuple[int, int]]:
        waiting = self.scheduler.pending[start.job]
        self.scheduler.run(started(replace(waiting, held=False), start, now_s))
        self.fresh.append(self.jobs[start.job])
        pool = self.scheduler.world.pools.get(GPU_TYPE)
        if pool is None:
            return [(0, self.jobs[start.job].num_gpus)]
        return [(pool.number[node], gpus) for node, gpus in start.placement.items()]

    def _pending(self, job: SimJob, rank: int) -> PendingJob:
        return PendingJob(
            id=job.id,
            queue=job.trace.team if self.by_team else EVERYBODY,
            gpu_types=(GPU_TYPE,),
            num_gpus=job.num_gpus,
            chunk=job.trace.worker_gpus(self.gpus_per_node),
            priority=rank,
            submitted_s=job.trace.submit_s,
            preempted_count=job.preemptions,
        )

    def _rank(self, job: SimJob, now_s: float) -> int:
        rank = self.ranks[job.id] = self.ranking.rank(job, now_s)
        self._expect(job, now_s)
        return rank

    def _expect(self, job: SimJob, now_s: float) -> None:
        until = self.ranking.until_s(job, now_s)
        if until < inf:
            heapq.heappush(self.changes, (max(until, nextafter(now_s, inf)), job.id))

    def _rank_anew(self, now_s: float) -> None:
        """Take over priorities that changed since the last pass."""
        due = set(self.jobs) if self.dirty else set()
        self.dirty = False
        while self.changes and self.changes[0][0] <= now_s:
            due.add(heapq.heappop(self.changes)[1])
        for job_id in sorted(due & self.jobs.keys()):
            job, old = self.jobs[job_id], self.ranks[job_id]
            rank = self._rank(job, now_s)
            if rank == old:
                continue
            if job_id in self.scheduler.running:
                self.scheduler.run(replace(self.scheduler.running[job_id], priority=rank))
            else:
                self.scheduler.submit(replace(self.scheduler.pending[job_id], priority=rank))
