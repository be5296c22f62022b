"""Whether a resumed run is bit for bit the run that was never stopped."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from trainer.checkpoint import Checkpointer
from trainer.records import FAILED, FINISHED
from trainer.state import Entry

if TYPE_CHECKING:
    from trainer.loop import Run


def verify(run: "Run", keeper: Checkpointer | None, steps: int) -> int:
    """Zero when both second halves agree in every loss, norm and bit of the state on every rank."""
    assert keeper is not None
    run.spread.model.train()
    half = steps // 2
    while run.step < half:
        run._one_step()
    run._begin_save(keeper)
    keeper.settle()
    if keeper.failure:
        raise OSError(keeper.failure)
    first = _second_half(run, keeper.entries, steps)
    path = str(keeper.root / f"step_{half:08d}")
    run._stepper_make(run._load(keeper, path))
    second = _second_half(run, keeper.entries, steps)
    differing = torch.tensor([float(first != second)])
    dist.all_reduce(differing, group=keeper.group)
    equal = differing.item() == 0
    run.records.write("verify_resume", step=steps, from_step=half, equal=equal, digest=second[1])
    if run.rank == 0:
        word = "the same bits" if equal else "OTHER BITS"
        print(f"steps {half + 1} to {steps} again from the checkpoint: {word}", flush=True)
    return FINISHED if equal else FAILED


def _second_half(run: "Run", entries: Mapping[str, Entry], steps: int) -> tuple[list[tuple[float, float]], str]:
    numbers = []
    while run.step < steps:
        outcome = run._one_step()
        numbers.append((outcome.loss, outcome.grad_norm))
    return numbers, digest_of(entries)


def digest_of(entries: Mapping[str, Entry]) -> str:
    """SHA-256 over every bit of this rank's state."""
    digest = hashlib.sha256()
    for name, entry in sorted(entries.items()):
        digest.update(name.encode())
        digest.update(entry.local.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
