"""What running jobs need before anyone new is looked at: lost nodes, broken gangs, lowered quotas."""

import dataclasses
from collections.abc import Iterator, Mapping

from scheduler.holders import Holder
from scheduler.nodes import CLOSED, Pool
from scheduler.placement import Placement, place
from scheduler.plan import Evict, Replace
from scheduler.shapes import Shape, shape_of
from scheduler.snapshot import Node, NodeFailure, NodeState, QuotaLowered, RunningJob, Snapshot
from scheduler.world import World

# Draining a lowered quota stops a job only when this little work (per GPU) would be lost.
DRAIN_LOST_S = 60.0


def upkeep(world: World, snapshot: Snapshot) -> tuple[list[Evict], list[Replace]]:
    """Evict what cannot go on, replace lost nodes; the world is left as if that were done."""
    evict = [*_broken_gangs(world, snapshot)]
    replaced: list[Replace] = []
    if snapshot.policy.node_failure != NodeFailure.LEAVE and snapshot.nodes:
        by_name = {node.name: node for node in reversed(snapshot.nodes)}
        for holder in _in_order(world):
            job = holder.job
            if job is None or holder in world.gone or not _lost_nodes(job, by_name):
                continue
            if snapshot.policy.node_failure == NodeFailure.FAIL_FAST:
                lost = ", ".join(_lost_nodes(job, by_name))
                evict.append(_evict(world, holder, "node_lost", f"Node {lost} is down."))
            else:
                found = _replace(world, holder, job, by_name)
                if found is not None:
                    replaced.append(found)
    if snapshot.policy.on_quota_lowered in (QuotaLowered.PREEMPT, QuotaLowered.DRAIN):
        evict.extend(_over_quota(world, drain=snapshot.policy.on_quota_lowered == QuotaLowered.DRAIN))
    return evict, replaced


def _in_order(world: World) -> list[Holder]:
    """All holders, more important first."""
    every = [h for holders in world.holders.values() for h in holders if not h.is_surplus]
    return sorted(every, key=lambda h: (-h.priority, h.started_s, h.id))


def _evict(world: World, holder: Holder, code: str, message: str) -> Evict:
    world.leave([h for h in world.holders[holder.queue, holder.gpu_type] if h.id == holder.id])
    return Evict(holder.id, code, message)


def _broken_gangs(world: World, snapshot: Snapshot) -> Iterator[Evict]:
    grace_s = snapshot.policy.gang_broken_grace_s
    if grace_s is None:
        return
    for holder in _in_order(world):
        job = holder.job
        if job is None or holder in world.gone or job.members_min is None or job.members_alive is None:
            continue
        if job.members_alive >= job.members_min or job.broken_since_s is None:
            continue
        if snapshot.now_s - job.broken_since_s > grace_s:
            message = f"{job.members_alive} of at least {job.members_min} members are alive."
            yield _evict(world, holder, "gang_broken", message)


def _lost_nodes(job: RunningJob, nodes: Mapping[str, Node]) -> list[str]:
    return sorted(n for n in job.placement if n not in nodes or nodes[n].state == NodeState.DOWN)


def _replace(world: World, holder: Holder, job: RunningJob, nodes: Mapping[str, Node]) -> Replace | None:
    """New places for the lost workers, inside the domain that the surviving ones fix."""
    pool = world.pools.get(job.gpu_type)
    shape = shape_of(job, world.levels)
    if pool is None or not isinstance(shape, Shape):
        return None
    lost = set(_lost_nodes(job, nodes))
    alive = [(pool.number[n], g) for n, g in job.placement.items() if n not in lost and n in pool.number]
    num_lost = sum(g for n, g in job.placement.items() if n in lost)
    if num_lost % shape.worker:
        return None
    for first, last in _ranges(pool, shape, alive):
        found = _inside(world, pool, shape, alive, num_lost // shape.worker, first, last)
        if found is None:
            continue
        merged = dict(alive)
        for node, gpus in found:
            merged[node] = merged.get(node, 0) + gpus
            pool.free[node] -= gpus
            if pool.present is not pool.free:
                pool.present[node] -= gpus
        moved = dataclasses.replace(holder, size=job.size, placement=sorted(merged.items()))
        key = (holder.queue, holder.gpu_type)
        world.holders[key] = [h for h in world.holders[key] if h.id != holder.id] + [moved]
        world.in_order.pop(key, None)
        world.touch(holder.queue)
        return Replace(job.id, {pool.names[node]: gpus for node, gpus in moved.placement})
    return None


def _ranges(pool: Pool, shape: Shape, alive: Placement) -> list[tuple[int, int]]:
    """Where to look, first choice first. With nobody alive the whole gang is placed anew anywhere."""
    if not alive:
        return [(0, pool.num_nodes)]
    anchor = max(alive, key=lambda pair: (pair[1], -pair[0]))[0]
    if shape.required is not None:
        return [pool.domain(shape.required, anchor)]
    levels = [] if shape.preferred is None else range(shape.preferred, -1, -1)
    return [*(pool.domain(level, anchor) for level in levels), (0, pool.num_nodes)]


def _inside(
    world: World, pool: Pool, shape: Shape, alive: Placement, num_workers: int, first: int, last: int
) -> Placement | None:
    free = pool.present.copy()
    free[:first] = CLOSED
    free[last:] = CLOSED
    if shape.spread:
        free[[node for node, _ in alive]] = CLOSED
    if not alive:
        return place(pool, free, shape, world.policy.placement)
    part = Shape(num_workers, shape.worker, shape.spread, excluded=shape.excluded)
    return place(pool, free, part, world.policy.placement)


def _over_quota(world: World, *, drain: bool) -> Iterator[Evict]:
    """Stop the excess over lowered limits: lower priority first, then newest, never more than the excess.

    A job larger than what is left of the excess stays: its end would leave the queue below its limit.
    """
    tree = world.tree
    for gpu_type, limits in tree.types.items():
        usage = world.usage[gpu_type]
        for queue, item in enumerate(tree.queues):
            most = limits.borrow[queue]
            if tree.parent[queue] < 0:
                limit = limits.subtree[queue]
            elif most is not None:
                limit = limits.nominal[queue] + most
            else:
                continue
            floor = max(limit, item.guaranteed.get(gpu_type, 0))
            yield from _shed(world, [queue], gpu_type, usage[queue] - floor, drain)
        for node in range(len(tree.queues), len(tree.names)):
            if tree.parent[node] < 0 and usage[node] > limits.subtree[node]:
                over = [q for q in range(len(tree.queues)) if tree.root[q] == node and usage[q] > limits.nominal[q]]
                yield from _shed(world, over, gpu_type, usage[node] - limits.subtree[node], drain)


def _shed(world: World, queues: list[int], gpu_type: str, excess: int, drain: bool) -> Iterator[Evict]:
    holders = [
        h for q in queues for h in world.holders.get((q, gpu_type), ()) if h not in world.gone and not h.is_surplus
    ]
    limits = world.tree.types[gpu_type]
    for holder in sorted(holders, key=lambda h: (h.priority, -h.started_s, h.id)):
        if excess <= 0:
            return
        own = world.usage[gpu_type][holder.queue] - limits.nominal[holder.queue]
        if holder.size > excess or holder.size > own or (holder.job is not None and not holder.job.preemptible):
            continue
        if drain and holder.lost_gpu_s(world.now_s) > DRAIN_LOST_S * holder.size:
            continue
        excess -= holder.size
        code = "quota_drain" if drain else "quota_lowered"
        yield _evict(world, holder, code, f"The quota of its queue is {excess + holder.size} GPUs below its use.")
