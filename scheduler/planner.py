"""One pass: decide every pending job, one after the other, on the state that the earlier ones leave."""

from scheduler.fair_share import all_shares
from scheduler.judge import Mode, Verdict
from scheduler.line import PriorityLine
from scheduler.nodes import as_mapping
from scheduler.placement import Placement
from scheduler.plan import Hold, Plan, Preempt, Reason, Start
from scheduler.reasons import Told, space_reason
from scheduler.requests import Request, intake
from scheduler.snapshot import Ordering, Reclaim, Snapshot
from scheduler.tournament import TournamentLine
from scheduler.world import World, world_build


def decide(snapshot: Snapshot) -> Plan:
    """What to start, preempt and hold now, and why everything else waits. Same input, same output."""
    world, problems = world_build(snapshot)
    work = intake(snapshot, world.tree)
    run = Pass(world)
    for job, reason, detail in work.waiting:
        run.told.tell(job, reason, detail)
    shares = all_shares(world.tree, world.usage) if snapshot.policy.ordering == Ordering.FAIR_SHARE else {}
    line: PriorityLine | TournamentLine
    if snapshot.policy.ordering == Ordering.FAIR_SHARE:
        line = TournamentLine(world, work.by_queue)
    else:
        line = PriorityLine(world, work.by_queue)
    while (head := line.next()) is not None:
        request, verdict = head
        changed, evicted = run.carry_out(request, verdict)
        line.decided(request, changed=changed, evicted=evicted)
    return Plan(
        start=tuple(run.start),
        preempt=tuple(run.preempt),
        hold=tuple(run.hold),
        pending=run.told.all(),
        rejected=tuple(work.rejected),
        problems=tuple(problems + work.problems),
        shares=shares,
    )


class Pass:
    """The decisions so far."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.start: list[Start] = []
        self.preempt: list[Preempt] = []
        self.hold: list[Hold] = []
        self.told = Told()

    def carry_out(self, request: Request, verdict: Verdict) -> tuple[bool, bool]:
        """Take the step that the verdict allows. Whether GPUs were given out, and victims chosen."""
        if verdict.mode == Mode.FIT and verdict.at_once:
            self._take(request, verdict)
            placement = self._named(verdict.gpu_type, verdict.placement)
            self.start.append(Start(request.id, placement, verdict.gpu_type, request.kind.size))
            return True, False
        if verdict.mode >= Mode.PREEMPT:
            if verdict.room is not None:
                for victim in verdict.room.victims:
                    self.preempt.append(Preempt(victim.id, request.id, victim.lost_gpu_s))
                self.world.leave(verdict.room.victims)
            self._take(request, verdict)
            placement = self._named(verdict.gpu_type, verdict.placement)
            self.hold.append(Hold(request.id, placement, verdict.gpu_type))
            victims = tuple(v.id for v in verdict.room.victims) if verdict.room is not None else ()
            self.told.tell(request.id, Reason.WAITING_FOR_PREEMPTION, {"victims": victims})
            return True, verdict.room is not None
        found = space_reason(self.world, request, verdict.gpu_type)
        assert found is not None, "a job that fits is started or held"
        self.told.tell(request.id, *found)
        if verdict.mode == Mode.NO_CANDIDATES:
            return self._reserve(request, verdict), False
        return False, False

    def _take(self, request: Request, verdict: Verdict) -> None:
        self.world.take(request.kind.queue, verdict.gpu_type, request.kind.size, verdict.placement)

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
