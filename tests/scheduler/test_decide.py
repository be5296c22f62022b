"""One pass of the pure scheduler: whole gangs, within quota and nodes, one bad row harming nobody."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Plan, Snapshot, decide
from scheduler.plan import Reason
from scheduler.snapshot import Limit, Node, PendingJob, Queue, RunningJob


def queue(name: str = "q", nominal: int = 16, **values: object) -> Queue:
    return Queue(name=name, quota={"g": Limit(nominal)}, **values)  # type: ignore[arg-type]


def nodes(**sizes: int) -> tuple[Node, ...]:
    return tuple(Node(name, "g", count) for name, count in sizes.items())


def gang(name: str, num_nodes: int, gpus_per_node: int, **values: object) -> PendingJob:
    return PendingJob(id=name, queue="q", gpu_types=("g",), num_nodes=num_nodes, gpus_per_node=gpus_per_node, **values)  # type: ignore[arg-type]


def reasons(plan: Plan) -> dict[str, Reason]:
    return {row.job: row.reason for row in plan.pending}


CASES = [
    pytest.param(nodes(a=8, b=4, c=4), gang("j", 2, 4), {"b": 4, "c": 4}, None, id="keeps-the-empty-node"),
    pytest.param(nodes(a=8, b=3), gang("j", 2, 4), None, Reason.FRAGMENTED, id="one-node-short"),
    pytest.param(nodes(a=2, b=1), gang("j", 2, 4), None, Reason.INSUFFICIENT_GPUS, id="too-few-gpus"),
    pytest.param(nodes(a=64), gang("j", 1, 17), None, Reason.EXCEEDS_MAX_QUOTA, id="more-than-the-quota"),
    pytest.param(nodes(a=8), gang("j", 1, 1, hold="user"), None, Reason.HELD_BY_USER, id="held"),
]


@pytest.mark.parametrize(("cluster", "job", "placement", "reason"), CASES)
def test_a_gang_starts_whole_or_waits_with_its_reason(
    cluster: tuple[Node, ...], job: PendingJob, placement: dict[str, int] | None, reason: Reason | None
) -> None:
    plan = decide(Snapshot(now_s=0, queues=(queue(),), nodes=cluster, pending=(job,)))
    assert [dict(start.placement) for start in plan.start] == ([placement] if placement else [])
    assert reasons(plan).get("j") == reason


POISON = [
    pytest.param(gang("bad", 10**6, 8), id="a-million-nodes"),
    pytest.param(gang("bad", 0, 8), id="no-node"),
    pytest.param(gang("bad", 1, -1), id="negative"),
    pytest.param(replace(gang("bad", 1, 1), queue="nobody"), id="unknown-queue"),
    pytest.param(replace(gang("bad", 1, 1), gpu_types=("x",)), id="unknown-type"),
    pytest.param(replace(gang("bad", 1, 1), gpu_types=()), id="no-type"),
]


@pytest.mark.parametrize("bad", POISON)
def test_one_poisonous_job_does_not_stop_the_others(bad: PendingJob) -> None:
    plan = decide(Snapshot(now_s=0, queues=(queue(),), nodes=nodes(a=8), pending=(bad, gang("good", 1, 1))))
    assert [start.job for start in plan.start] == ["good"]
    assert "bad" in reasons(plan) or "bad" in [row.job for row in plan.rejected]


def test_a_running_job_on_a_node_that_vanished_does_not_stop_the_pass() -> None:
    running = RunningJob(id="r", queue="q", gpu_type="g", num_nodes=1, gpus_per_node=4, placement={"gone": 4})
    plan = decide(
        Snapshot(now_s=0, queues=(queue(),), nodes=nodes(a=8), running=(running,), pending=(gang("j", 1, 8),))
    )
    assert [start.job for start in plan.start] == ["j"]


jobs = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(0, 3), st.sampled_from("xy")), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    jobs=jobs,
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    quota=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_no_node_and_no_quota_is_overbooked_and_the_same_input_gives_the_same_plan(
    jobs: list[tuple[int, int, int, str]], sizes: list[int], quota: tuple[int, int]
) -> None:
    queues = tuple(replace(queue(name, count), name=name) for name, count in zip("xy", quota, strict=True))
    pending = tuple(
        replace(gang(f"j{i:02}", count, gpus, priority=priority, submitted_s=i), queue=name)
        for i, (count, gpus, priority, name) in enumerate(jobs)
    )
    cluster = tuple(Node(f"n{i}", "g", size) for i, size in enumerate(sizes))
    snapshot = Snapshot(now_s=0, queues=queues, nodes=cluster, pending=pending)
    plan = decide(snapshot)
    assert plan == decide(snapshot)
    by_id = {job.id: job for job in pending}
    on_node: Counter[str] = Counter()
    in_queue: Counter[str] = Counter()
    for start in plan.start:
        job = by_id[start.job]
        assert sorted(start.placement.values()) == [job.gpus_per_node] * (job.num_nodes or 0)
        on_node.update(start.placement)
        in_queue[job.queue] += job.size
    assert all(on_node[node.name] <= node.num_gpus for node in cluster)
    assert all(in_queue[name] <= count for name, count in zip("xy", quota, strict=True))
    decided = [s.job for s in plan.start] + [p.job for p in plan.pending] + [r.job for r in plan.rejected]
    assert sorted(decided) == sorted(by_id), "every job is decided once"
