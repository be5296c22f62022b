"""Graceful stops at random moments, by signal and by command, in every checkpoint mode: how many lose no step.

    python -m tests.bench.bench_trainer_stop [--tries 20]

Every second stop is sent while a checkpoint is being written. A try is lost unless all ranks leave with the status of
a stop, and the newest durable checkpoint is of the last step that any rank has made. Prints a line a try, and JSON.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "steps": 100_000,
    "global_batch_size": 8,
    "model": {"preset": "nano"},
    "data": {"sequence_length": 32},
    "eval": {"every_steps": 0},
}
MODES = ("process", "thread", "sync")
GRACE_S = 30.0


def one_stop(warm: Any, folder: Path, number: int, source: random.Random) -> dict[str, Any]:
    """What became of one run that was stopped."""
    from trainer.records import STOPPED

    mode, during_save = MODES[number % len(MODES)], number % 2 == 1
    config = CONFIG | {"checkpoint": {"every_steps": 20 if during_save else 1000, "mode": mode}}
    gang = warm.start(folder / str(number), config, 2)
    gang.wait_for("step", step=source.randint(5, 30))
    if during_save:
        seen = max(r["step"] for r in gang.records() if r["k"] == "step")
        gang.wait_for("ckpt", event="begin", step=seen)
    begin = time.monotonic()
    how = source.choice(["control", "sigterm"])
    if how == "control":
        gang.tell("stop", reason="preempted", grace_s=GRACE_S)
    else:
        gang.kill(source.randrange(2), signal.SIGTERM)
    ended = gang.wait()
    seconds = time.monotonic() - begin
    last = max(max(ended.losses(rank)) for rank in range(2))
    saved = max((r["step"] for r in ended.of("ckpt", event="durable")), default=0)
    good = ended.statuses == [STOPPED, STOPPED] and seconds < GRACE_S
    return {
        "mode": mode,
        "how": how,
        "during_save": during_save,
        "seconds": round(seconds, 2),
        "lost_steps": last - saved if good else None,
    }


def main() -> int:
    """0 when no step was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    from tests.trainer.gang import WarmStart

    source = random.Random(arguments.seed)
    warm = WarmStart()
    tries = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(arguments.tries):
                tries.append(one_stop(warm, Path(folder), number, source))
                print(tries[-1], flush=True)
    finally:
        warm.close()
    good = sum(row["lost_steps"] == 0 for row in tries)
    slowest = max(row["seconds"] for row in tries)
    print(f"{good} of {len(tries)} stops lost no step; the slowest took {slowest:.1f} s of its {GRACE_S:.0f}")
    print(json.dumps({"tries": len(tries), "without_loss": good, "slowest_s": slowest}))
    return 0 if good == len(tries) else 1


if __name__ == "__main__":
    sys.exit(main())
