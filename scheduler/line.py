"""Who is next: the first undecided job of every queue competes, judged on the state as it is now."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.judge import Verdict, current_height, judge, least_height
from scheduler.memory import Group, Memory
from scheduler.plan import Detail, Reason
from scheduler.prospects import Prospects
from scheduler.requests import JobClass, QueueWork, Request
from scheduler.world import World

# Why jobs of a kind wait for GPUs of a type.
Explain = Callable[[JobClass, str], tuple[Reason, Detail]]
Key = tuple[int, int, float, float, str]
# With fewer jobs each gets a turn of its own, so that its reason is of the very moment of its turn.
MIN_JOBS_TO_SKIP = 2000


class AgeLine:
    """Held preemptors first, then higher priority, older, id, over all queues: the order of backfill."""

    def __init__(self, world: World, works: list[QueueWork]) -> None:
        self.world = world
        every = [request for work in works for request in work.requests]
        every.sort(key=lambda r: r.order)
        self.rest = iter(every)

    def next(self) -> tuple[Request, Verdict] | None:
        """The next job to decide and what it may do, or None when all are decided."""
        request = next(self.rest, None)
        return None if request is None else (request, judge(self.world, request))

    def before_departure(self, request: Request) -> None:
        """Victims are about to leave for the request."""

    def decided(self, request: Request, *, changed: bool, evicted: bool, told: bool = True) -> None:
        """The request is done."""

    def finish(self) -> list[Group]:
        """All were told at their turn."""
        return []


@dataclass(slots=True)
class _Lane:
    """One queue's line: `at` is the first undecided request, `live` the first that may do something."""

    requests: list[Request]
    at: int = 0
    live: int = 0
    stamp: int = 0
    # The first whose reason stands open: those up to `at` had their turn, and are answered by the state at the end
    # of the pass or before the next departure, whichever comes first.
    unanswered: int = 0
    # Hopeless kinds between the two, each with its last place there.
    passed: dict[JobClass, int] = field(default_factory=dict)


class PriorityLine:
    """Held preemptors first, then lower borrow height, higher priority, older, id.

    While GPUs are given out a head's height only grows, so its old key is a lower bound: the head
    with the smallest key is judged anew, and decided if it is the smallest still. Heads whose key
    may also fall (they may evict, or change their GPU type) start again from their lower bound after
    each change, and all that victims concern after each departure.

    With many jobs (`skip`) hopeless ones are passed by; they keep their turn in one respect: jobs
    behind them wait until it is over. And a job that would evict its own queue's takes its turn by
    the height before the eviction, so that each change need not start all such searches again.
    """

    def __init__(
        self, world: World, works: list[QueueWork], explain: Explain, memory: Memory, *, skip: bool | None = None
    ) -> None:
        self.explain = explain
        self.memory = memory
        self.world = world
        self.skip = sum(len(w.requests) for w in works) >= MIN_JOBS_TO_SKIP if skip is None else skip
        self.prospects = Prospects(world)
        self.lanes: dict[int, _Lane] = {}
        self.works = {work.queue: work for work in works}
        self.heap: list[tuple[Key, int, int]] = []
        self.unsteady: set[int] = set()
        # Jobs answered already, by queue and kind.
        self.turned: dict[int, dict[JobClass, set[str]]] = {}
        self.concerned: set[int] = set()
        self.key: Key = (0, 0, 0.0, 0.0, "")
        self.answers: list[Group] = []
        for queue, work in self.works.items():
            if not self._all_hopeless(work):
                self.lanes[queue] = _Lane(work.requests)
                self._enter(queue)

    def next(self) -> tuple[Request, Verdict] | None:
        """The next job to decide and what it may do, or None when all are decided."""
        while self.heap:
            _, queue, stamp = heapq.heappop(self.heap)
            lane = self.lanes[queue]
            if stamp != lane.stamp or not self._advance(lane):
                continue
            request = lane.requests[lane.live]
            verdict = judge(self.world, request)
            key = self._key(request, verdict.height)
            if lane.passed:
                key = max(key, self._passed_key(lane))
            while self.heap and self.heap[0][2] != self.lanes[self.heap[0][1]].stamp:
                heapq.heappop(self.heap)
            if self.heap and key > self.heap[0][0]:
                heapq.heappush(self.heap, (key, queue, stamp))
                if not self.skip and verdict.height > least_height(self.world, request):
                    self.unsteady.add(queue)
                continue
            self.key = key
            return request, verdict
        return None

    def before_departure(self, request: Request) -> None:
        """Victims are about to leave for the request: skipped jobs whose turn is over are answered now."""
        root = self.world.tree.root
        mine = root[request.kind.queue]
        self.concerned = {other for other in self.works if root[other] == mine} | self.unsteady
        self.concerned |= self.prospects.for_nodes
        self.prospects.for_nodes = set()
        # Those of its own queue that were passed by had their turn before it.
        self._settle(request.kind.queue, self.lanes[request.kind.queue])
        for queue in self.concerned - {request.kind.queue}:
            lane = self.lanes.get(queue)
            if lane is None:
                requests = self.works[queue].requests
                lane = self.lanes[queue] = _Lane(requests, live=len(requests))
            self._settle(queue, lane)
            lane.live, lane.passed = lane.at, {}

    def decided(self, request: Request, *, changed: bool, evicted: bool, told: bool = True) -> None:
        """The request is done; `changed`: GPUs were given out, `evicted`: victims were chosen."""
        queue = request.kind.queue
        lane = self.lanes[queue]
        if told:
            self.turned.setdefault(queue, {}).setdefault(request.kind, set()).add(request.id)
        lane.at = lane.live = lane.live + 1
        lane.passed = {}
        self.unsteady.discard(queue)
        self._enter(queue)
        again = self.concerned if evicted else self.unsteady if changed else set()
        for other in sorted(again - {queue}):
            self._enter(other)
        self.unsteady -= again

    def finish(self) -> list[Group]:
        """Why jobs wait that were not told so at their turn, by the state at the end of the pass."""
        if not self.skip:
            return []
        for queue, work in self.works.items():
            turned = self.turned.get(queue)
            if turned is None and self.memory.needs_of(self.world, queue) == {}:
                groups = self.memory.known_answers(self.world, queue)
                if groups is None:
                    groups = [self._answer(kind, tuple(kind.members)) for kind in work.kinds]
                    self.memory.keep_answers(self.world, queue, groups)
                self.answers.extend(groups)
                continue
            for kind in work.kinds:
                gone = turned.get(kind) if turned is not None else None
                ids = tuple(kind.members) if gone is None else tuple(i for i in kind.members if i not in gone)
                if ids:
                    self.answers.append(self._answer(kind, ids))
        return self.answers

    def _answer(self, kind: JobClass, ids: tuple[str, ...]) -> Group:
        one = len(kind.gpu_types) == 1
        return (ids, *self.explain(kind, kind.gpu_types[0] if one else self.prospects.waiting_height(kind)[1]))

    def _all_hopeless(self, work: QueueWork) -> bool:
        """Whether the queue can be left aside. It is remembered if that is for want of quota alone."""
        if not self.skip:
            return False
        needs = self.memory.needs_of(self.world, work.queue)
        if needs is not None and not self.prospects.is_met(needs):
            if needs:
                self.prospects.for_nodes.add(work.queue)
            return True
        self.prospects.begin()
        if not all(self.prospects.hopeless(kind) for kind in work.kinds):
            return False
        if self.prospects.needs is not None:
            self.memory.keep_quiet(self.world, work.queue, self.prospects.needs)
        return True

    def _advance(self, lane: _Lane) -> bool:
        """Pass hopeless jobs by; False when nobody is left."""
        requests, at = lane.requests, lane.live
        if self.skip:
            hopeless, known, now = self.prospects.hopeless, self.prospects.known, self.world.departures
            while at < len(requests):
                kind = requests[at].kind
                if known.get(kind) != now and not hopeless(kind):
                    break
                lane.passed[kind] = at
                at += 1
            lane.live = at
        return at < len(requests)

    def _passed_key(self, lane: _Lane) -> Key:
        """The latest turn of those that were passed by."""
        return max(
            self._key(lane.requests[at], self.prospects.waiting_height(kind)[0]) for kind, at in lane.passed.items()
        )

    def _settle(self, queue: int, lane: _Lane) -> None:
        """Answer the skipped jobs whose turn is over; the others may hope again."""
        if not self.skip:
            return
        heights: dict[JobClass, tuple[int, str]] = {}
        done: dict[JobClass, list[str]] = {}
        turned = self.turned.setdefault(queue, {})
        for request in lane.requests[lane.unanswered : lane.at]:
            if request.id not in turned.get(request.kind, ()):
                done.setdefault(request.kind, []).append(request.id)
        while lane.at < lane.live:
            request = lane.requests[lane.at]
            kind = request.kind
            if kind not in heights:
                heights[kind] = self.prospects.waiting_height(kind)
            if self._key(request, heights[kind][0]) > self.key:
                break
            done.setdefault(kind, []).append(request.id)
            lane.at += 1
        lane.unanswered = lane.at
        for kind, ids in done.items():
            turned.setdefault(kind, set()).update(ids)
            self.answers.append(self._answer(kind, tuple(ids)))

    def _enter(self, queue: int) -> None:
        lane = self.lanes[queue]
        lane.stamp += 1
        if self._advance(lane):
            request = lane.requests[lane.live]
            bound = current_height if self.skip else least_height
            key = self._key(request, bound(self.world, request))
            heapq.heappush(self.heap, (key, queue, lane.stamp))

    def _key(self, request: Request, height: int) -> Key:
        turn, priority, age, job_id = request.order
        return (turn, height, priority, age, job_id)
