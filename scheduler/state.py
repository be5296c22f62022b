"""State that is kept between passes, so that a pass after one event costs little.

Nothing here decides: `Scheduler.decide` runs the same pass as `decide(snapshot)` over books that
were brought up to date instead of built anew. With `verify` each pass is compared with a rebuild.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler.holders import Holder
from scheduler.memory import Memory
from scheduler.plan import Plan, Start
from scheduler.planner import decide, run_pass
from scheduler.requests import Intake
from scheduler.snapshot import (
    Cohort,
    Node,
    PendingJob,
    Policy,
    Queue,
    Reservation,
    RunningJob,
    ShareNode,
    Snapshot,
    Subqueue,
)
from scheduler.world import World, world_build


class StateDrifted(AssertionError):
    """The kept books and a rebuild decide differently: a fault of the scheduler itself."""


class Scheduler:
    """A snapshot that takes changes. Times may go backwards; then everything is built anew."""

    def __init__(self, snapshot: Snapshot, *, verify: bool = False) -> None:
        self.verify = verify
        self.pending = {job.id: job for job in reversed(snapshot.pending)}
        self.running = {job.id: job for job in reversed(snapshot.running)}
        # What is neither running nor pending: policy, quotas, nodes, windows.
        self.facts = replace(snapshot, pending=(), running=())
        self.now_s = snapshot.now_s
        self._rebuild()

    def submit(self, job: PendingJob) -> None:
        """A job waits, new or again; one with its id is replaced."""
        self._forget_running(job.id)
        self.pending[job.id] = job
        self.intake.add(job)

    def remove(self, job_id: str) -> None:
        """A job is over or was cancelled; one that is not known is none."""
        self._forget_running(job_id)
        if self.pending.pop(job_id, None) is not None:
            self.intake.remove(job_id)

    def run(self, job: RunningJob) -> None:
        """A job runs, new or changed (a checkpoint, told to stop, other nodes)."""
        if self.pending.pop(job.id, None) is not None:
            self.intake.remove(job.id)
        self._forget_running(job.id)
        self.running[job.id] = job
        self.intake.running.add(job.id)
        holder = self.world.add_running(job)
        if holder is not None:
            self.holders[job.id] = holder

    def carry_out(self, plan: Plan, now_s: float) -> None:
        """Start the plan's jobs and mark its victims as told to stop, as if all of it were done."""
        for start in plan.start:
            self.run(started(self.pending[start.job], start, now_s))
        for victim in [*(p.job for p in plan.preempt), *(e.job for e in plan.evict)]:
            if victim in self.running:
                self.run(replace(self.running[victim], evicting=True))
        held = {hold.job for hold in plan.hold}
        for job_id in held:
            if not self.pending[job_id].held:
                self.submit(replace(self.pending[job_id], held=True))

    def change(
        self,
        *,
        policy: Policy | None = None,
        queues: Iterable[Queue] | None = None,
        cohorts: Iterable[Cohort] | None = None,
        nodes: Iterable[Node] | None = None,
        reservations: Iterable[Reservation] | None = None,
        licences: Mapping[str, int] | None = None,
        subqueues: Iterable[Subqueue] | None = None,
        share_tree: Iterable[ShareNode] | None = None,
        num_preempted_last_hour: int | None = None,
    ) -> None:
        """New facts; what is not given stays. New quotas, nodes or rules build the books anew."""
        facts = self.facts
        self.facts = replace(
            facts,
            policy=facts.policy if policy is None else policy,
            queues=facts.queues if queues is None else tuple(queues),
            cohorts=facts.cohorts if cohorts is None else tuple(cohorts),
            nodes=facts.nodes if nodes is None else tuple(nodes),
            reservations=facts.reservations if reservations is None else tuple(reservations),
            licences=facts.licences if licences is None else licences,
            subqueues=facts.subqueues if subqueues is None else tuple(subqueues),
            share_tree=facts.share_tree if share_tree is None else tuple(share_tree),
            num_preempted_last_hour=(
                facts.num_preempted_last_hour if num_preempted_last_hour is None else num_preempted_last_hour
            ),
        )
        if any(value is not None for value in (policy, queues, cohorts, nodes)):
            self._rebuild()

    def snapshot(self, now_s: float) -> Snapshot:
        """Everything as one value: `decide` of it is what this object decides."""
        running = tuple(self.running.values())
        return replace(self.facts, now_s=now_s, pending=tuple(self.pending.values()), running=running)

    def decide(self, now_s: float) -> Plan:
        """One pass at this time. With `verify`, StateDrifted if a rebuild decides differently."""
        if now_s < self.now_s:
            self.now_s = now_s
            self._rebuild()
        self.now_s = now_s
        if self.facts.policy.division:
            # Everyone's part depends on what everyone asks for: there is little to keep.
            return decide(self.snapshot(now_s))
        facts = replace(self.facts, now_s=now_s, running=tuple(self.running.values()))
        self.world.lapse(now_s)
        plan = run_pass(self.world, self.intake, facts, self.memory)
        if self.verify:
            fresh = decide(self.snapshot(now_s))
            if fresh != plan:
                raise StateDrifted(_difference(plan, fresh))
        return plan

    def _forget_running(self, job_id: str) -> None:
        if self.running.pop(job_id, None) is None:
            return
        self.intake.running.discard(job_id)
        holder = self.holders.pop(job_id, None)
        if holder is not None:
            self.world.drop_running(holder)

    def _rebuild(self) -> None:
        snapshot = self.snapshot(self.now_s)
        self.world: World = world_build(snapshot)
        self.holders: dict[str, Holder] = whole_holders(self.world)
        self.memory = Memory()
        self.intake = Intake(self.world.tree, self.world.levels, snapshot.policy)
        self.intake.running = set(self.running)
        self.intake.add_all(snapshot.pending)


def whole_holders(world: World) -> dict[str, Holder]:
    """Each running job's holder by id, an elastic one's parts put together."""
    out: dict[str, Holder] = {}
    for holders in world.holders.values():
        for holder in holders:
            known = out.get(holder.id)
            if known is not None:
                placement = [*known.placement, *holder.placement]
                holder = replace(known, size=known.size + holder.size, placement=placement)
            out[holder.id] = holder
    return out


def started(job: PendingJob, start: Start, now_s: float) -> RunningJob:
    """The running job that a start makes of a pending one."""
    return RunningJob(
        id=job.id,
        queue=job.queue,
        gpu_type=start.gpu_type,
        num_gpus=job.num_gpus,
        num_nodes=job.num_nodes,
        gpus_per_node=job.gpus_per_node,
        chunk=job.chunk,
        placement=start.placement,
        priority=job.priority,
        submitted_s=job.submitted_s,
        started_s=now_s,
        time_limit_s=job.time_limit_s,
        topology=job.topology,
        excluded_nodes=job.excluded_nodes,
        protected_until_s=now_s + job.protected_s if job.protected_s > 0 else None,
        preempted_count=job.preempted_count,
        subqueue=job.subqueue,
        user=job.user,
        licences=job.licences,
        num_gpus_min=job.num_gpus_min,
        num_nodes_min=job.num_nodes_min,
        array=job.array,
    )


def _difference(kept: Plan, fresh: Plan) -> str:
    for name in ("start", "preempt", "hold", "planned", "pending", "rejected", "evict", "replace", "problems"):
        one, other = getattr(kept, name), getattr(fresh, name)
        if one != other:
            return f"{name}: kept state says {one!r:.500}, a rebuild {other!r:.500}"
    return "the plans differ in a minor part"
