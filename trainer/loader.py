"""Batches of one rank in the global order, loaded in line or by worker processes.

A batch is a pure function of its place, so a run resumed with another number of workers or ranks sees the same data;
nothing of the loader's own state needs saving.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from trainer.config import TrainerConfig
from trainer.workload import Batch, Source


def share_of_rank(
    *, step: int, micro: int, global_batch_size: int, passes: int, rank: int, world_size: int
) -> tuple[int, int]:
    """First global sample index and count of what a rank takes in one forward pass of a step."""
    per_pass = global_batch_size // passes
    count = per_pass // world_size
    return step * global_batch_size + micro * per_pass + rank * count, count


class Loader:
    """The batches of a rank from a step on; the next one is ready when a worker was in time."""

    def __init__(
        self,
        source: Source,
        config: TrainerConfig,
        *,
        rank: int,
        world_size: int,
        first_step: int,
        device: torch.device,
    ) -> None:
        self.device = device
        shares = _shares(config, rank, world_size, first_step)
        if config.data.workers:
            self._batches: Iterator[Batch] = iter(
                DataLoader(
                    _ByPlace(source),
                    batch_size=None,
                    sampler=shares,  # type: ignore[arg-type]
                    num_workers=config.data.workers,
                    pin_memory=device.type == "cuda",
                    multiprocessing_context="fork",
                )
            )
        else:
            self._batches = (source.batch(first, count) for first, count in shares)

    def next(self) -> Batch:
        """The next batch on the rank's device."""
        batch = next(self._batches)
        if self.device.type == "cpu":
            return batch
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)


def _shares(config: TrainerConfig, rank: int, world_size: int, first_step: int) -> Iterator[tuple[int, int]]:
    passes = config.passes(world_size)
    for step in range(first_step, config.steps):
        for micro in range(passes):
            yield share_of_rank(
                step=step,
                micro=micro,
                global_batch_size=config.global_batch_size,
                passes=passes,
                rank=rank,
                world_size=world_size,
            )


class _ByPlace(Dataset[Batch]):
    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, place: tuple[int, int]) -> Batch:
        return self.source.batch(*place)
