"""The trainer's configuration: typed, checked as a whole, every fault named with its place. Free of torch."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from trainer.reading import Fault, read_into

Strategy = Literal["full_shard", "shard_grad_op", "hybrid_shard", "ddp"]
Precision = Literal["fp32", "bf16", "fp16"]
ActivationCheckpointing = Literal["none", "full", "selective"]


class ConfigError(ValueError):
    """A configuration that cannot work: all its faults, each a JSON pointer and a sentence."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(" ".join(sentence for _, sentence in faults))
        self.faults = faults


@dataclass(frozen=True)
class ModelConfig:
    """A transformer. A preset gives the sizes; explicit sizes (not 0) override it."""

    preset: Literal["nano", "tiny", "small", "gpt2", "1b", "8b", "70b"] = "tiny"
    layers: int = 0
    heads: int = 0
    width: int = 0
    dropout: float = 0.0


@dataclass(frozen=True)
class DataConfig:
    """What is learnt.

    ``corpus`` of the language workload: ``python-stdlib`` (source files of the interpreter that runs, PSF
    licence) or a file or folder of text that all nodes see. Of the motion workload: ``highway`` (simulated
    traffic) or a folder of ``.npy`` shards. ``workers`` are loader processes per rank; 0 loads in line.
    """

    corpus: str = ""
    tokenizer: Literal["bytes", "bpe"] = "bytes"
    vocabulary: int = 1024
    sequence_length: int = 128
    validation_fraction: float = 0.05
    workers: int = 0


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay. ``clip_norm`` 0 clips nothing."""

    lr: float = 1e-3
    min_lr_ratio: float = 0.1
    warmup_steps: int = 20
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip_norm: float = 1.0


@dataclass(frozen=True)
class CheckpointConfig:
    """When and how to save.

    A save is due every ``every_steps``, every ``interval_s``, or after the Young/Daly interval from the stall
    measured and ``mtbf_s``; 0 turns a rule off. ``sync`` stands still until all is on disk; ``thread`` and
    ``process`` copy the state and write it while training goes on, the latter from a process of its own.
    """

    every_steps: int = 50
    interval_s: float = 0.0
    young_daly: bool = False
    mtbf_s: float = 86_400.0
    mode: Literal["sync", "thread", "process"] = "process"
    keep_last: int = 3
    keep_every: int = 0
    deadline_s: float = 600.0


@dataclass(frozen=True)
class EvalConfig:
    """When to measure the loss on held-out data (0: never), and on how many batches."""

    every_steps: int = 50
    batches: int = 4


PRESETS: dict[str, tuple[int, int, int]] = {
    # layers, heads, width
    "nano": (2, 2, 64),
    "tiny": (4, 4, 128),
    "small": (6, 6, 384),
    "gpt2": (12, 12, 768),
    "1b": (20, 16, 2048),
    "8b": (40, 32, 4096),
    "70b": (87, 64, 8192),
}
BYTES = 256  # the vocabulary of the byte tokenizer


@dataclass(frozen=True)
class TrainerConfig:
    """One training run.

    ``global_batch_size`` samples make one optimizer step, on all ranks together. Each rank takes
    ``micro_batch_size`` of them at a time, ``accumulation`` times; 0 derives the one from the other.
    """

    workload: Literal["language", "motion"] = "language"
    steps: int = 200
    global_batch_size: int = 16
    micro_batch_size: int = 0
    accumulation: int = 0
    strategy: Strategy = "full_shard"
    precision: Precision = "fp32"
    float8: bool = False
    activation_checkpointing: ActivationCheckpointing = "none"
    cpu_offload: bool = False
    compile: bool = False
    prefetch: int = 0
    gc_every_steps: int = 100
    nonfinite_limit: int = 3
    seed: int = 1234
    log_every: int = 20
    ledger_every: int = 20
    profile_steps: int = 3
    comm_timeout_s: float = 60.0
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    @classmethod
    def parse(cls, data: Mapping[str, Any], *, world_size: int, nodes: int = 1) -> Self:
        """The configuration for a gang of this size; ``ConfigError`` with every fault at once."""
        faults: list[Fault] = []
        config = read_into(cls, data, BOUNDS, faults)
        if not faults:
            faults += _check(config, world_size, nodes)
        if faults:
            raise ConfigError(faults)
        return typing.cast(Self, config)

    def sizes(self) -> tuple[int, int, int]:
        """Layers, heads, width."""
        layers, heads, width = PRESETS[self.model.preset]
        return self.model.layers or layers, self.model.heads or heads, self.model.width or width

    def passes(self, world_size: int) -> int:
        """Forward passes of one rank in a step."""
        if self.accumulation:
            return self.accumulation
        return self.global_batch_size // (world_size * self.micro_batch_size) if self.micro_batch_size else 1

    def rank_batch(self, world_size: int) -> int:
        """Samples of one rank in one forward pass."""
        return self.global_batch_size // (world_size * self.passes(world_size))

    def corpus(self) -> str:
        """The data set's name or path."""
        return self.data.corpus or {"language": "python-stdlib", "motion": "highway"}[self.workload]

    def vocabulary(self) -> int:
        """Different tokens."""
        return self.data.vocabulary if self.data.tokenizer == "bpe" else BYTES


BOUNDS: dict[str, tuple[float, float]] = {
    "/steps": (1, 10**9),
    "/global_batch_size": (1, 10**7),
    "/micro_batch_size": (0, 10**7),
    "/accumulation": (0, 10**5),
    "/prefetch": (0, 16),
    "/gc_every_steps": (0, 10**6),
    "/nonfinite_limit": (0, 10**6),
    "/seed": (0, 2**31 - 1),
    "/log_every": (1, 10**9),
    "/ledger_every": (0, 10**9),
    "/profile_steps": (1, 100),
    "/comm_timeout_s": (1, 86_400),
    "/model/layers": (0, 1000),
    "/model/heads": (0, 1000),
    "/model/width": (0, 100_000),
    "/model/dropout": (0, 0.9),
    "/data/vocabulary": (260, 65_536),
    "/data/sequence_length": (8, 1_000_000),
    "/data/validation_fraction": (0.001, 0.5),
    "/data/workers": (0, 64),
    "/optimizer/lr": (1e-9, 10),
    "/optimizer/min_lr_ratio": (0, 1),
    "/optimizer/warmup_steps": (0, 10**9),
    "/optimizer/beta1": (0, 0.99999),
    "/optimizer/beta2": (0, 0.99999),
    "/optimizer/weight_decay": (0, 10),
    "/optimizer/clip_norm": (0, 10**6),
    "/checkpoint/every_steps": (0, 10**9),
    "/checkpoint/interval_s": (0, 10**7),
    "/checkpoint/mtbf_s": (60, 10**9),
    "/checkpoint/keep_last": (1, 10_000),
    "/checkpoint/keep_every": (0, 10**9),
    "/checkpoint/deadline_s": (1, 86_400),
    "/eval/every_steps": (0, 10**9),
    "/eval/batches": (1, 100_000),
}


def _check(config: TrainerConfig, world_size: int, nodes: int) -> list[Fault]:
    """Faults between settings, and between settings and the size of the gang."""
    return [
        *_batch_faults(config, world_size),
        *_model_faults(config),
        *_strategy_faults(config, world_size, nodes),
    ]


def _batch_faults(config: TrainerConfig, world_size: int) -> list[Fault]:
    batch, micro, accumulation = config.global_batch_size, config.micro_batch_size, config.accumulation
    per_pass = world_size * (micro or 1) * (accumulation or 1)
    words = f"{world_size} ranks" + (f" × {micro} per pass" if micro else "")
    words += f" × {accumulation} accumulation steps" if accumulation else ""
    at = "/global_batch_size"
    if micro and accumulation and batch != per_pass:
        return [(at, f"global_batch_size {batch} is not {words} = {per_pass}. Leave one of the three out.")]
    if batch % per_pass:
        up = -(-batch // per_pass) * per_pass
        return [(at, f"global_batch_size {batch} is not divisible by {words}. Use {up}.")]
    return []


def _model_faults(config: TrainerConfig) -> list[Fault]:
    _, heads, width = config.sizes()
    if width % heads:
        return [("/model/width", f"model.width {width} is not divisible by model.heads {heads}.")]
    if (width // heads) % 2:
        return [("/model/heads", f"The head size {width // heads} must be even (rotary positions).")]
    return []


def _strategy_faults(config: TrainerConfig, world_size: int, nodes: int) -> list[Fault]:
    faults: list[Fault] = []
    if config.strategy == "hybrid_shard" and (nodes < 2 or world_size % nodes):
        faults.append(("/strategy", "hybrid_shard replicates over nodes: it needs at least two. Use full_shard."))
    if config.cpu_offload and config.strategy == "ddp":
        faults.append(("/cpu_offload", "cpu_offload needs a strategy that shards. Use full_shard."))
    if config.prefetch and config.strategy == "ddp":
        faults.append(("/prefetch", "prefetch is for strategies that shard. Leave it out with ddp."))
    if config.float8 and config.precision != "bf16":
        faults.append(("/float8", "float8 multiplies in float8 and keeps the rest in bf16. Set precision to bf16."))
    rules = config.checkpoint
    if rules.young_daly and (rules.every_steps or rules.interval_s):
        sentence = "young_daly chooses the interval. Set checkpoint.every_steps and interval_s to 0."
        faults.append(("/checkpoint/young_daly", sentence))
    return faults


def config_json(config: TrainerConfig) -> dict[str, Any]:
    """The configuration as plain data, every default filled in."""
    return dataclasses.asdict(config)
