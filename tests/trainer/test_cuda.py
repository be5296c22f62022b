"""The same trainer on a GPU: NCCL, bf16, compilation, float8, memory, MFU. Skipped where there is none."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.gang import WarmStart


def _gpus() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(_gpus() == 0, reason="needs a CUDA GPU; torch sees none on this machine"),
]
RANKS = min(2, max(1, _gpus()))
BASE: dict[str, Any] = {
    "steps": 12,
    "global_batch_size": 8,
    "model": {"preset": "small"},
    "data": {"sequence_length": 256},
    "precision": "bf16",
    "checkpoint": {"every_steps": 6},
    "eval": {"every_steps": 12},
    "log_every": 6,
}


def test_bf16_over_nccl_trains_saves_and_resumes(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path, BASE, RANKS).wait()
    assert ended.statuses == [0] * RANKS, ended.errors[0]
    assert "nccl" in ended.of("group")[0]["backend"]
    assert ended.of("config")[0]["device"].startswith("cuda")
    assert ended.losses()[12] < ended.losses()[1]
    again = warm.start(tmp_path, BASE | {"steps": 14}, RANKS).wait()
    assert again.of("ckpt", event="restored")[0]["step"] == 12


@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op", "ddp"])
def test_strategies_agree_in_fp32(warm: WarmStart, tmp_path: Path, strategy: str) -> None:
    wanted = BASE | {"precision": "fp32", "strategy": strategy, "steps": 4, "checkpoint": {"every_steps": 0}}
    plain = warm.start(tmp_path / "plain", wanted | {"strategy": "full_shard"}, RANKS).wait().losses()
    found = warm.start(tmp_path / "other", wanted, RANKS).wait().losses()
    assert all(abs(found[step] - loss) < 1e-3 for step, loss in plain.items())


def test_blocks_compile(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path, BASE | {"compile": True}, RANKS).wait()
    assert ended.statuses == [0] * RANKS, ended.errors[0]
    assert {r["name"] for r in ended.of("phase")} >= {"compile"}


def test_float8_trains_or_is_refused_by_the_probe(warm: WarmStart, tmp_path: Path) -> None:
    import torch

    from trainer.float8 import unsupported_reason

    ended = warm.start(tmp_path, BASE | {"float8": True}, RANKS).wait()
    if unsupported_reason(torch.device("cuda")) is None:
        assert ended.statuses == [0] * RANKS, ended.errors[0]
        assert ended.losses()[12] < ended.losses()[1]
    else:
        assert "cannot multiply in float8" in ended.errors[0]


def test_memory_and_mfu_are_measured(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path, BASE, RANKS).wait()
    memory = ended.of("mem")[-1]
    assert 0 < memory["allocated_peak"] <= memory["total"]
    throughput = ended.of("throughput")[-1]
    assert throughput["fault"] is None and 0 < throughput["mfu"] < 1


def test_the_estimate_is_close_to_what_the_allocator_saw(warm: WarmStart, tmp_path: Path) -> None:
    from trainer.config import TrainerConfig
    from trainer.memory import estimate

    ended = warm.start(tmp_path, BASE | {"checkpoint": {"every_steps": 0, "mode": "sync"}}, RANKS).wait()
    measured = ended.of("mem")[-1]["allocated_peak"]
    parts = estimate(TrainerConfig.parse(BASE, world_size=RANKS), world_size=RANKS).parts
    tensors = sum(size for name, size in parts.items() if "NCCL" not in name and "slack" not in name)
    assert abs(tensors - measured) < 0.15 * measured, json.dumps(parts)


def test_out_of_memory_is_explained_in_numbers(warm: WarmStart, tmp_path: Path) -> None:
    huge = BASE | {"model": {"preset": "70b"}, "strategy": "ddp", "checkpoint": {"every_steps": 0}}
    ended = warm.start(tmp_path, huge, 1).wait()
    assert "out of memory" in ended.errors[0]
    found = ended.of("oom")[0]
    assert found["largest"] and "GiB" in found["advice"]
