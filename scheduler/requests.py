"""Pending jobs made ready for passes: checked, gated, and equal ones put into one class."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

from scheduler.plan import Detail, Reason, Refusal, Rejected
from scheduler.quota import QuotaTree
from scheduler.shapes import Refused, Shape, shape_of
from scheduler.snapshot import PendingJob, Policy

# Held first: what is on its way out of others' hands must not go to a neighbour; then more important
# first: minus the effective priority, age, id.
Order = tuple[int, float, float, str]


@dataclass(slots=True, eq=False)
class JobClass:
    """Jobs of one queue that ask for the same with the same rights: one answer serves them all."""

    queue: int
    gpu_types: tuple[str, ...]
    shape: Shape
    size: int
    priority: float
    may_borrow: bool
    may_preempt: bool
    # Why none of them can ever be decided under these quotas.
    closed: tuple[Reason, Detail] | None
    members: dict[str, "Request"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Request:
    """One job that may be decided in this pass."""

    id: str
    job: PendingJob
    kind: JobClass
    order: Order


@dataclass(slots=True, eq=False)
class QueueWork:
    """One queue's requests in the order in which they are considered, and their kinds."""

    queue: int
    requests: list[Request] = field(default_factory=list)
    kinds: dict[JobClass, None] = field(default_factory=dict)


_by_order = attrgetter("order")
Waiting = tuple[str, Reason, Detail]


class Intake:
    """All pending jobs, sorted into those to decide, those that wait for something else, and the refused."""

    def __init__(self, tree: QuotaTree, levels: tuple[str, ...], policy: Policy) -> None:
        self.tree, self.levels, self.policy = tree, levels, policy
        self.works: dict[int, QueueWork] = {}
        self.requests: dict[str, Request] = {}
        # Hold, dependency, time: looked at again in each pass.
        self.gated: dict[str, tuple[PendingJob, JobClass]] = {}
        self.rejected: dict[str, Rejected] = {}
        self.problems: list[str] = []
        # Queues whose requests changed since the last pass.
        self.touched: set[int] = set()
        # Ids of all jobs that run or wait: dependencies are open while they are here.
        self.running: set[str] = set()
        self.ids: set[str] = set()
        self.classes: dict[tuple[object, ...], JobClass | Refused] = {}
        self.shapes: dict[tuple[object, ...], Shape | Refused] = {}
        self.deadlines: set[str] = set()

    def add_all(self, jobs: Iterable[PendingJob]) -> None:
        """Take in many jobs at once."""
        for job in jobs:
            if job.id in self.ids or job.id in self.running:
                self.problems.append(f"Pending job {job.id} is listed twice or runs already; it is left out.")
                continue
            self.ids.add(job.id)
            request = self._receive(job)
            if request is not None:
                self.works[request.kind.queue].requests.append(request)
        for work in self.works.values():
            work.requests.sort(key=_by_order)

    def add(self, job: PendingJob) -> None:
        """Take in one job; an older one with its id is replaced."""
        self.remove(job.id)
        self.ids.add(job.id)
        request = self._receive(job)
        if request is not None:
            insort(self.works[request.kind.queue].requests, request, key=_by_order)

    def remove(self, job_id: str) -> None:
        """Forget a job; one that is not known is none."""
        self.ids.discard(job_id)
        self.rejected.pop(job_id, None)
        gated = self.gated.pop(job_id, None)
        self.deadlines.discard(job_id)
        request = self.requests.get(job_id)
        if request is not None:
            self._withdraw(request)
        elif gated is not None:
            gated[1].members.pop(job_id, None)

    def begin(self, now_s: float) -> list[Waiting]:
        """Open and close gates for a pass at this time, and tell who waits at one."""
        for job_id in sorted(self.deadlines):
            request = self.requests.get(job_id)
            if request is not None and self._gate(request.job, now_s) is not None:
                self._withdraw(request)
                self.gated[job_id] = (request.job, request.kind)
        waiting: list[Waiting] = []
        for job_id, (job, kind) in list(self.gated.items()):
            gate = self._gate(job, now_s) or kind.closed
            if gate is not None:
                waiting.append((job_id, *gate))
                continue
            del self.gated[job_id]
            insort(self.works[kind.queue].requests, self._enter(job, kind), key=_by_order)
        if self.policy.ageing_interval_s is not None or self.policy.deadline_horizon_s is not None:
            for work in self.works.values():
                for request in work.requests:
                    request.order = _order(request.job, self.policy, now_s)
                work.requests.sort(key=_by_order)
        return waiting

    def _gate(self, job: PendingJob, now_s: float) -> tuple[Reason, Detail] | None:
        """Why the job is not even considered now, or None."""
        if job.hold == "admin":
            return Reason.HELD_BY_ADMIN, {}
        if job.hold:
            return Reason.HELD_BY_USER, {}
        if job.after:
            open_jobs = tuple(name for name in job.after if name in self.ids or name in self.running)
            if open_jobs:
                return Reason.DEPENDENCY, {"after": open_jobs}
        if job.not_before_s is not None and now_s < job.not_before_s:
            return Reason.BACKOFF, {"until_s": job.not_before_s}
        if job.deadline_s is not None and now_s + (job.time_limit_s or 0) > job.deadline_s:
            return Reason.DEADLINE, {"deadline_s": job.deadline_s, "time_limit_s": job.time_limit_s}
        return None

    def _receive(self, job: PendingJob) -> Request | None:
        """The job's request, if it may be decided."""
        queue = self.tree.queue_number.get(job.queue)
        if queue is None:
            self._reject(job, Refused(Refusal.UNKNOWN_QUEUE, f"There is no queue {job.queue}."))
            return None
        fault = _fault(job)
        if fault:
            self._reject(job, Refused(Refusal.BAD_SIZE, fault))
            return None
        key = (
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
        try:
            kind = self.classes.get(key)
        except TypeError:
            self._reject(job, Refused(Refusal.BAD_SIZE, "Its request holds values that cannot be compared."))
            return None
        if kind is None:
            kind = self.classes[key] = self._class(job, queue)
        if isinstance(kind, Refused):
            self._reject(job, kind)
            return None
        if job.deadline_s is not None:
            self.deadlines.add(job.id)
        if kind.closed or job.hold or job.after or job.not_before_s is not None:
            self.gated[job.id] = (job, kind)
            self.works.setdefault(queue, QueueWork(queue))
            return None
        if queue not in self.works:
            self.works[queue] = QueueWork(queue)
        return self._enter(job, kind)

    def _enter(self, job: PendingJob, kind: JobClass) -> Request:
        # Ageing and deadlines are counted when the pass begins.
        request = Request(job.id, job, kind, (_turn(job), -float(job.priority), job.submitted_s, job.id))
        self.requests[job.id] = request
        kind.members[job.id] = request
        self.touched.add(kind.queue)
        self.works[kind.queue].kinds[kind] = None
        return request

    def _withdraw(self, request: Request) -> None:
        del self.requests[request.id]
        kind = request.kind
        del kind.members[request.id]
        self.touched.add(kind.queue)
        work = self.works[kind.queue]
        if not kind.members:
            del work.kinds[kind]
        at = bisect_left(work.requests, request.order, key=_by_order)
        assert work.requests[at] is request, "orders are unique"
        del work.requests[at]

    def _reject(self, job: PendingJob, refused: Refused) -> None:
        self.rejected[job.id] = Rejected(job.id, refused.code, refused.message)

    def _class(self, job: PendingJob, queue: int) -> JobClass | Refused:
        key = (job.num_gpus, job.num_nodes, job.gpus_per_node, job.chunk, job.topology, job.excluded_nodes)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = shape_of(job, self.levels)
        if isinstance(shape, Refused):
            return shape
        closed = _closed(self.tree, queue, job, shape)
        return JobClass(queue, job.gpu_types, shape, shape.size, job.priority, job.may_borrow, job.may_preempt, closed)


def _fault(job: PendingJob) -> str:
    """What makes the job unfit to be compared with others: one such job must not stop the rest."""
    if type(job.id) is not str or not job.id:
        return "Its id must be a text."
    for value in (job.priority, job.submitted_s, job.time_limit_s, job.not_before_s, job.deadline_s):
        if value is None or type(value) is int:
            continue
        if type(value) is not float or not -inf < value < inf:
            return "Its priority and times must be finite numbers."
    if job.priority is None or job.submitted_s is None:
        return "It needs a priority and the time of its submission."
    if job.time_limit_s is not None and job.time_limit_s <= 0:
        return "Its time limit must be more than 0 s."
    if type(job.gpu_types) is not tuple or not job.gpu_types or type(job.excluded_nodes) is not frozenset:
        return "Its GPU types must be a tuple with at least one, its excluded nodes a frozenset."
    return ""


def _turn(job: PendingJob) -> int:
    return 0 if job.held else 1


def _closed(tree: QuotaTree, queue: int, job: PendingJob, shape: Shape) -> tuple[Reason, Detail] | None:
    """Why no job of the kind can ever be served under these quotas, or None."""
    if queue in tree.broken:
        return Reason.CONFIGURATION, {"queue": job.queue}
    listed = [t for t in job.gpu_types if t in tree.types and tree.types[t].listed[queue]]
    if not listed:
        allowed = tuple(t for t in tree.types if tree.types[t].listed[queue])
        return Reason.GPU_TYPE, {"asked": job.gpu_types, "queue_has": allowed}
    most = max(tree.types[t].potential[queue] for t in listed)
    if shape.size > most:
        return Reason.EXCEEDS_MAX_QUOTA, {"asked": shape.size, "most": most}
    return None


def _order(job: PendingJob, policy: Policy, now_s: float) -> Order:
    """The job's place in line. An effective priority orders; it gives no right to evict.

    Waiting adds points. A job that must start soon to meet its deadline stands between its own
    priority and the next.
    """
    priority = float(job.priority)
    if policy.ageing_interval_s is not None and policy.ageing_interval_s > 0:
        waited = max(0.0, now_s - job.submitted_s)
        priority += min(policy.ageing_max, waited // policy.ageing_interval_s)
    if policy.deadline_horizon_s is not None and job.deadline_s is not None:
        latest_start = job.deadline_s - (job.time_limit_s or 0)
        if latest_start - now_s <= policy.deadline_horizon_s:
            priority += 0.5
    return (_turn(job), -priority, job.submitted_s, job.id)
