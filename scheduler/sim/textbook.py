"""Rules of the textbooks, to compare with. All but `fifo` know every job's true run time."""

import heapq
from collections.abc import Callable
from math import inf

from scheduler.nodes import Ints
from scheduler.placement import Placement
from scheduler.sim.replay import Moves, SimJob
from scheduler.sim.space import Space, move


class InOrder:
    """Strictly one after the other: while the first does not fit, nobody else starts.

    `fifo`: in order of submission. `sjf`: the shortest job first.
    """

    def __init__(self, space: Space, key: Callable[[SimJob], float]) -> None:
        self.space, self.key = space, key
        self.line: list[tuple[float, int, SimJob]] = []
        self.count = 0

    def submitted(self, job: SimJob, now_s: float) -> None:
        """At its place in line."""
        self.count += 1
        heapq.heappush(self.line, (self.key(job), self.count, job))

    def ended(self, job: SimJob, now_s: float) -> None:
        """Its GPUs are free."""
        self.space.give(job.placement)

    def act(self, now_s: float) -> Moves:
        """Start from the front while it fits."""
        moves = Moves()
        while self.line:
            job = self.line[0][2]
            placement = self.space.find(job)
            if placement is None:
                break
            heapq.heappop(self.line)
            self.space.take(placement)
            moves.start.append((job, placement))
        return moves

    def next_s(self, now_s: float) -> float:
        """Only events move it."""
        return inf


class Easy:
    """EASY backfill: the first in line gets a reservation, others pass it if they do not delay it."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.line: list[SimJob] = []
        self.running: dict[SimJob, Placement] = {}

    def submitted(self, job: SimJob, now_s: float) -> None:
        """At the end of the line."""
        self.line.append(job)

    def ended(self, job: SimJob, now_s: float) -> None:
        """Its GPUs are free."""
        self.space.give(self.running.pop(job))

    def act(self, now_s: float) -> Moves:
        """Start from the front while it fits, then whoever does not delay the first that does not."""
        moves = Moves()
        while self.line:
            placement = self.space.find(self.line[0])
            if placement is None:
                break
            self._start(self.line.pop(0), placement, now_s, moves)
        if not self.line or not self.space.free.any():
            return moves
        at_s, spare = self._reservation(self.line[0], now_s)
        # What did not fit needs no second look while nothing comes free: (GPUs, whether it stays too long).
        failed: set[tuple[int, bool]] = set()
        rest = [self.line[0]]
        for job in self.line[1:]:
            stays = now_s + job.left_s > at_s
            if (job.num_gpus, stays) in failed:
                rest.append(job)
                continue
            room = self.space.free if not stays else self._least(spare)
            placement = self.space.find(job, room)
            if placement is None:
                failed.add((job.num_gpus, stays))
                rest.append(job)
                continue
            self._start(job, placement, now_s, moves)
            if stays:
                move(spare, placement, -1)
        self.line = rest
        return moves

    def next_s(self, now_s: float) -> float:
        """Only events move it."""
        return inf

    def _least(self, spare: Ints) -> Ints:
        least = self.space.free.copy()
        least.clip(max=spare, out=least)
        return least

    def _start(self, job: SimJob, placement: Placement, now_s: float, moves: Moves) -> None:
        self.space.take(placement)
        self.running[job] = placement
        moves.start.append((job, placement))

    def _reservation(self, head: SimJob, now_s: float) -> tuple[float, Ints]:
        """When the job fits at the latest, and what is free beside it then."""
        free = self.space.free.copy()
        ends = sorted((self._end_s(job, now_s), at, job) for at, job in enumerate(self.running))
        for at, (end_s, _, job) in enumerate(ends):
            move(free, self.running[job], 1)
            if at + 1 < len(ends) and ends[at + 1][0] == end_s:
                continue
            placement = self.space.find(head, free)
            if placement is not None:
                move(free, placement, -1)
                return end_s, free
        return inf, free

    @staticmethod
    def _end_s(job: SimJob, now_s: float) -> float:
        return (job.since_s if job.is_running else now_s) + job.left_s


class Srtf:
    """Shortest remaining time first: whoever needs least longer runs, the others are stopped for it."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.jobs: dict[SimJob, Placement | None] = {}

    def submitted(self, job: SimJob, now_s: float) -> None:
        """New, or stopped by this very rule."""
        self.jobs.setdefault(job, None)

    def ended(self, job: SimJob, now_s: float) -> None:
        """Its GPUs are free."""
        placement = self.jobs.pop(job)
        assert placement is not None, "only a running job ends"
        self.space.give(placement)

    def act(self, now_s: float) -> Moves:
        """Fill the cluster from the least remaining time on; those that fit no more are passed over."""
        moves = Moves()
        left = sorted(
            (job.left_s - (now_s - job.since_s if job.is_running else 0), at, job) for at, job in enumerate(self.jobs)
        )
        free = self.space.pool.total.copy()
        chosen: dict[SimJob, Placement] = {}
        # A running job keeps its nodes where it can: moving it would cost a restart for nothing.
        for _, _, job in left:
            kept = self.jobs[job]
            if kept is None or any(free[node] < gpus for node, gpus in kept):
                kept = self.space.find(job, free) if free.any() else None
            if kept is not None:
                move(free, kept, -1)
                chosen[job] = kept
        for job, placement in self.jobs.items():
            if placement is not None and chosen.get(job) != placement:
                moves.preempt.append(job)
        for job, placement in chosen.items():
            if self.jobs[job] != placement:
                moves.start.append((job, placement))
        for job in moves.preempt:
            self.jobs[job] = None
        self.jobs.update(chosen)
        self.space.free[:] = free
        return moves

    def next_s(self, now_s: float) -> float:
        """Among running jobs the order never changes between events."""
        return inf
