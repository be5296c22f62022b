"""Out of memory: what was held, the largest tensors, and what to change, in numbers."""

import gc
from typing import Any

import torch

from trainer.config import TrainerConfig
from trainer.memory import GIB, estimate, verdict


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def memory_now(device: torch.device) -> dict[str, int]:
    """Resident and peak memory of the process; on CUDA also the allocator's figures. Bytes."""
    found: dict[str, int] = {}
    with open("/proc/self/status") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found["rss" if name == "VmRSS" else "rss_peak"] = int(value.split()[0]) * 1024
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        found["allocated"] = stats["allocated_bytes.all.current"]
        found["allocated_peak"] = stats["allocated_bytes.all.peak"]
        found["reserved"] = stats["reserved_bytes.all.current"]
        found["fragmented"] = stats["inactive_split_bytes.all.current"]
        found["retries"] = stats["num_alloc_retries"]
        found["total"] = torch.cuda.get_device_properties(device).total_memory
    return found


def report(config: TrainerConfig, device: torch.device, *, world_size: int, nodes: int) -> dict[str, Any]:
    """What to tell after an allocation failed: figures, the largest tensors, and one sentence of advice."""
    tensors = sorted(_tensors(), key=lambda row: -row["bytes"])[:10]
    figures = memory_now(device)
    needed = estimate(config, world_size=world_size, nodes=nodes, device=device.type)
    limit = figures.get("total")
    if limit is None:
        limit = _host_memory() // max(1, world_size // nodes)
    found = verdict(config, world_size=world_size, nodes=nodes, memory_gib=limit / GIB)
    advice = found.sentence()
    if figures.get("fragmented", 0) > 0.2 * figures.get("reserved", 1):
        advice += " A fifth of the reserved memory is in pieces: keep PYTORCH_ALLOC_CONF=expandable_segments:True."
    elif found.fits:
        changes = "activation_checkpointing = full or half the micro_batch_size"
        advice += f" The estimate fits, so something else holds memory on this device; else try {changes}."
    return {"figures": figures, "largest": tensors, "estimate": needed.as_json(), "advice": advice}


def _tensors() -> list[dict[str, Any]]:
    rows, seen = [], set()
    for candidate in gc.get_objects():
        # Asking a lazy module's or a proxy's type may run code of its own; exact types do not.
        if type(candidate) in (torch.Tensor, torch.nn.Parameter):
            storage = candidate.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                kind = str(candidate.dtype).removeprefix("torch.")
                rows.append({"bytes": storage.nbytes(), "shape": list(candidate.shape), "dtype": kind})
    return rows


def _host_memory() -> int:
    with open("/proc/meminfo") as info:
        return int(info.readline().split()[1]) * 1024
