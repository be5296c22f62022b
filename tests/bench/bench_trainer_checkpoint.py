"""How long training stands still for a checkpoint: 300 MB of state, every mode, in one table.

    python -m tests.bench.bench_trainer_checkpoint [--ranks 2] [--saves 20] [--every 10]

Each mode trains the same model and saves every few steps; the modes take turns in rounds. Stall: what the training
loop waited, at the save and before the next update. Overhead: a mode's time for its steps against the same steps
without saving. Prints a table, and JSON on the last line.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODES = ["none", "sync", "thread", "process"]
CONFIG: dict[str, Any] = {
    "steps": 100_000,
    "global_batch_size": 4,
    "model": {"layers": 8, "width": 512, "heads": 8},  # 25.4 M parameters: 305 MB with moments
    "data": {"sequence_length": 256},
    "eval": {"every_steps": 0},
}


def rank_main(arguments: argparse.Namespace) -> None:
    """One rank of one mode."""
    import torch
    import torch.distributed as dist

    from trainer.config import TrainerConfig
    from trainer.loop import Run
    from trainer.records import RecordWriter

    mode = arguments.mode
    rules = {"every_steps": 0, "mode": "sync" if mode == "none" else mode, "keep_last": 1}
    world_size = int(os.environ["WORLD_SIZE"])
    config = TrainerConfig.parse(CONFIG | {"checkpoint": rules}, world_size=world_size)
    os.environ["TRAINYARD_CHECKPOINT_DIR"] = f"{arguments.folder}/{mode}"
    run = Run(config, RecordWriter(None))
    if mode == "process":
        from trainer.saver import Saver

        run.saver = Saver()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    run._meet()
    run._build()
    run._restore()
    run.spread.model.train()
    keeper = run.checkpointer
    assert keeper is not None
    for _ in range(2):
        run._one_step()
    dist.barrier()
    begin = time.perf_counter()
    for step in range(arguments.saves * arguments.every):
        if mode != "none" and step % arguments.every == 0:
            run._begin_save(keeper)
        run._one_step()
    seconds = time.perf_counter() - begin
    keeper.settle()
    stalls = [value / 1e6 for value in keeper.stalls_ns]
    if run.rank == 0:
        print(
            json.dumps({"mode": mode, "stalls_ms": stalls, "seconds": seconds, "failure": keeper.failure}), flush=True
        )
    dist.barrier()
    keeper.close()
    os._exit(0)


def start(mode: str, folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What one mode's rank 0 says."""
    from tests.trainer.gang import free_port

    port = str(free_port())
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.bench_trainer_checkpoint", "--mode", mode]
    command += ["--folder", folder, "--saves", str(arguments.saves), "--every", str(arguments.every)]
    started = []
    for rank in range(arguments.ranks):
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(arguments.ranks),
            "LOCAL_WORLD_SIZE": str(arguments.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        started.append(subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in started]
    shutil.rmtree(Path(folder) / mode, ignore_errors=True)
    return dict(json.loads(outputs[0].strip().splitlines()[-1]))


def main() -> int:
    """Run every mode in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.mode:
        rank_main(arguments)
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for mode in MODES:
                found[mode].append(start(mode, folder, arguments))
    plain = statistics.median(run["seconds"] for run in found["none"])
    rows = []
    for mode in MODES[1:]:
        first = [run["stalls_ms"][0] for run in found[mode]]
        later = sorted(value for run in found[mode] for value in run["stalls_ms"][1:])
        rows.append(
            {
                "mode": mode,
                "first_ms": statistics.median(first),
                "p50_ms": statistics.median(later),
                "p95_ms": later[min(len(later) - 1, int(0.95 * len(later)))],
                "overhead": statistics.median(run["seconds"] for run in found[mode]) / plain - 1.0,
                "saves": len(later),
                "failures": [run["failure"] for run in found[mode] if run["failure"]],
            }
        )
    print(f"{'mode':>8} {'first ms':>9} {'p50 ms':>8} {'p95 ms':>8} {'overhead':>9}")
    for row in rows:
        line = f"{row['mode']:>8} {row['first_ms']:>9.1f} {row['p50_ms']:>8.1f} {row['p95_ms']:>8.1f}"
        print(f"{line} {row['overhead']:>9.1%}")
    print(json.dumps({"every_steps": arguments.every, "seconds_without": plain, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
