"""Transformers: a decoder-only language model, and the block that both workloads are made of."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.config import TrainerConfig

# Recomputed rarely pays off for these: they take most of a block's time and their results are small.
_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


class Attention(nn.Module):
    """Self-attention with rotary positions, causal or not."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTD: Tensor, cos_TK: Tensor | None, sin_TK: Tensor | None) -> Tensor:
        """[B, T, D] in and out."""
        batch, length, width = x_BTD.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(x_BTD).split(width, dim=2))
        if cos_TK is not None and sin_TK is not None:
            query, key = _rotate(query, cos_TK, sin_TK), _rotate(key, cos_TK, sin_TK)
        drop = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, dropout_p=drop)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def _rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    first, second = x_BHTK.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x_BHTK * cos_TK + turned * sin_TK).to(x_BHTK.dtype)


class Block(nn.Module):
    """One layer. ``apply_layer`` may be wrapped (recomputation, compilation) without changing any name."""

    def __init__(self, width: int, heads: int, *, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads, causal=causal, dropout=dropout)
        self.feed_norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = dropout
        self.wrapped: Callable[..., Tensor] | None = None

    def forward(self, x_BTD: Tensor, cos_TK: Tensor | None = None, sin_TK: Tensor | None = None) -> Tensor:
        """[B, T, D] in and out."""
        return (self.wrapped or self.apply_layer)(x_BTD, cos_TK, sin_TK)

    def apply_layer(self, x_BTD: Tensor, cos_TK: Tensor | None, sin_TK: Tensor | None) -> Tensor:
        """Attention and feed-forward, each around a residual."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TK, sin_TK)
        fed_BTD = self.down(F.gelu(self.up(self.feed_norm(x_BTD))))
        return x_BTD + (F.dropout(fed_BTD, self.dropout, self.training) if self.dropout else fed_BTD)


class LanguageModel(nn.Module):
    """Tokens in, the loss of predicting each next one out."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__()
        layers, heads, width = config.sizes()
        vocabulary = config.vocabulary()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout=config.model.dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        cos_TK, sin_TK = _rotary(config.data.sequence_length, width // heads)
        self.register_buffer("cos_TK", cos_TK, persistent=False)
        self.register_buffer("sin_TK", sin_TK, persistent=False)
        self.apply(weights_start)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean cross-entropy in nats per token."""
        length = tokens_BT.shape[1]
        x_BTD = self.embedding(tokens_BT)
        cos_TK, sin_TK = self.get_buffer("cos_TK")[:length], self.get_buffer("sin_TK")[:length]
        for block in self.blocks:
            x_BTD = block(x_BTD, cos_TK, sin_TK)
        logits_BTV = self.head(self.norm(x_BTD))
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())


def weights_start(module: nn.Module) -> None:
    """Small random weights."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _rotary(length: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, K] (Su et al. 2021, base 10,000)."""
    frequency = 1.0 / 10_000 ** (torch.arange(0, head_size, 2).float() / head_size)
    angle = torch.outer(torch.arange(length).float(), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def blocks_wrap(model: nn.Module, config: TrainerConfig) -> None:
    """Recompute activations and compile, block by block, as the configuration says.

    Both stay inside the block, so names are those of the bare model and FSDP's hooks stay outside of what is
    compiled or recomputed.
    """
    for block in model.blocks:  # type: ignore[union-attr]
        run: Callable[..., Tensor] = block.apply_layer  # type: ignore[assignment]
        if config.compile:
            run = torch.compile(run)
        if config.activation_checkpointing == "full":
            run = partial(checkpoint, run, use_reentrant=False)
        elif config.activation_checkpointing == "selective":
            contexts = partial(create_selective_checkpoint_contexts, _keep)
            run = partial(checkpoint, run, use_reentrant=False, context_fn=contexts)
        block.wrapped = run if run != block.apply_layer else None  # type: ignore[assignment]


def _keep(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def flops_per_token(config: TrainerConfig, num_parameters: int) -> float:
    """Training FLOPs of one token: 6N + 12·L·H·Q·T, N without the embedding table (PaLM, appendix B).

    No recomputation and no causal halving are counted.
    """
    layers, _, width = config.sizes()
    without_embedding = num_parameters - config.vocabulary() * width
    return 6.0 * without_embedding + 12.0 * layers * width * config.data.sequence_length
