"""Why a job waits: one code, the first that applies, and the numbers behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.memory import Group
from scheduler.placement import fits_somewhere
from scheduler.plan import Detail, PendingList, Reason
from scheduler.requests import JobClass
from scheduler.shapes import Shape
from scheduler.world import World


@dataclass(slots=True)
class Told:
    """Reasons given so far, equal ones together."""

    groups: dict[tuple[object, ...], tuple[list[str], Reason, Detail]] = field(default_factory=dict)
    kinds: list[Group] = field(default_factory=list)

    def tell(self, job: str, reason: Reason, detail: Detail) -> None:
        """Record why the job waits. Values of the detail are numbers, strings or tuples of them."""
        key = (reason, *detail.items())
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = ([], reason, detail)
        group[0].append(job)

    def tell_all(self, groups: list[Group]) -> None:
        """Record why many jobs wait, equal ones together."""
        self.kinds.extend(groups)

    def all(self) -> PendingList:
        """All of them, in the order in which their reasons first came up."""
        return PendingList([*self.groups.values(), *self.kinds])


def space_reason(world: World, kind: JobClass, gpu_type: str) -> tuple[Reason, Detail] | None:
    """The quota or node reason for which the kind does not fit the landed view now, if any."""
    return quota_reason(world, kind, gpu_type) or node_reason(world, kind, gpu_type)


def quota_reason(world: World, kind: JobClass, gpu_type: str) -> tuple[Reason, Detail] | None:
    """Team or cohort quota, or None when there is quota for it."""
    tree = world.tree
    limits = world.tree.types[gpu_type]
    usage = world.usage[gpu_type]
    used, nominal, borrow = usage[kind.queue], limits.nominal[kind.queue], limits.borrow[kind.queue]
    free = tree.available(limits, usage, kind.queue)
    if not kind.may_borrow:
        free = min(free, limits.subtree[kind.queue] - used)
    if free >= kind.size:
        return None
    detail = {"gpu_type": gpu_type, "asked": kind.size, "used": used, "nominal": nominal, "available": max(0, free)}
    alone = tree.parent[kind.queue] < 0 or not kind.may_borrow
    if alone or (borrow is not None and kind.size + used > nominal + borrow):
        return Reason.TEAM_QUOTA, detail
    return Reason.COHORT_QUOTA, detail


def node_reason(world: World, kind: JobClass, gpu_type: str) -> tuple[Reason, Detail] | None:
    """Too few free GPUs, too scattered, or too far apart; None when it fits."""
    if world.count_only:
        return None
    shape = kind.shape
    pool = world.pools.get(gpu_type)
    if pool is None:
        return Reason.INSUFFICIENT_GPUS, {"gpu_type": gpu_type, "asked": shape.size, "free": 0}
    if world.find(gpu_type, shape) is not None:
        return None
    free = int(pool.usable(pool.free, shape).sum())
    detail = {"gpu_type": gpu_type, "asked": shape.size, "free": free}
    if free < shape.size:
        return Reason.INSUFFICIENT_GPUS, detail
    detail |= {"workers": shape.num_workers, "gpus_per_worker": shape.worker}
    if not fits_somewhere(pool, pool.free, shape):
        return Reason.FRAGMENTED, detail
    return Reason.TOPOLOGY, detail | {"levels": _wish(world, shape)}


def _wish(world: World, shape: Shape) -> tuple[str, ...]:
    names: Sequence[str] = (*world.levels, "node")
    numbers = [shape.required, shape.preferred, *(level for level, _ in shape.slices)]
    return tuple(names[n] for n in numbers if n is not None)
