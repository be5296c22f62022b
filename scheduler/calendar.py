"""The time-aware plan: what is free when, given limits of running jobs, windows, and jobs already planned.

One grid of times serves all rows: free GPUs per pool, use per queue and cohort. A row holds its
value from each grid time to the next; the last value holds for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler.holders import Holder
from scheduler.nodes import CLOSED, Ints, Pool
from scheduler.placement import Placement, place
from scheduler.quota import TypeLimits
from scheduler.requests import Request
from scheduler.shapes import Shape
from scheduler.snapshot import Reservation, Snapshot
from scheduler.world import World

Times = NDArray[np.float64]
# A window that comes again is laid out this often.
NUM_REPEATS = 16
# After so many times at which counts suffice and nodes do not, the job has no computable start.
MAX_NODE_TRIALS = 500


@dataclass(frozen=True, slots=True)
class Slot:
    """When and where a job can run for its whole limit."""

    start_s: float
    gpu_type: str
    placement: Placement


@dataclass(slots=True)
class _Busy:
    """GPUs of a pool that come free, or are promised, per node."""

    # Ends of what runs: (time, node, GPUs), sorted when read.
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    is_sorted: bool = True
    # Promised to planned jobs: node -> (from, until, GPUs).
    promised: dict[int, list[tuple[float, float, int]]] = field(default_factory=dict)


class Calendar:
    """Rows over time, kept up to date with each start, hold and plan of the pass."""

    def __init__(self, world: World, snapshot: Snapshot) -> None:
        self.world = world
        self.now_s = float(snapshot.now_s)
        self.windows = [w for r in snapshot.reservations for w in _laid_out(r, self.now_s)]
        ends = [(self._end(h), h) for hs in world.holders.values() for h in hs if h not in world.gone]
        points = {self.now_s, *(e for e, _ in ends if e < inf)}
        points |= {max(self.now_s, t) for w in self.windows for t in (w.start_s, w.end_s)}
        self.times: Times = np.array(sorted(points), dtype=np.float64)
        self.usage: dict[tuple[str, int], Ints] = {}
        self.free: dict[str, Ints] = {}
        self.claimed: dict[str, Ints] = {}
        self.busy: dict[str, _Busy] = {}
        self.known: dict[tuple[int, str, Shape, float], float] = {}
        for gpu_type in sorted(set(world.tree.types) | set(world.pools)):
            self._open(gpu_type, [(e, h) for e, h in ends if h.gpu_type == gpu_type])

    def fits_now(self, request: Request, gpu_type: str) -> Placement | None:
        """A placement at which the job can start now and run to its limit without being in the way."""
        limit = _limit(request)
        mask = self._mask(request, gpu_type)
        until = self.now_s + limit
        last = len(self.times) if until == inf else int(np.searchsorted(self.times, until))
        if not bool(mask[:last].all()):
            return None
        return self._nodes(request, gpu_type, self.now_s, until)

    def earliest(self, request: Request, gpu_type: str) -> Slot | None:
        """The first time after now at which the job can run to its limit, or None if there is none."""
        limit = _limit(request)
        key = (request.kind.queue, gpu_type, request.kind.shape, limit)
        mask = self._mask(request, gpu_type)
        good = np.flatnonzero(mask)
        good = good[self.times[good] >= self.known.get(key, self.now_s)]
        good = good[self.times[good] > self.now_s]
        bad = np.append(self.times[~mask], inf)
        next_bad = bad[np.searchsorted(bad, self.times[good], side="right")]
        good = good[next_bad >= self.times[good] + limit]
        for at in good[:MAX_NODE_TRIALS]:
            start = float(self.times[at])
            placement = self._nodes(request, gpu_type, start, start + limit)
            if placement is not None:
                # More claims only make it later for the next job of this kind.
                self.known[key] = start
                return Slot(start, gpu_type, placement)
        return None

    def blocked_by(self, request: Request, gpu_type: str) -> Reservation | None:
        """The first window into which the job would run if it started now, whoever else is planned."""
        until = self.now_s + _limit(request)
        free = self.free[gpu_type]
        pool = self.world.pools.get(gpu_type)
        for window in sorted(self.windows, key=lambda w: (w.start_s, w.name)):
            if window.start_s >= until or window.end_s <= self.now_s or not self._concerns(window, request, gpu_type):
                continue
            if window.nodes and pool is not None:
                usable = pool.present.copy()
                usable[[pool.number[n] for n in window.nodes if n in pool.number]] = CLOSED
                if place(pool, usable, request.kind.shape, self.world.policy.placement) is None:
                    return window
                continue
            first = int(np.searchsorted(self.times, max(window.start_s, self.now_s)))
            last = int(np.searchsorted(self.times, min(window.end_s, until)))
            left = free[first:last] - self._taken(gpu_type, request)[first:last]
            if left.size and int(left.min()) < request.kind.size:
                return window
        return None

    def occupy(self, request: Request, gpu_type: str, placement: Placement) -> None:
        """The job starts (or is held): it has its GPUs from now to its limit."""
        until = self.now_s + _limit(request)
        first, last = 0, self._point(until)
        self.free[gpu_type][first:last] -= request.kind.size
        self._use(gpu_type, request.kind.queue, request.kind.size, first, last)
        if until < inf:
            busy = self.busy[gpu_type]
            busy.ends.extend((until, node, gpus) for node, gpus in placement)
            busy.is_sorted = False

    def leave(self, victims: Sequence[Holder]) -> None:
        """The victims end now instead of at their limits. Call it before the world lets them go."""
        for victim in victims:
            until = self._end(victim)
            last = self._point(until)
            pool = self.world.pools.get(victim.gpu_type)
            freed = victim.size if self.world.count_only else 0
            if pool is not None:
                freed = sum(gpus for node, gpus in victim.placement if pool.total[node] > 0)
                gone = {(until, node, gpus) for node, gpus in victim.placement}
                busy = self.busy[victim.gpu_type]
                busy.ends = [end for end in busy.ends if end not in gone]
            self.free[victim.gpu_type][:last] += freed
            if victim.queue >= 0 and victim.gpu_type in self.world.tree.types:
                self._use(victim.gpu_type, victim.queue, -victim.size, 0, last)
        if victims:
            self.known.clear()

    def move(self, holder: Holder, placement: Placement) -> None:
        """The job will run elsewhere until its end."""
        until = self._end(holder)
        if until < inf:
            gone = {(until, node, gpus) for node, gpus in holder.placement}
            busy = self.busy[holder.gpu_type]
            busy.ends = [end for end in busy.ends if end not in gone]
            busy.ends.extend((until, node, gpus) for node, gpus in placement)
            busy.is_sorted = False
        self.known.clear()

    def promise(self, request: Request, slot: Slot) -> None:
        """Keep the slot for the job against everything that is less important."""
        until = slot.start_s + _limit(request)
        first, last = self._point(slot.start_s), self._point(until)
        self.claimed[slot.gpu_type][first:last] += request.kind.size
        self._use(slot.gpu_type, request.kind.queue, request.kind.size, first, last)
        promised = self.busy[slot.gpu_type].promised
        for node, gpus in slot.placement:
            promised.setdefault(node, []).append((slot.start_s, until, gpus))

    def _end(self, holder: Holder) -> float:
        job = holder.job
        if job is None or job.time_limit_s is None:
            return inf
        # A job past its limit is about to be stopped.
        return max(float(job.started_s + job.time_limit_s), self.now_s + 1)

    def _open(self, gpu_type: str, ends: list[tuple[float, Holder]]) -> None:
        """The first rows of a GPU type: what runs ends in time order."""
        world, tree = self.world, self.world.tree
        limits = tree.types.get(gpu_type)
        pool = world.pools.get(gpu_type)
        ends = sorted((pair for pair in ends if pair[0] < inf), key=lambda pair: (pair[0], pair[1].id))
        released = np.zeros(len(self.times), dtype=np.int64)
        busy = _Busy()
        steps: list[tuple[int, Holder]] = []
        for end, holder in ends:
            at = int(np.searchsorted(self.times, end))
            steps.append((at, holder))
            if pool is None:
                released[at] += holder.size if world.count_only else 0
            for node, gpus in holder.placement:
                if pool is not None and pool.total[node] > 0:
                    released[at] += gpus
                    busy.ends.append((end, node, gpus))
        total = self._free_now(limits, pool, gpu_type)
        self.free[gpu_type] = total + np.cumsum(released)
        self.claimed[gpu_type] = np.zeros(len(self.times), dtype=np.int64)
        self.busy[gpu_type] = busy
        if limits is not None:
            self._open_cohorts(limits, steps)

    def _free_now(self, limits: TypeLimits | None, pool: Pool | None, gpu_type: str) -> int:
        if pool is not None:
            return int(np.maximum(pool.free, 0).sum())
        if not self.world.count_only or limits is None:
            return 0
        # Counts only: the quotas are the pool.
        usage = self.world.usage[gpu_type]
        return sum(limits.nominal) - sum(usage[: len(self.world.tree.queues)])

    def _open_cohorts(self, limits: TypeLimits, steps: list[tuple[int, Holder]]) -> None:
        tree = self.world.tree
        num_queues = len(tree.queues)
        scratch = list(self.world.usage[limits.gpu_type])
        size = len(self.times)
        rows = {node: np.full(size, scratch[node], dtype=np.int64) for node in range(num_queues, len(tree.names))}
        for at, holder in steps:
            if holder.queue < 0:
                continue
            tree.add(limits, scratch, holder.queue, -holder.size)
            for node in tree.path(holder.queue):
                rows[node][at:] = scratch[node]
        for node, row in rows.items():
            self.usage[limits.gpu_type, node] = row

    def _row(self, gpu_type: str, node: int) -> Ints:
        """Use of a queue or cohort over time; a queue's row is made when it is first asked for."""
        row = self.usage.get((gpu_type, node))
        if row is None:
            row = np.full(len(self.times), self.world.usage[gpu_type][node], dtype=np.int64)
            for holder in self.world.holders.get((node, gpu_type), ()):
                end = self._end(holder)
                if holder not in self.world.gone and end < inf:
                    row[int(np.searchsorted(self.times, end)) :] -= holder.size
            self.usage[gpu_type, node] = row
        return row

    def _use(self, gpu_type: str, node: int, size: int, first: int, last: int) -> None:
        limits = self.world.tree.types[gpu_type]
        more: Ints = np.full(last - first, size, dtype=np.int64)
        while True:
            row = self._row(gpu_type, node)
            old = row[first:last].copy()
            row[first:last] += more
            above = self.world.tree.parent[node]
            if above < 0:
                return
            kept = limits.local[node]
            more = np.maximum(0, row[first:last] - kept) - np.maximum(0, old - kept)
            node = above

    def _available(self, limits: TypeLimits, node: int) -> Ints:
        """`QuotaTree.available` over time."""
        used = self._row(limits.gpu_type, node)
        above = self.world.tree.parent[node]
        if above < 0:
            return limits.subtree[node] - used
        lent = self._available(limits, above)
        local = limits.local[node]
        most = limits.borrow[node]
        if most is not None:
            lent = np.minimum(lent, limits.subtree[node] - local - np.maximum(0, used - local) + most)
        return np.maximum(0, local - used) + lent

    def _mask(self, request: Request, gpu_type: str) -> NDArray[np.bool_]:
        kind = request.kind
        limits = self.world.tree.types[gpu_type]
        free = self.free[gpu_type] - self.claimed[gpu_type] - self._taken(gpu_type, request)
        mask = (free >= kind.size) & (self._available(limits, kind.queue) >= kind.size)
        if not kind.may_borrow:
            mask &= self._row(gpu_type, kind.queue) + kind.size <= limits.subtree[kind.queue]
        return mask

    def _concerns(self, window: Reservation, request: Request, gpu_type: str) -> bool:
        queue = self.world.tree.names[request.kind.queue]
        return queue not in window.queues and window.gpu_type in (None, gpu_type)

    def _taken(self, gpu_type: str, request: Request) -> Ints:
        """GPUs that windows take out for this request, over time; node windows are looked at node by node."""
        taken = np.zeros(len(self.times), dtype=np.int64)
        for window in self.windows:
            if not self._concerns(window, request, gpu_type) or (window.nodes and not self.world.count_only):
                continue
            inside = (self.times >= window.start_s) & (self.times < window.end_s)
            amount = np.full(len(self.times), window.num_gpus, dtype=np.int64)
            for name in window.queues:
                # What the window's own queues use is not taken out twice.
                owner = self.world.tree.queue_number.get(name)
                if owner is not None:
                    amount -= self._row(gpu_type, owner)
            taken += np.where(inside, np.maximum(amount, 0), 0)
        return taken

    def _nodes(self, request: Request, gpu_type: str, start: float, until: float) -> Placement | None:
        """Nodes that are free for the job during the whole time."""
        if self.world.count_only:
            return []
        pool = self.world.pools.get(gpu_type)
        if pool is None:
            return None
        free = pool.present.copy() if start == self.now_s else pool.free.copy()
        busy = self.busy[gpu_type]
        if not busy.is_sorted:
            busy.ends.sort()
            busy.is_sorted = True
        for end, node, gpus in busy.ends:
            if end > start:
                break
            free[node] += gpus
        for node, promises in busy.promised.items():
            free[node] -= _peak(promises, start, until)
        for window in self.windows:
            overlaps = window.start_s < until and window.end_s > start
            if window.nodes and overlaps and self._concerns(window, request, gpu_type):
                free[[pool.number[n] for n in window.nodes if n in pool.number]] = CLOSED
        return place(pool, free, request.kind.shape, self.world.policy.placement)

    def _point(self, time_s: float) -> int:
        """The grid index of a time; a new one is put into every row."""
        if time_s == inf:
            return len(self.times)
        at = int(np.searchsorted(self.times, time_s))
        if at == len(self.times) or self.times[at] != time_s:
            self.times = np.insert(self.times, at, time_s)
            self.usage = {key: np.insert(row, at, row[at - 1]) for key, row in self.usage.items()}
            self.free = {key: np.insert(row, at, row[at - 1]) for key, row in self.free.items()}
            self.claimed = {key: np.insert(row, at, row[at - 1]) for key, row in self.claimed.items()}
        return at


def _limit(request: Request) -> float:
    limit = request.job.time_limit_s
    return inf if limit is None else float(limit)


def _peak(promises: list[tuple[float, float, int]], start: float, until: float) -> int:
    """The most GPUs promised at one moment of the time."""
    inside = [p for p in promises if p[0] < until and p[1] > start]
    moments = {max(start, begin) for begin, _, _ in inside}
    return max((sum(g for b, e, g in inside if b <= m < e) for m in moments), default=0)


def _laid_out(window: Reservation, now_s: float) -> list[Reservation]:
    """The window's next times; one that is over is left out."""
    if window.every_s is None or window.every_s <= 0:
        return [window] if window.end_s > now_s else []
    skipped = max(0, int((now_s - window.end_s) // window.every_s) + 1) if window.end_s <= now_s else 0
    out = []
    for turn in range(skipped, skipped + NUM_REPEATS):
        shift = turn * window.every_s
        out.append(
            Reservation(
                window.name,
                window.kind,
                window.start_s + shift,
                window.end_s + shift,
                window.num_gpus,
                window.queues,
                window.gpu_type,
                window.nodes,
            )
        )
    return out
