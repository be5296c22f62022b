"""In a pass over thousands of jobs hopeless ones get no turn of their own; each of them is still told why it waits."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from scheduler.plan import Plan
from scheduler.planner import run_pass
from scheduler.requests import Intake
from scheduler.snapshot import (
    Borrow,
    Cohort,
    Limit,
    Node,
    PendingJob,
    PreemptionPolicy,
    Queue,
    Reclaim,
    RunningJob,
    Snapshot,
    WithinQueue,
)
from scheduler.world import world_build


def crowded(seed: int) -> Snapshot:
    """A small cluster with every kind of right to evict, and more jobs than fit."""
    source = random.Random(seed)
    nodes = tuple(
        Node(f"n{i}", "g", source.choice([2, 4, 8]), {"rack": f"r{i // 3}"}) for i in range(source.randint(2, 8))
    )
    total = sum(node.num_gpus for node in nodes)
    count = source.randint(1, 5)
    queues = tuple(
        Queue(
            f"q{i}",
            source.choice(["c", "d", None]),
            quota={"g": Limit(source.randint(0, total // count + 2), source.choice([None, 0, 4]))},
            preemption=PreemptionPolicy(
                source.choice(list(WithinQueue)), source.choice(list(Reclaim)), source.choice(list(Borrow))
            ),
        )
        for i in range(count)
    )
    free = {node.name: node.num_gpus for node in nodes}
    running = []
    for number in range(14):
        name = source.choice(nodes).name
        if free[name]:
            gpus = source.randint(1, free[name])
            free[name] -= gpus
            running.append(
                RunningJob(
                    id=f"r{number}",
                    queue=source.choice(queues).name,
                    gpu_type="g",
                    num_nodes=1,
                    gpus_per_node=gpus,
                    placement={name: gpus},
                    priority=source.randint(0, 3),
                    started_s=source.randint(0, 50),
                )
            )
    pending = tuple(
        PendingJob(
            id=f"p{number:02}",
            queue=source.choice(queues).name,
            gpu_types=("g",),
            num_nodes=source.choice([1, 1, 1, 2, 3]),
            gpus_per_node=source.choice([1, 1, 2, 4]),
            priority=source.randint(0, 4),
            submitted_s=source.randint(0, 30),
            held=source.random() < 0.05,
        )
        for number in range(25)
    )
    cohorts = (Cohort("c"), Cohort("d", parent=source.choice(["c", None])))
    return Snapshot(
        now_s=100, queues=queues, cohorts=cohorts, topology=("rack",), nodes=nodes, running=tuple(running),
        pending=pending,
    )  # fmt: skip


def passed(snapshot: Snapshot, *, skip: bool) -> Plan:
    world = world_build(snapshot)
    work = Intake(world.tree, world.levels, snapshot.policy)
    work.running = {job.id for job in snapshot.running}
    work.add_all(snapshot.pending)
    return run_pass(world, work, snapshot, skip=skip)


# In the five in the middle victims leave after the turn of jobs that were passed by, and would have made room for them.
@pytest.mark.parametrize("seeds", [range(120), (1267, 1403, 1440, 1862, 2104), range(6000, 6120)])
def test_every_job_is_started_held_or_told_why_it_waits(seeds: range) -> None:
    for seed in seeds:
        snapshot = crowded(seed)
        plan = passed(snapshot, skip=True)
        waiting = [row.job for row in plan.pending]
        answers = Counter([*(row.job for row in plan.start), *waiting])
        assert answers == Counter(job.id for job in snapshot.pending), seed
        assert {row.job for row in plan.hold} <= set(waiting), seed


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_where_nobody_evicts_the_decisions_are_those_of_a_pass_that_gives_everyone_a_turn(seed: int) -> None:
    calm = [Queue(q.name, q.cohort, quota=q.quota, preemption=PreemptionPolicy()) for q in crowded(seed).queues]
    snapshot = replace(crowded(seed), queues=tuple(calm))
    exact, large = passed(snapshot, skip=False), passed(snapshot, skip=True)
    assert (exact.start, exact.hold) == (large.start, large.hold)
