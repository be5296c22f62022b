"""Every setting that changes how a step is computed: it trains, and where it must, it trains alike."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.gang import WarmStart

BASE: dict[str, Any] = {
    "steps": 6,
    "global_batch_size": 8,
    "model": {"preset": "nano"},
    "data": {"sequence_length": 32},
    "checkpoint": {"every_steps": 0, "mode": "sync"},
    "eval": {"every_steps": 0},
    "log_every": 3,
    "optimizer": {"lr": 0.003, "warmup_steps": 1},
}


@pytest.fixture(scope="module")
def plain(warm: WarmStart, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of the base configuration."""
    return warm.start(tmp_path_factory.mktemp("plain") / "run", BASE, 2).wait().losses()


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        pytest.param({"activation_checkpointing": "full"}, 1e-6, id="full-recomputation"),
        pytest.param({"activation_checkpointing": "selective"}, 1e-6, id="selective-recomputation"),
        pytest.param({"accumulation": 2}, 1e-5, id="accumulation"),
        pytest.param({"accumulation": 4, "strategy": "ddp"}, 1e-5, id="accumulation-ddp"),
        pytest.param({"cpu_offload": True}, 1e-6, id="cpu-offload"),
        pytest.param({"prefetch": 1}, 1e-6, id="prefetch"),
        pytest.param({"data": {"sequence_length": 32, "workers": 1}}, 1e-6, id="loader-worker"),
        pytest.param({"precision": "bf16"}, 0.05, id="bf16"),
        pytest.param({"precision": "bf16", "strategy": "ddp"}, 0.05, id="bf16-ddp"),
    ],
)
def test_a_setting_changes_speed_and_memory_and_not_the_training(
    warm: WarmStart, tmp_path: Path, plain: dict[int, float], changes: dict[str, Any], tolerance: float
) -> None:
    ended = warm.start(tmp_path / "run", BASE | changes, 2).wait()
    assert ended.statuses == [0, 0], ended.errors[0]
    losses = ended.losses()
    assert losses.keys() == plain.keys()
    assert all(abs(losses[step] - loss) < tolerance for step, loss in plain.items())


def test_fp16_looks_for_its_scale_and_then_learns(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path / "run", BASE | {"precision": "fp16", "steps": 16}, 2).wait()
    losses = ended.losses()
    assert ended.statuses == [0, 0], ended.errors[0]
    # A step whose gradients overflow is left out: the loss of the next one shows an unchanged model.
    assert losses[16] < losses[1] - 0.5


def test_a_profile_is_summarised_where_it_was_taken(warm: WarmStart, tmp_path: Path) -> None:
    gang = warm.start(tmp_path / "run", BASE | {"steps": 100_000, "profile_steps": 2}, 2)
    gang.wait_for("step", step=2)
    gang.tell("profile")
    found = gang.wait_for("profile", rank=1)
    gang.tell("stop", 2)
    gang.wait()
    assert found["steps"] == 2 and found["communication_ms"] > 0
    assert 0 <= found["overlap_ratio"] <= 1
    assert any(row["name"] == "aten::mm" for row in found["top"])


def test_the_ledger_names_groups_and_collectives_and_finds_who_waited(warm: WarmStart, tmp_path: Path) -> None:
    wanted = BASE | {"strategy": "hybrid_shard", "ledger_every": 3}
    ended = warm.start(tmp_path / "run", wanted, 4, per_node=2).wait()
    groups = {r["name"]: r["ranks"] for r in ended.of("group", 3)}
    assert groups == {"world": [0, 1, 2, 3], "shard": [2, 3], "replicate": [1, 3]}
    rows = ended.of("collectives", 3)[-1]["rows"]
    assert {(row[0], row[1]) for row in rows} == {
        ("shard", "all_gather"),
        ("shard", "reduce_scatter"),
        ("replicate", "all_reduce"),
        ("world", "all_reduce"),
    }
    assert all(row[2] > 0 and row[4] >= row[5] >= 0 for row in rows)


def test_a_slow_rank_makes_the_others_wait_and_not_itself(warm: WarmStart, tmp_path: Path) -> None:
    gang = warm.start(tmp_path / "run", BASE | {"steps": 100_000}, 2)
    gang.wait_for("step", step=3)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        gang.kill(1, signal.SIGSTOP)
        time.sleep(0.05)
        gang.kill(1, signal.SIGCONT)
        time.sleep(0.02)
    gang.tell("stop")
    ended = gang.wait()
    waits = [sum(step["seg"]["comm_wait"] for step in ended.of("step", rank)[3:]) for rank in (0, 1)]
    assert waits[0] > 3 * waits[1]


def test_a_stuck_rank_says_where_it_stands(warm: WarmStart, tmp_path: Path) -> None:
    gang = warm.start(tmp_path / "run", BASE | {"steps": 100_000}, 2)
    gang.wait_for("step", step=3)
    gang.kill(1, signal.SIGSTOP)
    time.sleep(0.5)
    gang.kill(0, signal.SIGUSR1)
    stacks, flight = (gang.run / f"rank_0.jsonl.{end}" for end in ("stacks", "flight.json"))
    deadline = time.monotonic() + 20
    while not flight.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    gang.kill(1, signal.SIGCONT)
    gang.tell("stop")
    gang.wait()
    assert "in all_gather_single" in stacks.read_text() or "all_reduce" in stacks.read_text()
    assert json.loads(flight.read_text())["entries"]


def test_throughput_says_how_it_knows_the_peak(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path / "run", BASE, 2).wait()
    found = ended.of("throughput")[-1]
    assert found["peak_source"] == "measured matrix product" and found["tokens_per_s"] > 0
    assert found["fault"] or 0 < found["mfu"] == found["hfu"] <= 1
    assert ended.of("mem")[-1]["rss_peak"] >= ended.of("mem")[-1]["rss"] > 0
    assert ended.of("cost")[0]["spent_ns"] > 0


def test_verify_resume_compares_every_bit(tmp_path: Path) -> None:
    import subprocess
    import sys

    from tests.trainer.gang import REPOSITORY, free_port

    path = tmp_path / "config.json"
    path.write_text(json.dumps(BASE | {"model": {"preset": "nano", "dropout": 0.1}}))
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "TRAINYARD_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "TRAINYARD_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "--config", str(path), "--verify-resume", "6"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "steps 4 to 6 again from the checkpoint: the same bits" in done.stdout
