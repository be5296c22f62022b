"""1,000 kills of the dispatch loop at random statements, on PostgreSQL: lost jobs, doubled allocations, quota drift.

python -m tests.bench.bench_dispatch_kills [--kills 1000] [--seed 1]
"""

import argparse
import json
import random
import sys
import time

from tests.bench.postgres import django_on_postgres


def main() -> int:
    """0 when the books were sound after every kill and every job came to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begin = time.monotonic()
    with django_on_postgres():
        from portal.jobs.models import Attempt, Job
        from tests.portal.dispatch.kills import Tally, finish_all, kill_many, world_make

        def report(tally: Tally) -> None:
            if sys.stderr.isatty():
                print(f"\r{tally.kills} kills, {world.num_jobs} jobs", end="", file=sys.stderr, flush=True)

        world = world_make(random.Random(arguments.seed))
        world.submit(12)
        tally = kill_many(world, arguments.kills, report)
        left = finish_all(world)
        lost = world.num_jobs - Job.objects.count()
        result = {
            "kills": tally.kills,
            "passes_that_lived": tally.survived,
            "jobs": world.num_jobs,
            "attempts": Attempt.objects.count(),
            "lost_jobs": lost + len(left),
            "contradictions": len(tally.found),
            "seconds": round(time.monotonic() - begin, 1),
        }
    for row in tally.found:
        print(f"{row.subject}: {row.message} [{row.rule}]")
    print(f"{result['kills']} kills: {result['lost_jobs']} jobs lost, {result['contradictions']} contradictions")
    print(json.dumps(result))
    return 0 if not tally.found and not result["lost_jobs"] else 1


if __name__ == "__main__":
    sys.exit(main())
