"""What is trained on what: a model, its data, and how its work is counted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from trainer.config import TrainerConfig

Batch = tuple[Tensor, ...]


class Source(Protocol):
    """Samples in one global order that no number of ranks changes."""

    def batch(self, first: int, count: int) -> Batch:
        """Samples ``first`` to ``first + count - 1`` as tensors; the model takes them as its arguments."""


@dataclass(frozen=True)
class Workload:
    """One kind of training, ready to run."""

    model: nn.Module
    train: Source
    validation: Source
    units_per_sample: int  # tokens, or predicted positions
    flops_per_unit: float
    signature: dict[str, Any]  # what a checkpoint must agree with
    facts: dict[str, Any]  # for the record of the configuration


def workload_make(config: TrainerConfig, cache: Path | None) -> Workload:
    """The workload that the configuration names. Raises ``Refused`` when its data cannot be used."""
    if config.workload == "motion":
        from trainer.motion import motion_workload

        return motion_workload(config, cache)
    return language_workload(config, cache)


def language_workload(config: TrainerConfig, cache: Path | None) -> Workload:
    """A decoder-only language model on text."""
    from trainer.data import Samples, corpus_open
    from trainer.model import LanguageModel, flops_per_token

    corpus = corpus_open(config, cache)
    model = LanguageModel(config)
    layers, heads, width = config.sizes()
    return Workload(
        model=model,
        train=Samples(corpus.train, config.data.sequence_length, config.seed),
        validation=Samples(corpus.validation, config.data.sequence_length, 0),
        units_per_sample=config.data.sequence_length,
        flops_per_unit=flops_per_token(config, sum(p.numel() for p in model.parameters())),
        signature={
            "workload": "language",
            "layers": layers,
            "heads": heads,
            "width": width,
            "vocabulary": config.vocabulary(),
            "tokenizer": config.data.tokenizer,
        },
        facts={
            "corpus": corpus.source,
            "corpus_licence": corpus.licence,
            "corpus_bytes": corpus.num_bytes,
            "corpus_tokens": len(corpus.train) + len(corpus.validation),
            "validation_tokens": len(corpus.validation),
        },
    )
