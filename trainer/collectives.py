"""What this rank's collectives did: a registry of groups, and a ledger of one step.

FSDP's own hooks for custom communication carry the clocks, so nothing of torch is patched. On the CPU a collective
of FSDP blocks until it is done: its whole time is exposed. DDP's overlap with the backward pass: only what is left
after the last gradient is exposed. On CUDA the host only enqueues: the ledger then holds arrivals, not lengths.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.nn.parallel import DistributedDataParallel

from trainer.records import RecordWriter


@dataclass(slots=True)
class Collective:
    """One collective of this rank. ``begin_ns`` is its arrival (monotonic clock)."""

    group: str
    op: str
    num_bytes: int
    begin_ns: int
    end_ns: int
    exposed_ns: int


@dataclass
class Ledger:
    """The collectives of the step under way, in order; the order is the same on every rank."""

    groups: dict[str, list[int]] = field(default_factory=dict)
    entries: list[Collective] = field(default_factory=list)
    on: bool = True
    sequence: dict[str, int] = field(default_factory=dict)
    _overlapped: Collective | None = None

    def register(self, records: RecordWriter, name: str, ranks: list[int], purpose: str, backend: str) -> None:
        """Note a group and write it down: torch's own recorder leaves names and ranks out for gloo."""
        self.groups[name] = ranks
        records.write("group", name=name, ranks=ranks, purpose=purpose, backend=backend)

    def add(self, group: str, op: str, num_bytes: int, begin_ns: int, *, exposed: bool = True) -> Collective | None:
        """A collective that began at ``begin_ns`` and has just ended."""
        self.sequence[group] = self.sequence.get(group, 0) + 1
        if not self.on:
            return None
        end = time.perf_counter_ns()
        entry = Collective(group, op, num_bytes, begin_ns, end, end - begin_ns if exposed else 0)
        self.entries.append(entry)
        return entry

    def began(self, group: str, op: str, num_bytes: int) -> Collective | None:
        """A collective that runs beside the backward pass; its end comes later."""
        entry = self.add(group, op, num_bytes, time.perf_counter_ns(), exposed=False)
        self._overlapped = entry or self._overlapped
        return entry

    def backward_ended(self) -> None:
        """After the last bucket was ready nothing but waiting for it was left."""
        entry, self._overlapped = self._overlapped, None
        if entry is not None:
            entry.exposed_ns = time.perf_counter_ns() - entry.begin_ns

    def take(self) -> list[Collective]:
        """The step's entries; the ledger is empty again."""
        entries, self.entries = self.entries, []
        return entries


class _TimedAllGather(DefaultAllGather):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        begin = time.perf_counter_ns()
        work = super().__call__(output_tensor, input_tensor, group, async_op)
        self._ledger.add("shard", "all_gather", output_tensor.nbytes, begin)
        return work


class _TimedReduceScatter(DefaultReduceScatter):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ended_ns = 0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        # The output is made right before the reduce-scatter, which a shard group of one rank does not need.
        self.ended_ns = time.perf_counter_ns()
        return super().allocate(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        begin = time.perf_counter_ns()
        work = super().__call__(output_tensor, input_tensor, group, op, async_op)
        self._ledger.add("shard", "reduce_scatter", input_tensor.nbytes, begin)
        self.ended_ns = time.perf_counter_ns()
        return work


def ledger_attach(ledger: Ledger, model: nn.Module, *, replicated: bool) -> None:
    """Have the model's collectives write themselves into the ledger."""
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(ledger, _timed_bucket)
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            scatter = _TimedReduceScatter(ledger)
            module.set_custom_all_gather(_TimedAllGather(ledger))
            module.set_custom_reduce_scatter(scatter)
            if replicated:
                module.set_all_reduce_hook(_replica_hook(ledger, scatter))


def _replica_hook(ledger: Ledger, scatter: _TimedReduceScatter) -> Any:
    def hook(gradient: Tensor) -> None:
        # FSDP calls this right after the all-reduce between replicas, which follows the reduce-scatter.
        ledger.add("replicate", "all_reduce", gradient.nbytes, scatter.ended_ns)

    return hook


def _timed_bucket(ledger: Ledger, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean over all ranks, as DDP's built-in hook makes it, with its clock."""
    gradient = bucket.buffer()
    entry = ledger.began("world", "all_reduce", gradient.nbytes)
    gradient.div_(dist.get_world_size())
    work = dist.all_reduce(gradient, async_op=True)
    assert work is not None

    def ended(future: torch.futures.Future[Any]) -> Tensor:
        if entry is not None:
            entry.end_ns = time.perf_counter_ns()
        value: Tensor = future.value()[0]
        return value

    return work.get_future().then(ended)
