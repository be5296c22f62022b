"""A checkpoint of several ranks becomes one safetensors file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.gang import REPOSITORY, WarmStart
from trainer.config import TrainerConfig
from trainer.model import LanguageModel

CONFIG = {
    "steps": 2,
    "global_batch_size": 4,
    "model": {"preset": "nano"},
    "data": {"sequence_length": 32},
    "eval": {"every_steps": 2, "batches": 1},
}


def read(path: Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__")["step"] == "2" and size % 8 == 0
    found = {}
    for name, row in header.items():
        begin, end = (8 + size + offset for offset in row["data_offsets"])
        assert row["dtype"] == "F32"
        found[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(row["shape"])
    return found


@pytest.fixture
def checkpoint(warm: WarmStart, tmp_path: Path) -> Path:
    gang = warm.start(tmp_path, CONFIG, 2)
    assert gang.wait().statuses == [0, 0]
    return gang.checkpoints / "step_00000002"


def export(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer.export", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def test_the_file_holds_the_whole_model_by_its_own_names(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    done = export(checkpoint, out)
    assert done.returncode == 0, done.stderr
    tensors = read(out)
    model = LanguageModel(TrainerConfig.parse(CONFIG, world_size=2))
    model.load_state_dict(tensors, strict=True)
    assert sum(t.numel() for t in tensors.values()) == sum(p.numel() for p in model.parameters())

    (checkpoint / ".metadata").write_bytes(b"spoilt")
    spoilt = export(checkpoint, tmp_path / "other.safetensors")
    assert spoilt.returncode == 2 and ".metadata has 6 bytes" in spoilt.stderr
    assert not os.path.exists(tmp_path / "other.safetensors")
