"""One pass: decide every pending job, one after the other, on the state that the earlier ones leave."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

from scheduler.calendar import Calendar, Slot
from scheduler.consolidation import find_moves
from scheduler.division import fair_shares, one_pool
from scheduler.gates import Gates
from scheduler.holders import Holder
from scheduler.judge import Mode, Verdict, claim_of
from scheduler.line import AgeLine, PriorityLine
from scheduler.memory import Memory
from scheduler.nodes import as_mapping
from scheduler.placement import Placement
from scheduler.plan import Detail, Hold, Move, Plan, Planned, Preempt, Reason, Shrink, Start
from scheduler.reasons import Told, node_reason, quota_reason, space_reason
from scheduler.requests import Intake, JobClass, QueueWork, Request
from scheduler.shapes import Shape
from scheduler.share_tree import classic_factors, fair_tree_ranks
from scheduler.shares import all_shares
from scheduler.snapshot import Ordering, Reclaim, Snapshot
from scheduler.tournament import TournamentLine
from scheduler.upkeep import upkeep
from scheduler.usage_order import usage_order
from scheduler.world import World, world_build


def decide(snapshot: Snapshot) -> Plan:
    """What to start, preempt and hold now, and why everything else waits. Same input, same output."""
    if snapshot.policy.division:
        return _decide_divided(snapshot)
    world = world_build(snapshot)
    work = Intake(world.tree, world.levels, snapshot.policy)
    work.running = {job.id for job in snapshot.running}
    work.add_all(snapshot.pending)
    return run_pass(world, work, snapshot)


def _decide_divided(snapshot: Snapshot) -> Plan:
    parts, undivided = fair_shares(snapshot)
    pool = one_pool(snapshot)
    world = world_build(pool)
    world.parts = parts
    work = Intake(world.tree, world.levels, pool.policy)
    work.running = {job.id for job in pool.running}
    work.add_all(pool.pending)
    totals: Counter[str] = Counter()
    for by_queue in parts.values():
        totals.update(by_queue)
    return replace(run_pass(world, work, pool), fair_shares=dict(totals), undivided=sum(undivided.values()))


def run_pass(
    base: World, work: Intake, snapshot: Snapshot, memory: Memory | None = None, *, skip: bool | None = None
) -> Plan:
    """One pass over a world and an intake that were built before; both are left as they were.

    Of the snapshot only what is not in them is read: time, policy, nodes, windows, licences, shares.
    `memory`: what earlier passes over the same books found. `skip`: see PriorityLine.
    """
    memory = Memory() if memory is None else memory
    world = base.begin(snapshot.now_s)
    policy = snapshot.policy
    evict, replaced = upkeep(world, snapshot)
    run = Pass(world, snapshot)
    for job, reason, detail in work.begin(snapshot.now_s):
        run.told.tell(job, reason, detail)
    for queue in work.touched:
        memory.forget(queue)
    work.touched.clear()
    shares = all_shares(world.tree, world.usage) if policy.ordering == Ordering.FAIR_SHARE else {}
    works = [_in_turn(w, world, snapshot) for w in work.works.values() if w.requests]
    line: PriorityLine | TournamentLine | AgeLine
    if policy.ordering == Ordering.FAIR_SHARE:
        line = TournamentLine(world, works)
    elif policy.backfill:
        line = AgeLine(world, works)
    else:
        line = PriorityLine(world, works, run.explain, memory, skip=skip)
        run.tells_later = line.skip
    while (head := line.next()) is not None:
        request, verdict = head
        if verdict.room is not None:
            line.before_departure(request)
        line.decided(request, **run.carry_out(request, verdict))
    run.told.tell_all(line.finish())
    return Plan(
        start=tuple(run.start),
        preempt=tuple(run.preempt),
        hold=tuple(run.hold),
        shrink=_last_shrinks(run.shrink, {p.job for p in run.preempt}),
        move=tuple(run.move),
        planned=tuple(run.planned),
        pending=run.told.all(),
        rejected=tuple(work.rejected.values()),
        evict=tuple(evict),
        replace=tuple(replaced),
        problems=(*world.problems, *work.problems),
        shares=shares,
        ranks=fair_tree_ranks(snapshot.share_tree) if policy.ordering == Ordering.FAIR_TREE else {},
        factors=classic_factors(snapshot.share_tree) if policy.ordering == Ordering.CLASSIC_FAIRSHARE else {},
    )


def _in_turn(work: QueueWork, world: World, snapshot: Snapshot) -> QueueWork:
    """The queue's requests in the order of the policy."""
    if snapshot.policy.order_in_queue != "decayed_usage":
        return work
    parts = [s for s in snapshot.subqueues if s.queue == world.tree.names[work.queue]]
    return QueueWork(work.queue, usage_order(work.requests, parts, snapshot.policy), work.kinds)


def _ids(victims: list[Holder]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(victim.id for victim in victims))


def _last_shrinks(shrinks: list[Shrink], stopped: set[str]) -> tuple[Shrink, ...]:
    """Of a job that was shrunk twice in the pass what is left in the end; nothing of one that was stopped."""
    return tuple({shrink.job: shrink for shrink in shrinks if shrink.job not in stopped}.values())


class Outcome(TypedDict):
    """What a decision did: gave GPUs out, told victims to stop, told the job why it waits."""

    changed: bool
    evicted: bool
    told: bool


def _outcome(*, changed: bool = False, evicted: bool = False, told: bool = True) -> Outcome:
    return Outcome(changed=changed, evicted=evicted, told=told)


class Pass:
    """The decisions so far."""

    def __init__(self, world: World, snapshot: Snapshot) -> None:
        self.world = world
        self.policy = snapshot.policy
        self.gates = Gates(world, snapshot)
        needs_calendar = snapshot.policy.backfill or snapshot.reservations
        self.calendar = Calendar(world, snapshot) if needs_calendar else None
        self.start: list[Start] = []
        self.preempt: list[Preempt] = []
        self.hold: list[Hold] = []
        self.shrink: list[Shrink] = []
        self.move: list[Move] = []
        self.planned: list[Planned] = []
        self.told = Told()
        # In a large pass jobs are told why they wait at its end, equal ones together.
        self.tells_later = False
        self.at_turn: dict[JobClass, tuple[Reason, Detail]] = {}
        # Reasons of nodes, for a state of the world.
        self.by_shape: dict[tuple[str, Shape], tuple[Reason, Detail] | None] = {}
        self.by_shape_at = -1

    def explain(self, kind: JobClass, gpu_type: str) -> tuple[Reason, Detail]:
        """Why jobs of the kind wait, told at the end of the pass."""
        found = quota_reason(self.world, kind, gpu_type)
        if found is None:
            if self.by_shape_at != self.world.version:
                self.by_shape, self.by_shape_at = {}, self.world.version
            key = (gpu_type, kind.shape)
            if key not in self.by_shape:
                self.by_shape[key] = node_reason(self.world, kind, gpu_type)
            found = self.by_shape[key]
        # What leaves during a pass may make room for jobs whose turn is over: theirs stands.
        return found or self.at_turn.get(kind, (Reason.PRIORITY, {"gpu_type": gpu_type}))

    def carry_out(self, request: Request, verdict: Verdict) -> Outcome:
        """Take the step that the verdict allows."""
        if verdict.mode >= Mode.PREEMPT:
            closed = self.gates.closed(request)
            if closed is not None:
                self.told.tell(request.id, *closed)
                return _outcome()
        if verdict.mode == Mode.FIT and verdict.at_once:
            return _outcome(changed=self._start(request, verdict))
        if verdict.mode == Mode.FIT or (verdict.room is not None and self.gates.may_disturb(verdict.room.victims)):
            self._hold(request, verdict)
            return _outcome(changed=True, evicted=verdict.room is not None)
        if verdict.room is not None:
            # The victims are legal, but this pass has disturbed enough.
            victims = _ids(verdict.room.victims)
            self._wait(request, verdict, Reason.DISRUPTION_BUDGET, {"victims": victims})
            return _outcome()
        found = space_reason(self.world, request.kind, verdict.gpu_type)
        assert found is not None, "a job that fits is started or held"
        if found[0] in (Reason.FRAGMENTED, Reason.TOPOLOGY) and self._consolidate(request, verdict.gpu_type):
            return _outcome(changed=True, evicted=True)
        if self.tells_later:
            self.at_turn[request.kind] = found
        else:
            self._wait(request, verdict, *found)
        reserves = verdict.mode == Mode.NO_CANDIDATES and not self.policy.backfill
        changed = reserves and self._reserve(request, verdict)
        return _outcome(changed=changed, told=not self.tells_later)

    def _start(self, request: Request, verdict: Verdict) -> bool:
        """Start the job, unless the calendar has something against it."""
        gpu_type, placement = verdict.gpu_type, verdict.placement
        if self.calendar is not None:
            found = self._start_beside_plans(request, gpu_type)
            if found is None:
                window = self.calendar.blocked_by(request, gpu_type)
                if window is None:
                    self._wait(request, verdict, Reason.PRIORITY, {"gpu_type": gpu_type})
                else:
                    reason = Reason.MAINTENANCE if window.kind == "maintenance" else Reason.RESERVATION
                    detail = {"window": window.name, "start_s": window.start_s, "end_s": window.end_s}
                    self._wait(request, verdict, reason, detail)
                return False
            gpu_type, placement = found
            self.calendar.occupy(request, gpu_type, placement)
        self.world.take(request.kind.queue, gpu_type, request.kind.size, placement)
        self.gates.took(request)
        self.start.append(Start(request.id, self._named(gpu_type, placement), gpu_type, request.kind.size))
        return True

    def _start_beside_plans(self, request: Request, first: str) -> tuple[str, Placement] | None:
        """The GPU type (the chosen one, else another that fits now) and nodes on which no plan is delayed."""
        assert self.calendar is not None
        kind, tree = request.kind, self.world.tree
        for gpu_type in (first, *(t for t in kind.gpu_types if t != first)):
            limits = tree.types.get(gpu_type)
            if limits is None or not limits.listed[kind.queue]:
                continue
            if not self.world.fits_quota(limits, kind.queue, kind.size, present=True):
                continue
            placement = self.calendar.fits_now(request, gpu_type)
            if placement is not None:
                return gpu_type, placement
        return None

    def _hold(self, request: Request, verdict: Verdict) -> None:
        """Keep the job's GPUs while those who hold them leave; tell new victims to."""
        victims = verdict.room.victims if verdict.room is not None else []
        if self.calendar is not None:
            self.calendar.leave(victims)
            self.calendar.occupy(request, verdict.gpu_type, verdict.placement)
        for victim in (v for v in victims if not v.is_surplus):
            self.preempt.append(Preempt(victim.id, request.id, victim.lost_gpu_s(self.world.now_s)))
        self.shrink.extend(self._shrunk(victims, request))
        if victims:
            self.world.leave(victims)
            self.gates.disturbed(victims)
        self.world.take(request.kind.queue, verdict.gpu_type, request.kind.size, verdict.placement)
        self.gates.took(request)
        self.hold.append(Hold(request.id, self._named(verdict.gpu_type, verdict.placement), verdict.gpu_type))
        self.told.tell(request.id, Reason.WAITING_FOR_PREEMPTION, {"victims": _ids(victims)})

    def _consolidate(self, request: Request, gpu_type: str) -> bool:
        """Move running jobs so that the request fits, if the policy allows it and few moves do."""
        if not (self.policy.consolidation or self.policy.division) or self.gates.closed(request) is not None:
            return False
        found = find_moves(self.world, claim_of(request, gpu_type))
        if found is None:
            return False
        for holder, placement in found.moved:
            if self.calendar is not None:
                self.calendar.move(holder, placement)
            self.world.move(holder, placement)
            self.move.append(Move(holder.id, self._named(gpu_type, placement), request.id))
        if self.calendar is not None:
            self.calendar.occupy(request, gpu_type, found.placement)
        self.world.take(request.kind.queue, gpu_type, request.kind.size, found.placement)
        self.gates.took(request)
        self.hold.append(Hold(request.id, self._named(gpu_type, found.placement), gpu_type))
        moved = tuple(holder.id for holder, _ in found.moved)
        self.told.tell(request.id, Reason.WAITING_FOR_PREEMPTION, {"victims": (), "moved": moved})
        return True

    def _shrunk(self, victims: list[Holder], request: Request) -> Iterator[Shrink]:
        """Elastic jobs that go on with fewer workers."""
        stopped = {v.id for v in victims if not v.is_surplus}
        lost: dict[str, list[Holder]] = {}
        for victim in victims:
            if victim.is_surplus and victim.id not in stopped:
                lost.setdefault(victim.id, []).append(victim)
        for job_id, parts in lost.items():
            rest = [
                h
                for h in self.world.holders[parts[0].queue, parts[0].gpu_type]
                if h.id == job_id and h not in parts and h not in self.world.gone
            ]
            kept: Counter[int] = Counter()
            for part in rest:
                kept.update(dict(part.placement))
            placement = self._named(parts[0].gpu_type, sorted(kept.items()))
            yield Shrink(job_id, sum(part.size for part in rest), placement, request.id)

    def _wait(self, request: Request, verdict: Verdict, reason: Reason, detail: Detail) -> None:
        """The job waits; with backfill it gets the earliest slot, which is kept for it."""
        self.told.tell(request.id, reason, detail)
        depth = self.policy.plan_depth
        if not self.policy.backfill or self.calendar is None or (depth is not None and len(self.planned) >= depth):
            return
        best: Slot | None = None
        for gpu_type in request.kind.gpu_types:
            limits = self.world.tree.types.get(gpu_type)
            if limits is None or not limits.listed[request.kind.queue]:
                continue
            slot = self.calendar.earliest(request, gpu_type)
            if slot is not None and (best is None or slot.start_s < best.start_s):
                best = slot
        if best is not None:
            self.calendar.promise(request, best)
            self.planned.append(Planned(request.id, best.start_s))

    def _reserve(self, request: Request, verdict: Verdict) -> bool:
        """Keep capacity for a job whose queue could not simply take it back later."""
        queue = request.kind.queue
        if self.world.tree.queues[queue].preemption.reclaim_within_cohort == Reclaim.ANY:
            return False
        limits = self.world.tree.types[verdict.gpu_type]
        used = self.world.usage[verdict.gpu_type][queue]
        if verdict.borrows:
            most = limits.borrow[queue]
            amount = request.kind.size
            if most is not None:
                amount = min(amount, limits.nominal[queue] + most - used)
        else:
            amount = min(request.kind.size, limits.nominal[queue] - used)
        if amount <= 0:
            return False
        self.world.take(queue, verdict.gpu_type, amount, [])
        return True

    def _named(self, gpu_type: str, placement: Placement) -> dict[str, int]:
        pool = self.world.pools.get(gpu_type)
        return dict(as_mapping(pool, placement)) if pool is not None else {}
