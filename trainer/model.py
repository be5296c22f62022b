"""A decoder-only transformer: RMSNorm, rotary positions, causal attention, GELU feed-forward."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import VOCABULARY, TrainerConfig


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
        """[B, T, D] in and out."""
        batch, length, width = x_BTD.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(x_BTD).split(width, dim=2))
        query, key = _rotate(query, cos_TK, sin_TK), _rotate(key, cos_TK, sin_TK)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def _rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    first, second = x_BHTK.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x_BHTK * cos_TK + turned * sin_TK).to(x_BHTK.dtype)


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed_norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
        """[B, T, D] in and out."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TK, sin_TK)
        return x_BTD + self.down(F.gelu(self.up(self.feed_norm(x_BTD))))


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__()
        layers, heads, width = config.sizes()
        self.width, self.heads = width, heads
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        cos_TK, sin_TK = _rotary(config.data.sequence_length, width // heads)
        self.register_buffer("cos_TK", cos_TK, persistent=False)
        self.register_buffer("sin_TK", sin_TK, persistent=False)
        self.apply(self._init)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean cross-entropy in nats per byte."""
        length = tokens_BT.shape[1]
        x_BTD = self.embedding(tokens_BT)
        cos_TK, sin_TK = self.cos_TK[:length], self.sin_TK[:length]
        for block in self.blocks:
            x_BTD = block(x_BTD, cos_TK, sin_TK)
        logits_BTV = self.head(self.norm(x_BTD))
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())


def _rotary(length: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, K] (Su et al. 2021, base 10,000)."""
    frequency = 1.0 / 10_000 ** (torch.arange(0, head_size, 2).float() / head_size)
    angle = torch.outer(torch.arange(length).float(), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def flops_per_token(config: TrainerConfig, num_parameters: int) -> float:
    """Training FLOPs of one token: 6N + 12·L·H·Q·T, N without the embedding table (PaLM, appendix B)."""
    layers, _, width = config.sizes()
    without_embedding = num_parameters - VOCABULARY * width
    return 6.0 * without_embedding + 12.0 * layers * width * config.data.sequence_length
