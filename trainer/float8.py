"""Matrix products in float8 where the device has them: weights and inputs in e4m3, gradients in e5m2.

Each tensor is scaled by its own largest value at the time (dynamic scaling); sums are made in fp32 by the hardware,
and results are bf16. Whether it works is tried on the device, never assumed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.refusal import Refused

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def unsupported_reason(device: torch.device) -> str | None:
    """Why this device cannot multiply in float8; None when a small product came out right."""
    try:
        left = torch.randn(32, 64, device=device, dtype=torch.bfloat16)
        right = torch.randn(16, 64, device=device, dtype=torch.bfloat16)
        found = _product(left, right, E4M3, E4M3)
        wanted = left.float() @ right.float().t()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error).strip().splitlines()[0][:200]
    close = (found.float() - wanted).norm() < 0.1 * wanted.norm()
    return None if bool(close) else "a float8 product on it comes out wrong"


def linears_swap(model: nn.Module, device: torch.device) -> None:
    """Have the blocks' linear layers multiply in float8. Raises ``Refused`` where the device cannot."""
    if device.type != "cuda":
        raise Refused("float8 needs a GPU with float8 units (Ada, Hopper or newer); this run is on the CPU. Use bf16.")
    reason = unsupported_reason(device)
    if reason:
        raise Refused(f"This GPU cannot multiply in float8 ({reason}). Set float8 to false.")
    for block in model.blocks:  # type: ignore[union-attr]
        for module in block.modules():
            # The units take sizes that are multiples of 16.
            if isinstance(module, nn.Linear) and module.in_features % 16 == module.out_features % 16 == 0:
                module.__class__ = Float8Linear


class Float8Linear(nn.Linear):
    """A linear layer whose three products (forward, and two backward) are made in float8."""

    def forward(self, input: Tensor) -> Tensor:
        """[…, in] to […, out]."""
        rows = input.reshape(-1, self.in_features)
        if len(rows) % 16:
            return F.linear(input, self.weight, self.bias)
        found: Tensor = _Float8Product.apply(rows, self.weight)
        found = found if self.bias is None else found + self.bias
        return found.view(*input.shape[:-1], self.out_features)


class _Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(rows, weight)
        return _product(rows, weight, E4M3, E4M3)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        rows, weight = context.saved_tensors
        to_rows = _product(gradient, weight.t().contiguous(), E5M2, E4M3)
        to_weight = _product(gradient.t().contiguous(), rows.t().contiguous(), E5M2, E4M3)
        return to_rows.to(rows.dtype), to_weight.to(weight.dtype)


def _product(left: Tensor, right: Tensor, left_type: torch.dtype, right_type: torch.dtype) -> Tensor:
    """``left @ right.T`` through float8, in bf16."""
    left8, left_scale = _scaled(left, left_type)
    right8, right_scale = _scaled(right, right_type)
    return torch._scaled_mm(left8, right8.t(), scale_a=left_scale, scale_b=right_scale, out_dtype=torch.bfloat16)


def _scaled(tensor: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in float8 and what to multiply it with to get it back."""
    largest = tensor.abs().amax().float().clamp(min=1e-12)
    scale = largest / torch.finfo(kind).max
    return (tensor.float() / scale).to(kind).contiguous(), scale
