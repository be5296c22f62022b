"""One rank that trains two steps and says how many bytes of tensors it held at most, as torch's allocator saw it."""

import json
import os
import sys

import torch
from torch.profiler import ProfilerActivity, profile

from trainer.config import TrainerConfig
from trainer.loop import Run
from trainer.records import RecordWriter


def main() -> None:
    """Print the peak on rank 0."""
    config = TrainerConfig.parse(
        json.loads(sys.argv[1]),
        world_size=int(os.environ["WORLD_SIZE"]),
        nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
    )
    torch.set_num_threads(1)
    run = Run(config, RecordWriter(None))
    run._meet()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as window:
        run._build()
        run._restore()
        for _ in range(config.steps):
            run._one_step()
    held = peak = 0
    # Threads are told one after the other: only in the order of time do allocations sum up to what was held.
    for event in sorted(window.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]" and event.device_type().name == "CPU":
            held += event.nbytes()
            peak = max(peak, held)
    if run.rank == 0:
        print(json.dumps({"peak_bytes": peak}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
