"""Who is next under the priority ordering: the first undecided job of every queue competes."""

import heapq

from scheduler.judge import Mode, Verdict, judge, least_height
from scheduler.requests import Request
from scheduler.world import World

Key = tuple[int, int, float, float, str]


class AgeLine:
    """Held preemptors first, then higher priority, older, id, over all queues: the order of backfill."""

    def __init__(self, world: World, queues: dict[int, list[Request]]) -> None:
        self.world = world
        self.queues = queues
        self.at = dict.fromkeys(queues, 0)
        self.heap = [(self._key(requests[0]), queue) for queue, requests in queues.items() if requests]
        heapq.heapify(self.heap)

    def next(self) -> tuple[Request, Verdict] | None:
        """The next job to decide and what it may do, or None when all are decided."""
        if not self.heap:
            return None
        queue = self.heap[0][1]
        request = self.queues[queue][self.at[queue]]
        return request, judge(self.world, request)

    def decided(self, request: Request, *, changed: bool, evicted: bool) -> None:
        """The request is done."""
        queue = request.kind.queue
        self.at[queue] += 1
        if self.at[queue] < len(self.queues[queue]):
            heapq.heapreplace(self.heap, (self._key(self.queues[queue][self.at[queue]]), queue))
        else:
            heapq.heappop(self.heap)

    def _key(self, request: Request) -> tuple[int, float, float, str]:
        return (0 if request.job.held else 1, *request.order)


class PriorityLine:
    """Held preemptors first, then lower borrow height, higher priority, older, id.

    A head's height can only grow while GPUs are given out, so an old key is a lower bound: the
    smallest is judged anew, and decided if it is still the smallest. Where that does not hold
    (victims leave; a job that may change its GPU type or evicts) keys start again from below.
    """

    def __init__(self, world: World, queues: dict[int, list[Request]]) -> None:
        self.world = world
        self.queues = queues
        self.at = dict.fromkeys(queues, 0)
        self.stamp = dict.fromkeys(queues, 0)
        self.heap: list[tuple[Key, int, int]] = []
        self.judged: dict[int, tuple[int, Request, Verdict]] = {}
        self.unsteady: set[int] = set()
        for queue in queues:
            self._enter(queue)

    def next(self) -> tuple[Request, Verdict] | None:
        """The next job to decide and what it may do, or None when all are decided."""
        while self.heap:
            _, queue, stamp = heapq.heappop(self.heap)
            if stamp != self.stamp[queue]:
                continue
            request = self.queues[queue][self.at[queue]]
            verdict = self._judge(queue, request)
            key = self._key(request, verdict.height)
            while self.heap and self.heap[0][2] != self.stamp[self.heap[0][1]]:
                heapq.heappop(self.heap)
            if self.heap and key > self.heap[0][0]:
                heapq.heappush(self.heap, (key, queue, stamp))
                if len(request.kind.gpu_types) > 1 or verdict.mode in (Mode.PREEMPT, Mode.RECLAIM):
                    self.unsteady.add(queue)
                continue
            return request, verdict
        return None

    def decided(self, request: Request, *, changed: bool, evicted: bool) -> None:
        """The request is done; `changed`: GPUs were given out, `evicted`: victims were chosen."""
        queue = request.kind.queue
        self.at[queue] += 1
        self.unsteady.discard(queue)
        self._enter(queue)
        if evicted:
            root = self.world.tree.root
            again = {other for other in self.queues if root[other] == root[queue]} | self.unsteady
        else:
            again = self.unsteady if changed else set()
        for other in sorted(again - {queue}):
            self._enter(other)
        if again:
            self.unsteady = set()

    def _enter(self, queue: int) -> None:
        self.stamp[queue] += 1
        if self.at[queue] < len(self.queues[queue]):
            request = self.queues[queue][self.at[queue]]
            key = self._key(request, least_height(self.world, request))
            heapq.heappush(self.heap, (key, queue, self.stamp[queue]))

    def _key(self, request: Request, height: int) -> Key:
        return (0 if request.job.held else 1, height, *request.order)

    def _judge(self, queue: int, request: Request) -> Verdict:
        known = self.judged.get(queue)
        stamp = self.world.version
        if known is not None and known[0] == stamp and known[1] is request:
            return known[2]
        verdict = judge(self.world, request)
        self.judged[queue] = (stamp, request, verdict)
        return verdict
