"""The trainer's configuration: typed, checked as a whole, every fault named with its place. Free of torch."""

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Pointer = str


class ConfigError(ValueError):
    """A configuration that cannot work: all its faults, each a JSON pointer and a sentence."""

    def __init__(self, faults: list[tuple[Pointer, str]]) -> None:
        super().__init__(" ".join(sentence for _, sentence in faults))
        self.faults = faults


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. A preset gives the sizes; explicit sizes override it."""

    preset: Literal["nano", "tiny", "small", "gpt2"] = "tiny"
    layers: int = 0
    heads: int = 0
    width: int = 0


@dataclass(frozen=True)
class DataConfig:
    """What is learnt. ``python-stdlib``: the source files of the interpreter that runs (PSF licence)."""

    corpus: str = "python-stdlib"
    sequence_length: int = 128
    validation_fraction: float = 0.05


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay."""

    lr: float = 1e-3
    min_lr_ratio: float = 0.1
    warmup_steps: int = 20
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip_norm: float = 1.0


@dataclass(frozen=True)
class CheckpointConfig:
    """When and how to save. ``thread`` copies the state and writes it while training goes on."""

    every_steps: int = 50
    mode: Literal["sync", "thread"] = "thread"
    keep_last: int = 3
    keep_every: int = 0


@dataclass(frozen=True)
class EvalConfig:
    """When to measure the loss on held-out text, and on how many batches."""

    every_steps: int = 50
    batches: int = 4


PRESETS: dict[str, tuple[int, int, int]] = {
    # layers, heads, width
    "nano": (2, 2, 64),
    "tiny": (4, 4, 128),
    "small": (6, 6, 384),
    "gpt2": (12, 12, 768),
}
VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class TrainerConfig:
    """One training run. ``global_batch_size`` sequences make one optimizer step, on all ranks together."""

    steps: int = 200
    global_batch_size: int = 16
    accumulation: int = 1
    strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "ddp"] = "full_shard"
    precision: Literal["fp32", "bf16"] = "fp32"
    activation_checkpointing: Literal["none", "full"] = "none"
    seed: int = 1234
    log_every: int = 20
    comm_timeout_s: float = 60.0
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    @classmethod
    def parse(cls, data: Mapping[str, Any], *, world_size: int, nodes: int = 1) -> Self:
        """The configuration for a gang of this size; ``ConfigError`` with every fault at once."""
        faults: list[tuple[Pointer, str]] = []
        config = _build(cls, data, "", faults)
        if not faults:
            faults += _check(config, world_size, nodes)
        if faults:
            raise ConfigError(faults)
        return typing.cast(Self, config)

    def sizes(self) -> tuple[int, int, int]:
        """Layers, heads, width."""
        layers, heads, width = PRESETS[self.model.preset]
        return self.model.layers or layers, self.model.heads or heads, self.model.width or width

    def micro_batch_size(self, world_size: int) -> int:
        """Sequences of one rank in one forward pass."""
        return self.global_batch_size // (world_size * self.accumulation)


_BOUNDS: dict[str, tuple[float, float]] = {
    "/steps": (1, 10**9),
    "/global_batch_size": (1, 10**7),
    "/accumulation": (1, 10**5),
    "/seed": (0, 2**31 - 1),
    "/log_every": (1, 10**9),
    "/comm_timeout_s": (1, 86_400),
    "/model/layers": (0, 1000),
    "/model/heads": (0, 1000),
    "/model/width": (0, 100_000),
    "/data/sequence_length": (8, 1_000_000),
    "/data/validation_fraction": (0.001, 0.5),
    "/optimizer/lr": (1e-9, 10),
    "/optimizer/min_lr_ratio": (0, 1),
    "/optimizer/warmup_steps": (0, 10**9),
    "/optimizer/beta1": (0, 0.99999),
    "/optimizer/beta2": (0, 0.99999),
    "/optimizer/weight_decay": (0, 10),
    "/optimizer/clip_norm": (0, 10**6),
    "/checkpoint/every_steps": (0, 10**9),
    "/checkpoint/keep_last": (1, 10_000),
    "/checkpoint/keep_every": (0, 10**9),
    "/eval/every_steps": (0, 10**9),
    "/eval/batches": (1, 100_000),
}


def _build(cls: type[Any], data: Any, at: Pointer, faults: list[tuple[Pointer, str]]) -> Any:
    """An instance of a config dataclass out of plain data; faults are added to the list."""
    if not isinstance(data, Mapping):
        faults.append((at, f"{at[1:] or 'The configuration'} must be an object."))
        return None
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        here = f"{at}/{name}"
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(hints)}."
            faults.append((here, f"{here[1:]} is not a setting of the trainer.{hint}"))
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = _build(typing.cast(type[Any], hints[name]), value, here, faults)
        else:
            values[name] = _value(hints[name], value, here, faults)
    return cls(**values) if not faults else None


def _value(hint: Any, value: Any, at: Pointer, faults: list[tuple[Pointer, str]]) -> Any:
    name = at[1:].replace("/", ".")
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            faults.append((at, f"{name} must be one of {', '.join(map(str, allowed))}, and is {value!r:.60}."))
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, bool) is not (hint is bool) or not isinstance(value, hint):
        words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        faults.append((at, f"{name} must be {words[hint]}, and is {value!r:.60}."))
        return value
    low, high = _BOUNDS.get(at, (None, None))
    if low is not None and high is not None and not low <= value <= high:
        faults.append((at, f"{name} must be between {low:g} and {high:g}, and is {value!r:.60}."))
    return value


def _check(config: TrainerConfig, world_size: int, nodes: int) -> list[tuple[Pointer, str]]:
    """Faults between settings, and between settings and the size of the gang."""
    faults: list[tuple[Pointer, str]] = []
    per_pass = world_size * config.accumulation
    if config.global_batch_size % per_pass:
        up = -(-config.global_batch_size // per_pass) * per_pass
        faults.append(
            (
                "/global_batch_size",
                f"global_batch_size {config.global_batch_size} is not divisible by {world_size} ranks × "
                f"{config.accumulation} accumulation steps. Use {up}.",
            )
        )
    _, heads, width = config.sizes()
    if width % heads:
        faults.append(("/model/width", f"model.width {width} is not divisible by model.heads {heads}."))
    elif (width // heads) % 2:
        faults.append(("/model/heads", f"The head size {width // heads} must be even (rotary positions)."))
    if config.strategy == "hybrid_shard" and (nodes < 2 or world_size % nodes):
        faults.append(("/strategy", "hybrid_shard replicates over nodes: it needs at least two. Use full_shard."))
    if not config.data.corpus:
        faults.append(("/data/corpus", "data.corpus is empty. Use 'python-stdlib' or a path on the nodes."))
    return faults


def config_json(config: TrainerConfig) -> dict[str, Any]:
    """The configuration as plain data, every default filled in."""
    return dataclasses.asdict(config)
