"""The scheduler's own speed: full and warm passes, a preemption plan, a large gang, admissions; growth and memory.

    python -m tests.bench.bench_scheduler [--repeat 5]

The cluster of the passes: 5,000 nodes of 8 GPUs in racks of 20, 1,000 queues in 100 cohorts with 40 GPUs each, full of
jobs that the scheduler itself has placed; pending are jobs of 1 to 64 GPUs and four priorities in all queues. Queues
reclaim what they lent, and evict their own jobs of lower priority. "At rest": all that may preempt has done so, as it
is in a cluster that has run for a while; "upheaval": all jobs came at once to a cluster of less important ones, and
thousands are evicted in one pass. Prints tables, and JSON on the last line.
"""

import argparse
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler import Snapshot, decide
from scheduler.snapshot import (
    Cohort,
    Limit,
    Node,
    NodeState,
    PendingJob,
    PreemptionPolicy,
    Queue,
    Reclaim,
    RunningJob,
    WithinQueue,
)
from scheduler.state import Scheduler

GPU = "h100"
PREEMPTION = PreemptionPolicy(within_queue=WithinQueue.LOWER_PRIORITY, reclaim_within_cohort=Reclaim.ANY)
# Workers of so many GPUs, and how often: mostly small jobs, a few gangs.
SIZES = ((1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (1, 4), (1, 8), (1, 8), (2, 8), (4, 8), (8, 8))


def nodes_of(count: int) -> tuple[Node, ...]:
    """Nodes of 8 GPUs in racks of 20."""
    return tuple(Node(f"n{i:05}", GPU, 8, {"rack": f"r{i // 20:04}"}) for i in range(count))


def job_of(source: random.Random, number: int, queues: int) -> PendingJob:
    """A job of one of the queues; two of three ask for a time limit."""
    workers, gpus = source.choice(SIZES)
    return PendingJob(
        id=f"j{number:06}",
        queue=f"q{source.randrange(queues):04}",
        gpu_types=(GPU,),
        num_nodes=workers,
        gpus_per_node=gpus,
        priority=source.choice((0, 0, 0, 5, 10, 20)),
        submitted_s=float(number),
    )


def busy_cluster(num_pending: int, num_queues: int = 1000, num_nodes: int = 5000, *, at_rest: bool = True) -> Snapshot:
    """A full cluster: what a first pass over more jobs than fit has started runs, the rest waits."""
    source = random.Random(num_pending)
    per_queue = 8 * num_nodes // num_queues
    queues = tuple(
        Queue(f"q{i:04}", f"c{i // 10:03}", quota={GPU: Limit(per_queue)}, preemption=PREEMPTION)
        for i in range(num_queues)
    )
    cohorts = tuple(Cohort(f"c{i:03}") for i in range((num_queues + 9) // 10))
    first = [job_of(source, i, num_queues) for i in range(num_nodes * 3)]
    empty = Snapshot(
        now_s=1e6, cohorts=cohorts, queues=queues, topology=("rack",), nodes=nodes_of(num_nodes), pending=tuple(first)
    )
    scheduler, now = Scheduler(empty), 1e6
    scheduler.carry_out(scheduler.decide(now), now)
    later = [job_of(source, 500_000 + i, num_queues) for i in range(num_pending)]
    upheaval = replace(scheduler.snapshot(now + 60), pending=tuple(later))
    if not at_rest:
        return upheaval
    scheduler, busy, serial = Scheduler(upheaval), True, 1_000_000
    while busy:
        now += 60
        plan = scheduler.decide(now)
        scheduler.carry_out(plan, now)
        for victim in [job.id for job in scheduler.running.values() if job.evicting]:
            scheduler.remove(victim)
        busy = bool(plan.preempt or plan.start or plan.hold)
        # What has started is followed by jobs that are less important.
        while busy and len(scheduler.pending) < num_pending:
            serial += 1
            scheduler.submit(replace(job_of(source, serial, num_queues), priority=-1))
    return scheduler.snapshot(now + 60)


def seconds(act: Callable[[], Any]) -> float:
    """How long it takes once."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def full_pass(num_pending: int, repeat: int, *, at_rest: bool = True) -> dict[str, Any]:
    """Seconds of a whole pass from a snapshot, books built anew."""
    snapshot = busy_cluster(num_pending, at_rest=at_rest)
    times = [seconds(lambda: decide(snapshot)) for _ in range(repeat)]
    plan = decide(snapshot)
    return {
        "pending": num_pending,
        "running": len(snapshot.running),
        "median_s": statistics.median(times),
        "worst_s": max(times),
        "started": len(plan.start),
        "held": len(plan.hold),
        "preempted": len(plan.preempt),
    }


def warm_passes(num_pending: int, repeat: int) -> dict[str, float]:
    """Median seconds of a pass after one event, once the cluster has come to rest."""
    snapshot = busy_cluster(num_pending)
    scheduler, now, source = Scheduler(snapshot), snapshot.now_s, random.Random(1)
    scheduler.decide(now)

    def ends() -> None:
        scheduler.remove(source.choice(list(scheduler.running)))

    def submitted() -> None:
        scheduler.submit(job_of(source, source.randrange(10**6, 10**7), 1000))

    def saved() -> None:
        job = scheduler.running[source.choice(list(scheduler.running))]
        scheduler.run(replace(job, last_checkpoint_s=now))

    events = {"job ends": ends, "job submitted": submitted, "checkpoint": saved}
    times: dict[str, list[float]] = {name: [] for name in events}
    for _ in range(repeat * 4):
        for name, event in events.items():
            now += 1
            event()
            begin = time.perf_counter()
            plan = scheduler.decide(now)
            times[name].append(time.perf_counter() - begin)
            scheduler.carry_out(plan, now)
            for victim in [p.job for p in plan.preempt]:
                scheduler.remove(victim)
    return {name: statistics.median(values) for name, values in times.items()}


def node_down(num_pending: int) -> float:
    """Seconds of the pass after a node went down: quotas and nodes are read anew."""
    snapshot = busy_cluster(num_pending)
    scheduler = Scheduler(snapshot)
    scheduler.decide(snapshot.now_s)
    nodes = (replace(snapshot.nodes[0], state=NodeState.DOWN), *snapshot.nodes[1:])

    def act() -> None:
        scheduler.change(nodes=nodes)
        scheduler.decide(snapshot.now_s + 1)

    return seconds(act)


def preemption_plan(repeat: int) -> dict[str, Any]:
    """Seconds to find victims for a gang of 64 nodes among 700 candidates on 2,000 nodes."""
    nodes = nodes_of(2000)
    running = [
        RunningJob(
            id=f"low{i:04}",
            queue="low" if i < 700 else "fixed",
            gpu_type=GPU,
            num_nodes=1,
            gpus_per_node=8,
            placement={nodes[i].name: 8},
            started_s=float(i % 97),
            priority=0 if i < 700 else 100,
            preemptible=i < 700,
        )
        for i in range(2000)
    ]
    queues = (
        Queue("high", "c", quota={GPU: Limit(5600)}, preemption=PREEMPTION),
        Queue("low", "c", quota={GPU: Limit(0)}, preemption=PREEMPTION),
        Queue("fixed", "c", quota={GPU: Limit(10400)}, preemption=PREEMPTION),
    )
    gang = PendingJob(id="gang", queue="high", gpu_types=(GPU,), num_nodes=64, gpus_per_node=8, priority=10)
    snapshot = Snapshot(
        now_s=1e5, cohorts=(Cohort("c"),), queues=queues, topology=("rack",), nodes=nodes, running=tuple(running),
        pending=(gang,),
    )  # fmt: skip
    plan = decide(snapshot)
    assert len(plan.preempt) == 64 and plan.hold[0].job == "gang", "the gang takes 64 nodes"
    return {"candidates": 700, "victims": 64, "median_s": statistics.median(_times(snapshot, repeat))}


def large_gang(repeat: int) -> dict[str, Any]:
    """Seconds to place a gang of 512 nodes on 10,000: the pass alone, and with the books built anew."""
    nodes = nodes_of(10_000)
    gang = PendingJob(id="gang", queue="q", gpu_types=(GPU,), num_nodes=512, gpus_per_node=8)
    queues = (Queue("q", quota={GPU: Limit(80_000)}),)
    snapshot = Snapshot(now_s=0, queues=queues, topology=("rack",), nodes=nodes, pending=(gang,))
    assert len(decide(snapshot).start[0].placement) == 512
    scheduler = Scheduler(replace(snapshot, pending=()))
    scheduler.decide(0)
    warm = []
    for turn in range(repeat):
        scheduler.submit(gang)
        warm.append(seconds(lambda turn=turn: scheduler.decide(float(turn))))
        scheduler.remove("gang")
    return {"warm_s": statistics.median(warm), "anew_s": statistics.median(_times(snapshot, repeat))}


def admissions() -> dict[str, Any]:
    """Decisions to start per second, counting the building of the books: 10,000 jobs that all fit."""
    source = random.Random(3)
    jobs = tuple(job_of(source, i, 100) for i in range(10_000))
    queues = tuple(Queue(f"q{i:04}", "c", quota={GPU: Limit(800)}) for i in range(100))
    snapshot = Snapshot(
        now_s=1e6, cohorts=(Cohort("c"),), queues=queues, topology=("rack",), nodes=nodes_of(10_000), pending=jobs
    )
    taken = seconds(lambda: decide(snapshot))
    started = len(decide(snapshot).start)
    return {"started": started, "seconds": taken, "per_s": started / taken}


def _times(snapshot: Snapshot, repeat: int) -> list[float]:
    return [seconds(lambda: decide(snapshot)) for _ in range(repeat)]


def main() -> int:
    """0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    cores = len(os.sched_getaffinity(0))
    print(f"on {cores} cores, load {os.getloadavg()[0]:.1f}")
    growth = [full_pass(count, repeat) for count in (1_000, 10_000, 50_000)]
    growth.append(full_pass(50_000, 1, at_rest=False) | {"upheaval": True})
    print(f"{'pending':>8} {'running':>8} {'full pass':>10} {'worst':>8} {'started':>8} {'held':>6} {'preempted':>9}")
    for row in growth:
        print(
            f"{row['pending']:>8,} {row['running']:>8,} {row['median_s']:>9.3f}s {row['worst_s']:>7.3f}s "
            f"{row['started']:>8} {row['held']:>6} {row['preempted']:>9}"
            + ("  upheaval" if row.get("upheaval") else ""),
            flush=True,
        )
    warm = warm_passes(50_000, repeat)
    for name, value in warm.items():
        print(f"warm pass, {name}: {value * 1e3:.1f} ms")
    down = node_down(50_000)
    print(f"pass after a node went down: {down:.3f} s")
    plan = preemption_plan(repeat)
    print(f"preemption plan, 700 candidates on 2,000 nodes: {plan['median_s']:.3f} s")
    gang = large_gang(repeat)
    print(
        f"512-node gang on 10,000 nodes: {gang['warm_s'] * 1e3:.1f} ms ({gang['anew_s'] * 1e3:.0f} ms with new books)"
    )
    rate = admissions()
    print(f"admissions, decision only: {rate['per_s']:,.0f} per second")
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory at most: {memory_mib:,.0f} MiB")
    print(
        json.dumps(
            {
                "cores": cores,
                "full_pass": growth,
                "warm_s": warm,
                "node_down_s": down,
                "preemption": plan,
                "gang": gang,
                "admissions": rate,
                "memory_mib": memory_mib,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
