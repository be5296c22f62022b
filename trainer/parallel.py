"""Spreading a model over ranks by one word: full_shard, shard_grad_op, hybrid_shard, ddp."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainer.config import TrainerConfig
from trainer.model import LanguageModel


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


def model_spread(model: LanguageModel, config: TrainerConfig, device: torch.device) -> nn.Module:
    """The model, sharded or replicated as the strategy says, on its device."""
    model = model.to(device)
    if config.activation_checkpointing == "full":
        _checkpoint_blocks(model)
    if config.strategy == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)
    mesh = _mesh(config, device)
    dtype = torch.bfloat16 if config.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    reshard = config.strategy != "shard_grad_op"
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return model


def _mesh(config: TrainerConfig, device: torch.device) -> DeviceMesh:
    # An explicit mesh: on a machine with GPUs, a CPU model would otherwise be moved there.
    world = dist.get_world_size()
    if config.strategy == "hybrid_shard":
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return init_device_mesh(
            device.type, (world // per_node, per_node), mesh_dim_names=("replicate", "shard")
        )
    return init_device_mesh(device.type, (world,), mesh_dim_names=("shard",))


def _checkpoint_blocks(model: LanguageModel) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block)


def gradient_sync(model: nn.Module, on: bool) -> None:
    """Reduce gradients in this backward pass, or keep them for a later one."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(on)
    elif isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = on


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """The norm of all gradients before clipping, as a plain tensor; with ``limit`` 0 nothing is clipped."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    if limit > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
