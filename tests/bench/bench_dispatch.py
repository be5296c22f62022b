"""Admissions per second through PostgreSQL: pending rows to started attempts, by the dispatch loop itself.

    python -m tests.bench.bench_dispatch [--jobs 500 2000]

Jobs of 1 to 16 GPUs on as many nodes as they need. One pass: snapshot from rows, decision, batches of one transaction
each (attempt, allocations, quota, events, launch order). Prints a table, and JSON on the last line.
"""

import argparse
import json
import os
import random
import sys
import time
from typing import Any

from tests.bench.postgres import django_on_postgres

SIZES = ((1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 8))


def fill(count: int) -> None:
    """So many pending jobs in ten queues, and nodes for all of them."""
    from portal.jobs.models import Job
    from tests.portal import builders as make

    source = random.Random(count)
    owners = [make.member("ada", make.team(f"team-{i}", gpus=16 * count)) for i in range(10)]
    sizes = [source.choice(SIZES) for _ in range(count)]
    make.nodes(**{f"n{i:05}": 8 for i in range(sum(n * g for n, g in sizes) // 8 + count // 4 + 10)})
    samples = {}
    for index, (nodes, gpus) in enumerate(sizes):
        team = f"team-{index % 10}"
        if (team, nodes, gpus) not in samples:
            samples[team, nodes, gpus] = make.job(owners[index % 10], team=team, nodes=nodes, gpus_per_node=gpus)
            continue
        row = samples[team, nodes, gpus]
        row = Job.objects.get(pk=row.pk)
        row.pk, row._state.adding = None, True
        row.id = Job._meta.pk.get_default()
        row.save(force_insert=True)


def one(count: int) -> dict[str, Any]:
    """Seconds and admissions per second for so many pending jobs."""
    from django.utils import timezone

    from portal.dispatch.load import snapshot_load
    from portal.dispatch.loop import Dispatcher
    from portal.jobs.models import Attempt
    from scheduler import decide

    fill(count)
    begin = time.perf_counter()
    snapshot = snapshot_load(now=timezone.now())
    loaded = time.perf_counter()
    decide(snapshot)
    decided = time.perf_counter()
    dispatcher = Dispatcher(holder="bench")
    started = 0
    first = time.perf_counter()
    while started < count:
        applied = dispatcher.tick()
        assert applied is not None and applied.started, "a pass that starts nothing"
        started += len(applied.started)
    seconds = time.perf_counter() - first
    assert Attempt.objects.count() == count
    return {
        "jobs": count,
        "seconds": round(seconds, 2),
        "admissions_per_s": round(count / seconds, 1),
        "load_s": round(loaded - begin, 3),
        "decide_s": round(decided - loaded, 3),
    }


def main() -> int:
    """0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[500, 2000])
    arguments = parser.parse_args()
    rows = []
    with django_on_postgres():
        from django.core.management import call_command

        for count in arguments.jobs:
            call_command("flush", interactive=False, verbosity=0)
            rows.append(one(count))
    print(f"{'jobs':>6} {'seconds':>8} {'admissions/s':>13} {'of that load':>13} {'decide':>8}")
    for row in rows:
        print(
            f"{row['jobs']:>6} {row['seconds']:>8} {row['admissions_per_s']:>13} {row['load_s']:>13} {row['decide_s']:>8}"
        )
    print(json.dumps({"cores": len(os.sched_getaffinity(0)), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
