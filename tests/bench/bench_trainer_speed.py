"""Tokens per second of the trainer against a hand-written FSDP2 loop, and against accelerate (DDP) where installed.

    python -m tests.bench.bench_trainer_speed [--ranks 2] [--blocks 100] [--steps 2] [--peer handwritten|accelerate]

Both loops live in the same processes and take turns in blocks of steps, so that whatever else the machine does meets
both. Prints a table, and JSON on the last line. On a CUDA machine the same command gives the GPU's figures.
"""

import argparse
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# On a CUDA machine the figures are the GPU's: `make bench-gpu` runs this one.
GPU = True

CONFIG: dict[str, Any] = {
    "steps": 100_000,
    "global_batch_size": 8,
    "model": {"layers": 4, "width": 256, "heads": 4},
    "data": {"sequence_length": 256},
    "eval": {"every_steps": 0},
    "checkpoint": {"every_steps": 0},
}
CUDA_CONFIG: dict[str, Any] = CONFIG | {
    "precision": "bf16",
    "global_batch_size": 16,
    "model": {"preset": "gpt2"},
    "data": {"sequence_length": 1024},
}


def rank_main(arguments: argparse.Namespace) -> None:
    """One rank: blocks of both loops in turn; rank 0 prints their times."""
    import torch
    import torch.distributed as dist

    from trainer.config import TrainerConfig
    from trainer.loop import Run
    from trainer.records import RecordWriter

    world_size = int(os.environ["WORLD_SIZE"])
    strategy = "ddp" if arguments.peer == "accelerate" else "full_shard"
    base = CUDA_CONFIG if torch.cuda.is_available() else CONFIG
    config = TrainerConfig.parse(base | {"strategy": strategy}, world_size=world_size)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    records = RecordWriter(Path(arguments.folder) / f"rank_{os.environ['RANK']}.jsonl")
    run = Run(config, records)
    run._meet()
    run._build()
    run._restore()
    run.spread.model.train()
    if arguments.peer == "accelerate":
        from tests.bench.handwritten_accelerate import Accelerated

        peer: Any = Accelerated(config)
    else:
        from tests.bench.handwritten_fsdp2 import Handwritten

        peer = Handwritten(config)

    def trainer_step() -> None:
        run._one_step()
        if config.gc_every_steps and run.step % config.gc_every_steps == 0:
            gc.collect(1)

    loops = {"trainer": trainer_step, arguments.peer: peer.step}
    times: dict[str, list[float]] = {name: [] for name in loops}
    processor: dict[str, list[float]] = {name: [] for name in loops}
    costs: list[tuple[int, float]] = []
    for block in range(arguments.blocks + 1):
        # Who begins changes from block to block.
        for name in sorted(loops, reverse=bool(block % 2)):
            # The trainer collects garbage at steps of its own; a loop written by hand leaves it to Python.
            if name == "trainer" and config.gc_every_steps:
                gc.disable()
            else:
                gc.enable()
            dist.barrier()
            spent = records.spent_ns + run.stepper.arrivals.cost_ns
            begin, cpu = time.perf_counter(), time.process_time()
            for _ in range(arguments.steps):
                loops[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            dist.barrier()
            seconds = time.perf_counter() - begin
            busy = torch.tensor([time.process_time() - cpu], dtype=torch.float64, device=run.device)
            dist.all_reduce(busy)
            if block:  # the first one warms up
                times[name].append(seconds)
                processor[name].append(float(busy))
                if name == "trainer":
                    costs.append((records.spent_ns + run.stepper.arrivals.cost_ns - spent, seconds))
    if run.rank == 0:
        tokens = config.global_batch_size * config.data.sequence_length * arguments.steps
        pairs = [theirs / ours for ours, theirs in zip(times["trainer"], times[arguments.peer], strict=True)]
        from trainer.parallel import DTYPES
        from trainer.throughput import peak_of, utilisation

        peak = peak_of(run.device, DTYPES[config.precision] or torch.float32)
        used = utilisation(
            tokens_per_s=tokens / statistics.median(times["trainer"]),
            flops_per_token=run.workload.flops_per_unit,
            num_ranks=world_size,
            peak_flops=peak.flops,
            checkpointing=config.activation_checkpointing,
        )
        result = {
            "mfu": used.mfu,
            "mfu_fault": used.fault,
            "peak": peak.source,
            "ranks": world_size,
            "device": str(run.device),
            "strategy": strategy,
            "tokens_per_s": {name: tokens / statistics.median(values) for name, values in times.items()},
            "ratio_median": statistics.median(pairs),
            "cpu_time_ratio_median": statistics.median(
                theirs / ours for ours, theirs in zip(processor["trainer"], processor[arguments.peer], strict=True)
            ),
            "ratio_quartiles": statistics.quantiles(pairs, n=4),
            "record_cost": sum(c for c, _ in costs) / 1e9 / sum(s for _, s in costs),
            "record_only_cost": records.spent_ns / 1e9 / sum(times["trainer"]),
        }
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)


def main() -> int:
    """Start the ranks, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--peer", choices=["handwritten", "accelerate"], default="handwritten")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(arguments)
    if arguments.peer == "accelerate" and importlib.util.find_spec("accelerate") is None:
        print("accelerate is not installed here: run this with the Python of an environment that has it and torch.")
        return 2
    from tests.trainer.gang import free_port

    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(arguments.ranks):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(arguments.ranks),
                "LOCAL_WORLD_SIZE": str(arguments.ranks),
                "MASTER_ADDR": "127.0.0.1",
            }
            ranks.append(environment)
        port = str(free_port())
        command = [sys.executable, "-m", "tests.bench.bench_trainer_speed", "--folder", folder, *sys.argv[1:]]
        started = [
            subprocess.Popen(
                command, env={**os.environ, **environment, "MASTER_PORT": port}, stdout=subprocess.PIPE, text=True
            )
            for environment in ranks
        ]
        outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        return 1
    result = json.loads(outputs[0].strip().splitlines()[-1])
    for name, rate in result["tokens_per_s"].items():
        print(f"{name:>12}  {rate:>12,.0f} tokens/s")
    print(f"MFU {result['mfu']:.1%} of {result['peak']}" if result["mfu"] else f"MFU: {result['mfu_fault']}")
    print(f"ratio, median of {arguments.blocks} pairs of blocks: {result['ratio_median']:.3f}")
    print(f"the same in processor time: {result['cpu_time_ratio_median']:.3f}")
    print(f"measuring costs {result['record_cost']:.2%} of the time, of that records {result['record_only_cost']:.2%}")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
