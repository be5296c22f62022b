"""Pending jobs made ready for the pass: checked, gated, and equal ones put into one class."""

from dataclasses import dataclass, field
from math import isfinite

from scheduler.plan import Detail, Reason, Refusal, Rejected
from scheduler.quota import QuotaTree
from scheduler.shapes import Refused, Shape, shape_of
from scheduler.snapshot import PendingJob, Snapshot


@dataclass(slots=True, eq=False)
class JobClass:
    """Jobs of one queue that ask for the same with the same rights: one answer serves them all."""

    queue: int
    gpu_types: tuple[str, ...]
    shape: Shape
    priority: int
    may_borrow: bool
    may_preempt: bool

    @property
    def size(self) -> int:
        """GPUs of the whole job."""
        return self.shape.size


@dataclass(slots=True, eq=False)
class Request:
    """One job that may be decided in this pass."""

    job: PendingJob
    kind: JobClass
    order: tuple[float, float, str]  # more important first: minus priority, age, id

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id


@dataclass(slots=True)
class Intake:
    """The pass's work: requests per queue in the order in which they are considered, and what is out."""

    by_queue: dict[int, list[Request]] = field(default_factory=dict)
    waiting: list[tuple[str, Reason, Detail]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def intake(snapshot: Snapshot, tree: QuotaTree) -> Intake:
    """Sort the pending jobs into those to decide, those that wait for something else, and the refused."""
    out = Intake()
    running = {job.id for job in snapshot.running}
    here = running | {job.id for job in snapshot.pending}
    classes: dict[tuple[object, ...], JobClass | Refused] = {}
    seen: set[str] = set()
    levels = tuple(snapshot.topology)
    for job in snapshot.pending:
        if job.id in seen or job.id in running:
            out.problems.append(f"Pending job {job.id} is listed twice or runs already; it is not looked at again.")
            continue
        seen.add(job.id)
        queue = tree.queue_number.get(job.queue)
        if queue is None:
            message = f"There is no queue {job.queue}."
            out.rejected.append(Rejected(job.id, Refusal.UNKNOWN_QUEUE, message))
            continue
        fault = _fault(job)
        if fault:
            out.rejected.append(Rejected(job.id, Refusal.BAD_SIZE, fault))
            continue
        key: tuple[object, ...] = (
            queue,
            job.gpu_types,
            job.num_gpus,
            job.num_nodes,
            job.gpus_per_node,
            job.chunk,
            job.topology,
            job.excluded_nodes,
            job.priority,
            job.may_borrow,
            job.may_preempt,
        )
        kind = classes.get(key)
        if kind is None:
            shape = shape_of(job, levels)
            if isinstance(shape, Shape):
                kind = JobClass(queue, job.gpu_types, shape, job.priority, job.may_borrow, job.may_preempt)
            else:
                kind = shape
            classes[key] = kind
        if isinstance(kind, Refused):
            out.rejected.append(Rejected(job.id, kind.code, kind.message))
            continue
        gate = _gate(job, kind, snapshot, tree, here)
        if gate is not None:
            out.waiting.append((job.id, *gate))
            continue
        order = (-_effective_priority(job, snapshot), job.submitted_s, job.id)
        out.by_queue.setdefault(queue, []).append(Request(job, kind, order))
    for requests in out.by_queue.values():
        requests.sort(key=lambda r: r.order)
    return out


def _effective_priority(job: PendingJob, snapshot: Snapshot) -> float:
    """The priority that orders the job; it gives no right to evict.

    Waiting adds points. A job that must start soon to meet its deadline stands between its own
    priority and the next.
    """
    policy, now = snapshot.policy, snapshot.now_s
    priority = float(job.priority)
    if policy.ageing_interval_s is not None and policy.ageing_interval_s > 0:
        waited = max(0.0, now - job.submitted_s)
        priority += min(policy.ageing_max, waited // policy.ageing_interval_s)
    if policy.deadline_horizon_s is not None and job.deadline_s is not None:
        latest_start = job.deadline_s - (job.time_limit_s or 0)
        if latest_start - now <= policy.deadline_horizon_s:
            priority += 0.5
    return priority


def _fault(job: PendingJob) -> str:
    """What makes the job unfit to be compared with others: one such job must not stop the rest."""
    numbers = (job.priority, job.submitted_s, job.time_limit_s, job.not_before_s, job.deadline_s)
    if type(job.id) is not str or not job.id:
        return "Its id must be a text."
    if any(v is not None and (type(v) not in (int, float) or not isfinite(v)) for v in numbers):
        return "Its priority and times must be finite numbers."
    if job.time_limit_s is not None and job.time_limit_s <= 0:
        return "Its time limit must be more than 0 s."
    return ""


def _gate(
    job: PendingJob,
    kind: JobClass,
    snapshot: Snapshot,
    tree: QuotaTree,
    here: set[str],
) -> tuple[Reason, Detail] | None:
    """Why the job is not even considered now, or None."""
    now = snapshot.now_s
    if job.hold == "admin":
        return Reason.HELD_BY_ADMIN, {}
    if job.hold:
        return Reason.HELD_BY_USER, {}
    if job.after:
        open_jobs = tuple(name for name in job.after if name in here)
        if open_jobs:
            return Reason.DEPENDENCY, {"after": open_jobs}
    if job.not_before_s is not None and now < job.not_before_s:
        return Reason.BACKOFF, {"until_s": job.not_before_s}
    if job.deadline_s is not None and now + (job.time_limit_s or 0) > job.deadline_s:
        return Reason.DEADLINE, {"deadline_s": job.deadline_s, "time_limit_s": job.time_limit_s}
    if kind.queue in tree.broken:
        return Reason.CONFIGURATION, {"queue": job.queue}
    listed = [t for t in kind.gpu_types if t in tree.types and tree.types[t].listed[kind.queue]]
    if not listed:
        allowed = sorted(t for t in tree.types if tree.types[t].listed[kind.queue])
        return Reason.GPU_TYPE, {"asked": kind.gpu_types, "queue_has": tuple(allowed)}
    most = max(tree.types[t].potential[kind.queue] for t in listed)
    if kind.size > most:
        return Reason.EXCEEDS_MAX_QUOTA, {"asked": kind.size, "most": most}
    return None
