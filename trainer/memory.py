"""How much memory a rank needs, in closed form, before any GPU is held. Free of torch.

The formulas follow one step of this trainer: parameters and moments in fp32, gathered blocks and activations in the
compute type. ``estimate`` adds up what is there all the time and the largest of three moments of a step: the loss
(logits and their gradient), the backward pass through the last block, and its end, when all gradients are there.

    python -m trainer.memory --config FILE --world-size 8 --gpu h100-80
    python -m trainer.memory --table
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import ConfigError, TrainerConfig

GIB = 1024**3
GPU_MEMORY_GIB: dict[str, float] = {
    "a10-24": 22.0,
    "l40s-48": 44.5,
    "a100-40": 39.4,
    "a100-80": 79.2,
    "h100-80": 79.1,
    "h200-141": 139.8,
    "b200-180": 178.0,
}
# What a CUDA process needs beside tensors: context and kernels, NCCL's channels; and what the allocator wastes.
CUDA_CONTEXT = int(0.6 * GIB)
NCCL_BUFFERS = int(0.6 * GIB)
CUDA_SLACK = 0.04

COMPUTE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Sizes:
    """Parameters by where they lie: one block, and everything around the blocks."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    block: int
    root: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.layers * self.block + self.root


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank at the worst moment of a step, by part; ``moment`` says which that is."""

    parts: dict[str, int]
    moment: str
    host_bytes: int

    @property
    def peak(self) -> int:
        """The parts' sum."""
        return sum(self.parts.values())

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"peak_bytes": self.peak, "parts": self.parts, "moment": self.moment, "host_bytes": self.host_bytes}


def sizes_of(config: TrainerConfig) -> Sizes:
    """The model's parameters: 12·D² + 2·D in a block (qkv, out, up, down, two norms), embedding, head and norm."""
    layers, heads, width = config.sizes()
    block = 12 * width * width + 2 * width
    root = 2 * config.vocabulary() * width + width
    return Sizes(layers, heads, width, config.vocabulary(), block, root)


def shards_of(config: TrainerConfig, world_size: int, nodes: int) -> int:
    """Over how many ranks parameters are cut."""
    if config.strategy == "ddp":
        return 1
    return world_size // nodes if config.strategy == "hybrid_shard" else world_size


def _block_saved(config: TrainerConfig, sizes: Sizes, tokens: int, scheme: str, device: str) -> int:
    """Bytes that one block keeps for its backward pass.

    Per token, in units of the width: the packed query, key and value (3), rotated query and key (2), attention's
    result (1), the feed-forward's inner values before and after the non-linearity (8), the stream after attention and
    at the end (2), both norms' results (2), and where the norm is no fused kernel also their products (2).
    ``selective`` keeps the results of matrix products and attention (3 + 1 + 1 + 4 + 1) and the block's input;
    ``full`` keeps the input alone. Attention keeps one fp32 number per head and token.
    """
    compute = COMPUTE_BYTES[config.precision]
    # Autocast leaves the stream and the norms in fp32; FSDP casts all of it.
    stream = 4 if config.strategy == "ddp" else compute
    if scheme == "full":
        return tokens * sizes.width * stream
    if scheme == "selective":
        per_unit = 10 * compute + stream
    else:
        per_unit = 14 * compute + 2 * stream + 2 * compute
        if device != "cuda":
            # The unfused norm computes in fp32: its product, and in 16 bits a copy of its input too.
            per_unit += 2 * 4 + (2 * 4 if stream == 2 else 0) - (2 * 2 if stream == 2 else 0)
    dropped = tokens * sizes.width if config.model.dropout else 0
    return tokens * sizes.width * per_unit + dropped + 4 * sizes.heads * tokens


def estimate(config: TrainerConfig, *, world_size: int, nodes: int = 1, device: str = "cuda") -> Estimate:
    """The memory of one rank in bytes, by part, at the step's worst moment."""
    sizes, shards = sizes_of(config), shards_of(config, world_size, nodes)
    compute = COMPUTE_BYTES[config.precision]
    tokens = config.rank_batch(world_size) * config.data.sequence_length
    sharded = config.strategy != "ddp"
    mine = -(-sizes.total // shards)
    scheme = config.activation_checkpointing
    saved = _block_saved(config, sizes, tokens, scheme, device)
    # Recomputing a block brings back what was not kept of it.
    rework = _block_saved(config, sizes, tokens, "none", device) - saved if scheme != "none" else 0
    head = tokens * (3 * sizes.width * compute)
    logits = tokens * sizes.vocabulary * (4 + (compute if compute != 4 else 0))
    # The forward pass's cast weights: FSDP gathers them in the compute type, autocast keeps a cache of them.
    if config.strategy == "shard_grad_op":
        gathered_all = compute * sizes.total
    elif sharded:
        gathered_all = 0
    else:
        gathered_all = compute * sizes.total if compute != 4 else 0
    one_block = compute * sizes.block if sharded else 0
    root = compute * sizes.root if sharded and config.strategy != "shard_grad_op" else 0
    reduce_block = (compute + 4) * sizes.block if sharded else 0
    unreduced = 4 * sizes.total if sharded and config.passes(world_size) > 1 else 0
    gradients = 4 * mine
    moments = {
        "loss": {
            "gradients": gradients if not sharded else 0,
            "activations": sizes.layers * saved + head + 2 * logits,
            "gathered": gathered_all + root + (one_block if sharded and gathered_all == 0 else 0),
        },
        "backward": {
            "gradients": gradients if not sharded else 0,
            "activations": sizes.layers * saved + rework + _wave(sizes, tokens, compute),
            "gathered": gathered_all + root + (3 * one_block if gathered_all == 0 else 0) + reduce_block,
        },
        "end of backward": {
            "gradients": gradients,
            "activations": saved + rework + tokens * sizes.width * compute,
            "gathered": gathered_all + root + reduce_block + (compute + 4) * (sizes.root if sharded else 0),
        },
    }
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = {"parameters": 4 * mine, "moments": 8 * mine, **moments[moment], "unreduced gradients": unreduced}
    host = 0
    if config.cpu_offload and device == "cuda":
        host = 16 * mine
        parts["parameters"] = parts["moments"] = parts["gradients"] = 0
    if config.checkpoint.mode != "sync":
        host += 12 * mine
    if device == "cuda":
        parts["allocator's slack"] = int(CUDA_SLACK * sum(parts.values()))
        parts["context and NCCL"] = CUDA_CONTEXT + (NCCL_BUFFERS if world_size > 1 else 0)
    return Estimate({name: size for name, size in parts.items() if size}, moment, host)


def _wave(sizes: Sizes, tokens: int, compute: int) -> int:
    """Gradients of activations that live together inside a block's backward pass: two of the widest."""
    return 2 * 4 * sizes.width * tokens * compute


@dataclass(frozen=True)
class Verdict:
    """Whether a run fits, and if not, the cheapest change that makes it fit."""

    fits: bool
    estimate: Estimate
    limit_bytes: int
    changes: dict[str, Any] | None = None
    after: Estimate | None = None

    def sentence(self) -> str:
        """For a person."""
        need, limit = self.estimate.peak / GIB, self.limit_bytes / GIB
        if self.fits:
            return f"It needs {need:.1f} GiB per GPU of {limit:.1f} GiB."
        text = f"It needs {need:.1f} GiB per GPU and there are {limit:.1f} GiB."
        if self.changes is None or self.after is None:
            return text + " No setting makes it fit: use more GPUs or a smaller model."
        words = ", ".join(f"{name} = {value}" for name, value in self.changes.items())
        return f"{text} The cheapest change that fits: {words} ({self.after.peak / GIB:.1f} GiB)."


def verdict(config: TrainerConfig, *, world_size: int, nodes: int = 1, memory_gib: float) -> Verdict:
    """Whether the run fits into so much memory per GPU; if not, the first change, from cheap to dear, that makes it."""
    limit = int(memory_gib * GIB)
    now = estimate(config, world_size=world_size, nodes=nodes)
    if now.peak <= limit:
        return Verdict(True, now, limit)
    for changes, changed in _remedies(config, world_size):
        after = estimate(changed, world_size=world_size, nodes=nodes)
        if after.peak <= limit:
            return Verdict(False, now, limit, changes, after)
    return Verdict(False, now, limit)


def _remedies(config: TrainerConfig, world_size: int) -> Iterator[tuple[dict[str, Any], TrainerConfig]]:
    """Settings from the one that costs least speed to the one that costs most; the later ones on top of the earlier."""
    steps: list[dict[str, Any]] = []
    if config.strategy in ("ddp", "shard_grad_op", "hybrid_shard"):
        steps.append({"strategy": "full_shard"})
    if config.precision == "fp32":
        steps.append({"precision": "bf16"})
    if config.activation_checkpointing == "none":
        steps.append({"activation_checkpointing": "selective"})
    if config.activation_checkpointing != "full":
        steps.append({"activation_checkpointing": "full"})
    batch = config.rank_batch(world_size)
    while batch > 1 and batch % 2 == 0:
        batch //= 2
        steps.append({"micro_batch_size": batch, "accumulation": 0})
    if not config.cpu_offload:
        steps.append({"cpu_offload": True})
    for change in steps:
        if not (change.get("cpu_offload") and config.strategy == "ddp"):
            yield change, dataclasses.replace(config, **change)
    together: dict[str, Any] = {}
    for change in steps:
        together = {**together, **change}
        yield together, dataclasses.replace(config, **together)


def table() -> list[dict[str, Any]]:
    """1B, 8B and 70B parameters on 8 to 64 GPUs of 80 GB: bf16, full_shard, sequences of 4,096, one per GPU."""
    rows = []
    for preset in ("1b", "8b", "70b"):
        for world_size in (8, 16, 32, 64):
            for scheme in ("none", "selective", "full"):
                config = TrainerConfig.parse(
                    {
                        "global_batch_size": world_size,
                        "precision": "bf16",
                        "activation_checkpointing": scheme,
                        "model": {"preset": preset},
                        "data": {"sequence_length": 4096, "tokenizer": "bpe", "vocabulary": 65_536},
                    },
                    world_size=world_size,
                )
                found = verdict(config, world_size=world_size, nodes=world_size // 8, memory_gib=79.1)
                rows.append(
                    {
                        "model": preset,
                        "gpus": world_size,
                        "activation_checkpointing": scheme,
                        "gib": round(found.estimate.peak / GIB, 1),
                        "fits": found.fits,
                        "cheapest_change": found.changes,
                    }
                )
    return rows


def main() -> int:
    """JSON on standard output: an estimate, or the table."""
    parser = argparse.ArgumentParser(prog="python -m trainer.memory", description="Memory of one rank, estimated.")
    parser.add_argument("--config", type=Path, help="JSON file with the trainer's configuration")
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpu", choices=sorted(GPU_MEMORY_GIB), default="h100-80")
    parser.add_argument("--table", action="store_true", help="1B, 8B and 70B on 8 to 64 GPUs of 80 GB")
    arguments = parser.parse_args()
    if arguments.table:
        print(json.dumps(table(), indent=1))
        return 0
    try:
        data = json.loads(arguments.config.read_text()) if arguments.config else {}
        config = TrainerConfig.parse(data, world_size=arguments.world_size, nodes=arguments.nodes)
    except (OSError, ValueError) as error:
        reason = str(error) if isinstance(error, ConfigError) else "the file cannot be read as JSON."
        print(f"trainer.memory: {reason}", file=sys.stderr)
        return 2
    found = verdict(
        config, world_size=arguments.world_size, nodes=arguments.nodes, memory_gib=GPU_MEMORY_GIB[arguments.gpu]
    )
    answer = {"fits": found.fits, "gpu": arguments.gpu, "sentence": found.sentence(), **found.estimate.as_json()}
    print(json.dumps(answer | {"cheapest_change": found.changes}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
