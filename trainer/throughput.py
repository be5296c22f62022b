"""Tokens per second and the share of the hardware's arithmetic that they use (MFU, HFU)."""

import time
from dataclasses import dataclass

import torch

# Dense bf16 peaks in FLOP/s, from the vendor's data sheets (without sparsity).
KNOWN_PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10": 125e12,
    "V100": 125e12,
    "B200": 2250e12,
}
# Full recomputation runs the forward pass twice: 4 units of work instead of 3.
RECOMPUTE = {"none": 1.0, "selective": 1.0, "full": 4.0 / 3.0}


@dataclass(frozen=True)
class Peak:
    """What one rank's device could do at best, and how that is known."""

    flops: float
    source: str


def peak_of(device: torch.device, dtype: torch.dtype) -> Peak:
    """The data sheet's peak for a known GPU in bf16 or fp16, else that of a short matrix product measured now."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        for known, flops in KNOWN_PEAKS.items():
            if known in name:
                return Peak(flops, f"data sheet of {known}")
    return Peak(_measured(device, dtype), "measured matrix product")


@torch.no_grad()
def _measured(device: torch.device, dtype: torch.dtype) -> float:
    size = 4096 if device.type == "cuda" else 512
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    best = float("inf")
    begin = time.perf_counter()
    # The best of a few: a peak is what the device can do when nothing disturbs it.
    while time.perf_counter() - begin < 0.03:
        start = time.perf_counter()
        left @ right
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


@dataclass(frozen=True)
class Utilisation:
    """``mfu`` counts the model's own work, ``hfu`` also what is recomputed; None when a counter must be wrong."""

    tokens_per_s: float
    flops_per_s: float
    mfu: float | None
    hfu: float | None
    fault: str | None


def utilisation(
    *, tokens_per_s: float, flops_per_token: float, num_ranks: int, peak_flops: float, checkpointing: str
) -> Utilisation:
    """MFU = FLOPs per token × tokens per second / (ranks × peak); more than 1 is a counter fault, not a number."""
    flops = tokens_per_s * flops_per_token
    mfu = flops / (num_ranks * peak_flops)
    hfu = mfu * RECOMPUTE[checkpointing]
    if mfu > 1.0:
        return Utilisation(tokens_per_s, flops, None, None, f"MFU {mfu:.2f} is above 1: a counter or the peak is wrong")
    return Utilisation(tokens_per_s, flops, mfu, hfu, None)
