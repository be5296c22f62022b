"""What a checkpoint holds: live tensors by name, in a form that any number of ranks and any strategy can load.

The optimizer works on the local shards themselves (see ``parallel``), so its moments are plain tensors; here each
gets back the placement of its parameter. The names are those of the bare model, whatever wraps it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Spread:
    """How a tensor lies over the mesh; None for one that every rank has whole."""

    mesh: DeviceMesh
    placements: tuple[Any, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    def around(self, local: Tensor) -> Tensor:
        """The sharded tensor of which ``local`` is this rank's part."""
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )


@dataclass(frozen=True)
class Entry:
    """One tensor of the state: this rank's part, and how the whole lies."""

    local: Tensor
    spread: Spread | None

    def whole(self) -> Tensor:
        """The tensor as the distributed checkpoint wants it."""
        return self.spread.around(self.local) if self.spread else self.local


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part, sharing the memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _spread_of(tensor: Tensor) -> Spread | None:
    if not isinstance(tensor, DTensor):
        return None
    return Spread(tensor.device_mesh, tuple(tensor.placements), tensor.shape, tuple(tensor.stride()))


def state_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, locals_by_name: Mapping[str, Tensor]
) -> dict[str, Entry]:
    """Parameters, buffers and optimizer moments by name. ``locals_by_name``: what the optimizer works on."""
    moments_ensure(optimizer)
    entries: dict[str, Entry] = {}
    for name, parameter in model.named_parameters():
        spread = _spread_of(parameter.data)
        local = locals_by_name[name]
        entries[f"model.{name}"] = Entry(local.detach(), spread)
        for moment in MOMENTS:
            entries[f"optimizer.{moment}.{name}"] = Entry(optimizer.state[local][moment], spread)
    persistent = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if name in persistent:
            entries[f"model.{name}"] = Entry(buffer.detach(), None)
    return entries


def moments_ensure(optimizer: torch.optim.Optimizer) -> None:
    """Make the moments that AdamW would make at its first step, so that there is something to load into."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                for moment in MOMENTS:
                    state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


def updates_set(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Tell AdamW how many updates lie behind it: its bias correction needs that."""
    for state in optimizer.state.values():
        state["step"].fill_(float(updates))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The random number generators of this rank, as byte tensors."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def random_set(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put the generators back."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
