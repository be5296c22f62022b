"""What keeps a job back besides quota and nodes, as far as jobs started in the same pass matter."""

from math import inf

from scheduler.holders import Holder
from scheduler.plan import Detail, Reason
from scheduler.requests import Request
from scheduler.snapshot import Snapshot
from scheduler.world import World


class Gates:
    """Licences, array limits, GPU-hour budgets, and how much preemption a pass may do."""

    def __init__(self, world: World, snapshot: Snapshot) -> None:
        self.world = world
        self.policy = snapshot.policy
        self.licences = dict(snapshot.licences)
        self.in_array: dict[str, int] = {}
        for job in snapshot.running:
            for name, count in job.licences.items():
                self.licences[name] = self.licences.get(name, 0) - count
            if job.array is not None:
                self.in_array[job.array] = self.in_array.get(job.array, 0) + 1
        self.left_gpu_s = {
            number: queue.budget.left_gpu_s - queue.budget.reserved_gpu_s
            for number, queue in enumerate(world.tree.queues)
            if queue.budget is not None
        }
        hourly = self.policy.max_preemptions_per_hour
        self.victims_left = inf if hourly is None else hourly - snapshot.num_preempted_last_hour
        world.is_calm = self.victims_left <= 0
        budget = self.policy.disruption_budget_gpu_s
        self.loss_left_gpu_s = inf if budget is None else budget

    def closed(self, request: Request) -> tuple[Reason, Detail] | None:
        """Why the job must not start in this pass although there may be room, or None."""
        job = request.job
        if job.array is not None and job.array_limit is not None:
            running = self.in_array.get(job.array, 0)
            if running >= job.array_limit:
                return Reason.ARRAY_LIMIT, {"running": running, "limit": job.array_limit}
        if request.kind.queue in self.left_gpu_s:
            left, needs = self.left_gpu_s[request.kind.queue], self._cost(request)
            if left <= 0 or needs > left:
                return Reason.BUDGET, {"needs_gpu_s": needs, "left_gpu_s": max(0.0, left)}
        for name, count in job.licences.items():
            if count > self.licences.get(name, 0):
                free = max(0, self.licences.get(name, 0))
                return Reason.LICENCES, {"licence": name, "asked": count, "free": free}
        return None

    def took(self, request: Request) -> None:
        """The job starts or is held."""
        job = request.job
        if job.array is not None:
            self.in_array[job.array] = self.in_array.get(job.array, 0) + 1
        for name, count in job.licences.items():
            self.licences[name] = self.licences.get(name, 0) - count
        if request.kind.queue in self.left_gpu_s:
            self.left_gpu_s[request.kind.queue] -= self._cost(request)

    def may_disturb(self, victims: list[Holder]) -> bool:
        """Whether that many victims, with that much unsaved work, are still allowed in this pass."""
        return (
            len(victims) <= self.victims_left
            and sum(v.lost_gpu_s(self.world.now_s) for v in victims) <= self.loss_left_gpu_s
        )

    def disturbed(self, victims: list[Holder]) -> None:
        """The victims are told to stop."""
        self.victims_left -= len(victims)
        self.world.is_calm = self.victims_left <= 0
        self.loss_left_gpu_s -= self._loss(victims)

    def _loss(self, victims: list[Holder]) -> float:
        return sum(victim.lost_gpu_s(self.world.now_s) for victim in victims)

    def _cost(self, request: Request) -> float:
        """GPU-seconds that the job may use: up to its limit; without one, any left budget will do."""
        limit = request.job.time_limit_s
        return 0.0 if limit is None else float(limit) * request.kind.size
