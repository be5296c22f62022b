"""Spreading a model over ranks by one word: full_shard, shard_grad_op, hybrid_shard, ddp."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer.collectives import Ledger, ledger_attach
from trainer.config import TrainerConfig
from trainer.records import RecordWriter
from trainer.state import local_of

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def device_of_rank() -> torch.device:
    """The rank's own GPU, or the CPU."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def group_join(device: torch.device, timeout_s: float) -> None:
    """Meet the other ranks. Without a time-out of our own a hang would wait for half an hour."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))


def fair_threads() -> int:
    """This rank's share of the node's cores, at least one."""
    cores = len(os.sched_getaffinity(0))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class Spread:
    """A model over all ranks, and what the optimizer works on: this rank's shards as plain tensors.

    AdamW is elementwise, so stepping the local shards is exact, and it spares every step the cost of sending each
    parameter through DTensor's dispatcher.
    """

    def __init__(self, bare: nn.Module, config: TrainerConfig, device: torch.device, ledger: Ledger) -> None:
        self.config, self.device, self.bare = config, device, bare
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.num_replicas = 1
        self.mesh: DeviceMesh | None = None
        self.model = self._replicate() if config.strategy == "ddp" else self._shard()
        ledger_attach(ledger, self.model, replicated=config.strategy == "hybrid_shard")
        self.parameters = dict(bare.named_parameters())
        whole = config.strategy == "ddp"
        self.locals = {name: p if whole else nn.Parameter(local_of(p.data)) for name, p in self.parameters.items()}

    def _replicate(self) -> nn.Module:
        self.num_replicas = self.world_size
        model = self.bare.to(self.device)
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)

    def _shard(self) -> nn.Module:
        config = self.config
        self.mesh = self._mesh()
        dtype = DTYPES[config.precision]
        options: dict[str, Any] = {
            "mesh": self.mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None),
            "reshard_after_forward": config.strategy != "shard_grad_op",
            # Pinned memory is for copies from a GPU; without one torch cannot pin at all.
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
            if config.cpu_offload
            else OffloadPolicy(),
        }
        model = self.bare if config.cpu_offload else self.bare.to(self.device)
        blocks = list(model.blocks)  # type: ignore[arg-type]
        for block in blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        if config.cpu_offload and self.device.type == "cuda":
            for buffer in model.buffers():
                buffer.data = buffer.data.to(self.device)
        for number, block in enumerate(blocks):
            ahead = config.prefetch
            if ahead:
                block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
                block.set_modules_to_backward_prefetch(blocks[max(0, number - ahead) : number][::-1])
        return model

    def _mesh(self) -> DeviceMesh:
        # An explicit mesh: on a machine with GPUs, a CPU model would otherwise be moved there.
        if self.config.strategy == "hybrid_shard":
            per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self.num_replicas = self.world_size // per_node
            shape = (self.num_replicas, per_node)
            return init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))
        return init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("shard",))

    def register_groups(self, ledger: Ledger, records: RecordWriter) -> None:
        """Write down which ranks meet for what."""
        backend = dist.get_backend()
        ledger.register(records, "world", list(range(self.world_size)), "agreement", backend)
        self.instances = {"world": (1, 0)}
        if self.mesh is None:
            return
        for place, name in enumerate(self.mesh.mesh_dim_names or ()):
            ranks = dist.get_process_group_ranks(self.mesh.get_group(name))
            purpose = "gradients between replicas" if name == "replicate" else "parameters and gradients"
            ledger.register(records, name, ranks, purpose, backend)
            # Groups of one kind differ in the other coordinate of the mesh.
            others = [(self.mesh.size(d), self.mesh.get_local_rank(d)) for d in range(self.mesh.ndim) if d != place]
            self.instances[name] = others[0] if others else (1, 0)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The forward pass's number format: FSDP casts by itself, DDP needs autocast."""
        dtype = DTYPES[self.config.precision]
        auto = dtype is not None and self.config.strategy == "ddp"
        with torch.autocast(self.device.type, dtype) if auto else nullcontext():
            yield

    def sync_gradients(self, on: bool) -> None:
        """Reduce gradients in this backward pass, or keep them for a later one."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(on)
        elif isinstance(self.model, DistributedDataParallel):
            self.model.require_backward_grad_sync = on

    def gradients(self) -> list[Tensor]:
        """This rank's share of the reduced gradients, handed to the optimizer."""
        found = []
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            if gradient is not None:
                local = local_of(gradient)
                self.locals[name].grad = local
                found.append(local)
        return found

    def forget_gradients(self) -> None:
        """Free them."""
        for name, parameter in self.parameters.items():
            parameter.grad = self.locals[name].grad = None

    def squares(self, gradients: list[Tensor]) -> Tensor:
        """The sum of this rank's squared gradients, so that the sum over all ranks is the squared norm."""
        if not gradients:
            return torch.zeros((), device=self.device)
        norms = torch._foreach_norm(gradients)
        return torch.stack(list(norms)).to(self.device).square().sum() / self.num_replicas
