"""A configuration is refused as a whole, each fault with its place, without importing torch."""

import subprocess
import sys
from typing import Any

import pytest

from trainer.config import ConfigError, TrainerConfig


def faults(data: Any, *, world_size: int = 4, nodes: int = 2) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        TrainerConfig.parse(data, world_size=world_size, nodes=nodes)
    return dict(refused.value.faults)


def test_every_fault_is_named_at_once() -> None:
    found = faults({"stepz": 1, "strategy": "fsdp", "model": {"layers": True}, "checkpoint": 3, "steps": -1})
    assert found.keys() == {"/stepz", "/strategy", "/model/layers", "/checkpoint", "/steps"}
    assert "Did you mean 'steps'?" in found["/stepz"]


@pytest.mark.parametrize(
    ("data", "pointer", "sentence"),
    [
        ({"global_batch_size": 10}, "/global_batch_size", "Use 12."),
        ({"global_batch_size": 16, "micro_batch_size": 3}, "/global_batch_size", "Use 24."),
        ({"global_batch_size": 16, "micro_batch_size": 2, "accumulation": 3}, "/global_batch_size", "Leave one"),
        ({"model": {"heads": 5}}, "/model/width", "not divisible by model.heads 5"),
        ({"model": {"width": 12, "heads": 4}}, "/model/heads", "must be even"),
        ({"cpu_offload": True, "strategy": "ddp"}, "/cpu_offload", "Use full_shard"),
        ({"float8": True}, "/float8", "Set precision to bf16"),
        ({"checkpoint": {"young_daly": True}}, "/checkpoint/young_daly", "every_steps"),
        ({"optimizer": {"lr": 10**400}}, "/optimizer/lr", "must be between"),
        ({"optimizer": {"lr": "fast"}}, "/optimizer/lr", "must be a number"),
        ({"steps": 10**5000}, "/steps", "a huge number"),
        ({"steps": True}, "/steps", "must be a whole number"),
        ({"precision": ["bf16"]}, "/precision", "must be one of"),
        ({"data": {"corpus": "a\0b"}}, "/data/corpus", "without NUL"),
        ([], "", "must be an object"),
    ],
)
def test_a_fault_says_what_to_use_instead(data: Any, pointer: str, sentence: str) -> None:
    assert sentence in faults(data)[pointer]


def test_hybrid_needs_two_nodes() -> None:
    assert "at least two" in faults({"strategy": "hybrid_shard"}, nodes=1)["/strategy"]


@pytest.mark.parametrize(
    ("data", "passes", "batch"),
    [
        ({}, 1, 4),
        ({"accumulation": 2}, 2, 2),
        ({"micro_batch_size": 1}, 4, 1),
        ({"micro_batch_size": 2, "accumulation": 2}, 2, 2),
    ],
)
def test_batch_and_accumulation_follow_from_each_other(data: dict[str, int], passes: int, batch: int) -> None:
    config = TrainerConfig.parse({"global_batch_size": 16, **data}, world_size=4)
    assert (config.passes(4), config.rank_batch(4)) == (passes, batch)


def test_what_the_portal_imports_is_free_of_torch() -> None:
    code = "import sys, trainer.config, trainer.records, trainer.memory, trainer.sdk; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
