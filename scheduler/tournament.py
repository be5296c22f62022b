"""Who is next under fair share: a tournament of the heads through the quota tree."""

from scheduler.judge import Verdict, judge
from scheduler.memory import Group
from scheduler.requests import QueueWork, Request
from scheduler.shares import Share, share_from
from scheduler.world import World

Rank = tuple[int, int, Share, float, float, str]


class TournamentLine:
    """At every cohort the children that hold heads are compared; the winner moves up."""

    def __init__(self, world: World, works: list[QueueWork]) -> None:
        self.world = world
        self.queues = {work.queue: work.requests for work in works}
        queues = self.queues
        self.at = dict.fromkeys(queues, 0)
        self.judged: dict[int, tuple[int, Request, Verdict]] = {}

    def next(self) -> tuple[Request, Verdict] | None:
        """The next job to decide and what it may do, or None when all are decided."""
        heads: dict[int, int] = {}
        for queue, requests in self.queues.items():
            if self.at[queue] < len(requests):
                heads[queue] = queue
        if not heads:
            return None
        winners: dict[int, int] = {}
        for queue in heads:
            winners.setdefault(self.world.tree.root[queue], -1)
        best = None
        for root in winners:
            winner = self._winner(root, heads)
            assert winner is not None, "a tree with heads has a winner"
            request = self._head(winner)
            key = request.order
            if best is None or key < best[0]:
                best = (key, winner)
        assert best is not None, "there is a head"
        request = self._head(best[1])
        return request, self._judge(best[1], request)

    def decided(self, request: Request, *, changed: bool, evicted: bool, told: bool = True) -> None:
        """The request is done; `changed`: GPUs were given out, `evicted`: victims were chosen."""
        self.at[request.kind.queue] += 1

    def before_departure(self, request: Request) -> None:
        """Victims are about to leave for the request."""

    def finish(self) -> list[Group]:
        """All were told at their turn."""
        return []

    def _head(self, queue: int) -> Request:
        return self.queues[queue][self.at[queue]]

    def _winner(self, node: int, heads: dict[int, int]) -> int | None:
        if node < len(self.world.tree.queues):
            return heads.get(node)
        best: tuple[Rank, int] | None = None
        for child in self.world.tree.children[node]:
            queue = self._winner(child, heads)
            if queue is None:
                continue
            rank = self._rank(child, queue)
            if best is None or rank < best[0]:
                best = (rank, queue)
        return None if best is None else best[1]

    def _rank(self, node: int, queue: int) -> Rank:
        request = self._head(queue)
        gpu_type = self._judge(queue, request).gpu_type
        tree, limits = self.world.tree, self.world.tree.types[gpu_type]
        usage = self.world.usage[gpu_type]
        amount, at = request.kind.size, queue
        while at != node:
            old, kept = usage[at], limits.local[at]
            amount = max(0, old + amount - kept) - max(0, old - kept)
            at = tree.parent[at]
        parent = tree.parent[node]
        over = lendable = 0
        for name, other in tree.types.items():
            extra = amount if name == gpu_type else 0
            over += max(0, self.world.usage[name][node] + extra - other.subtree[node])
            lendable += other.potential[parent]
        borrows = usage[node] + amount > limits.subtree[node]
        share = share_from(over, lendable, tree.weight[node])
        turn, priority, age, job_id = request.order
        return (turn, int(borrows), share, priority, age, job_id)

    def _judge(self, queue: int, request: Request) -> Verdict:
        known = self.judged.get(queue)
        if known is not None and known[0] == self.world.version and known[1] is request:
            return known[2]
        verdict = judge(self.world, request)
        self.judged[queue] = (self.world.version, request, verdict)
        return verdict
