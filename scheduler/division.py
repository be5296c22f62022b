"""Dividing a cluster by deserved parts and weights, and taking back what is above one's part.

An optional school (KAI's): each queue's quota is what it deserves; what is left over is divided by
weight among those that ask for more, level of queue priority by level.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from scheduler.eviction import evictable, own_victims
from scheduler.holders import Holder
from scheduler.quota import TypeLimits
from scheduler.snapshot import Cohort, Limit, Queue, Snapshot
from scheduler.trial import Claim, Room, Trial
from scheduler.world import World

# The cohort that stands for the whole cluster.
CLUSTER = "(cluster)"


@dataclass(frozen=True, slots=True)
class Part:
    """What one queue brings into the division of one GPU type."""

    name: str
    deserved: int
    asked: int
    weight: Fraction
    priority: int = 0
    created_s: float = 0


def divide(total: int, parts: Sequence[Part]) -> tuple[dict[str, int], int]:
    """Whole GPUs for each queue, and how many nobody asked for.

    Deserved parts first, even when they are more than there is; then by weight, what does not
    divide going to the largest remainder, then to the older queue, then by name.
    """
    share = {p.name: min(p.deserved, p.asked) for p in parts}
    left = max(0, total - sum(share.values()))
    for priority in sorted({p.priority for p in parts}, reverse=True):
        level = [p for p in parts if p.priority == priority]
        while left > 0:
            open_parts = [p for p in level if p.weight > 0 and share[p.name] < p.asked]
            weights = sum(p.weight for p in open_parts)
            if not weights:
                break
            exact = {p.name: left * p.weight / weights for p in open_parts}
            given = {p.name: min(int(exact[p.name]), p.asked - share[p.name]) for p in open_parts}
            if not any(given.values()):
                order = sorted(open_parts, key=lambda p: (int(exact[p.name]) - exact[p.name], p.created_s, p.name))
                given = {p.name: 1 for p in order[:left]}
            for name, amount in given.items():
                share[name] += amount
                left -= amount
    return share, left


def fair_shares(snapshot: Snapshot) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Each queue's part and what is left, per GPU type."""
    shares: dict[str, dict[str, int]] = {}
    undivided: dict[str, int] = {}
    for gpu_type in sorted({t for q in snapshot.queues for t in q.quota}):
        asked: dict[str, int] = {}
        for running in snapshot.running:
            if running.gpu_type == gpu_type:
                asked[running.queue] = asked.get(running.queue, 0) + running.size
        for pending in snapshot.pending:
            if pending.gpu_types and pending.gpu_types[0] == gpu_type:
                asked[pending.queue] = asked.get(pending.queue, 0) + pending.size
        parts = [
            Part(q.name, q.quota[gpu_type].nominal, asked.get(q.name, 0), Fraction(q.weight), q.priority, q.created_s)
            for q in snapshot.queues
            if gpu_type in q.quota
        ]
        shares[gpu_type], undivided[gpu_type] = divide(_total(snapshot, gpu_type), parts)
    return shares, undivided


def one_pool(snapshot: Snapshot) -> Snapshot:
    """The snapshot with all queues in one cohort that owns what nobody deserves: quotas cap nothing."""
    types = sorted({t for q in snapshot.queues for t in q.quota})
    rest = {
        t: Limit(max(0, _total(snapshot, t) - sum(q.quota[t].nominal for q in snapshot.queues if t in q.quota)))
        for t in types
    }
    queues = tuple(
        replace(q, cohort=CLUSTER, quota={t: Limit(limit.nominal) for t, limit in q.quota.items()})
        for q in snapshot.queues
    )
    return replace(snapshot, queues=queues, cohorts=(Cohort(CLUSTER, quota=rest),))


def _total(snapshot: Snapshot, gpu_type: str) -> int:
    if snapshot.nodes:
        return sum(n.num_gpus for n in snapshot.nodes if n.gpu_type == gpu_type and n.state == "ready")
    items: list[Queue | Cohort] = [*snapshot.queues, *snapshot.cohorts]
    return sum(item.quota[gpu_type].nominal for item in items if gpu_type in item.quota)


def find_room_by_division(world: World, claim: Claim, shares: Mapping[str, int]) -> Room | None:
    """Victims that hold more than their queue's part, for a claim inside its own; surplus workers first."""
    search = _Search(world, world.tree.types[claim.gpu_type], claim, shares)
    trial = Trial(world, search.limits, claim)
    room = None
    for holder in search.candidates():
        if not search.is_above(holder):
            continue
        trial.remove(holder)
        if trial.fits(borrow=True):
            room = trial.room(borrow=True)
            break
    trial.undo()
    return room


class _Search:
    def __init__(self, world: World, limits: TypeLimits, claim: Claim, shares: Mapping[str, int]) -> None:
        self.world, self.limits, self.claim, self.shares = world, limits, claim, shares
        self.usage = world.usage[claim.gpu_type]
        self.after = self.usage[claim.queue] + claim.size

    def candidates(self) -> Iterator[Holder]:
        """Lower priority first, surplus first, then newest, then last by id; the own queue's at the end."""
        if self.after <= self.shares.get(self.world.tree.names[self.claim.queue], 0):
            foreign = [
                holder
                for (queue, gpu_type), holders in self.world.holders.items()
                if gpu_type == self.claim.gpu_type and queue not in (-1, self.claim.queue)
                for holder in holders
                if evictable(self.world, holder)
            ]
            foreign.sort(key=lambda h: h.id, reverse=True)
            foreign.sort(key=lambda h: (h.priority, not h.is_surplus, -h.started_s))
            yield from foreign
        yield from own_victims(self.world, self.world.tree.queues[self.claim.queue].preemption, self.claim)

    def is_above(self, holder: Holder) -> bool:
        """Whether the holder may be taken as things are: never below a deserved part."""
        queue = holder.queue
        if queue == self.claim.queue:
            return True
        if self.after <= self.limits.nominal[self.claim.queue]:
            return self.usage[queue] > self.limits.nominal[queue]
        part = self.shares.get(self.world.tree.names[queue], 0)
        return self.usage[queue] - holder.size >= part
