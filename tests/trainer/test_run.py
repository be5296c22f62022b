"""Whole runs on real ranks: falling loss, exact resume, graceful stop, dead ranks, bad input."""

import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.gang import WarmStart
from trainer.records import FAILED, REFUSED, SEGMENTS, STOPPED

STRATEGIES = ["full_shard", "shard_grad_op", "hybrid_shard", "ddp"]


def config(**changes: Any) -> dict[str, Any]:
    """A run that takes a second."""
    base: dict[str, Any] = {
        "steps": 8,
        "global_batch_size": 8,
        "model": {"preset": "nano"},
        "data": {"sequence_length": 32},
        "checkpoint": {"every_steps": 4, "keep_last": 9},
        "eval": {"every_steps": 0, "batches": 2},
        "log_every": 4,
    }
    return base | changes


def per_node(strategy: str) -> int:
    return 1 if strategy == "hybrid_shard" else 2


def test_the_loss_falls_and_is_measured_on_held_out_text(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path, config(steps=40, eval={"every_steps": 20, "batches": 2}), 2).wait()
    assert ended.statuses == [0, 0]
    losses, evals = ended.losses(), ended.of("eval")
    assert losses[40] < losses[1] - 1.5
    assert [e["step"] for e in evals] == [20, 40] and evals[1]["val_loss"] < evals[0]["val_loss"]
    facts = ended.of("config")[0]
    assert facts["corpus_bytes"] >= 4_000_000 and facts["corpus_licence"] == "PSF-2.0"


def test_segments_of_every_step_sum_to_its_duration(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path, config(), 2).wait()
    for rank in (0, 1):
        for step in ended.of("step", rank):
            assert set(step["seg"]) == set(SEGMENTS)
            assert sum(step["seg"].values()) == step["dur_ns"]
            assert all(value >= 0 for value in step["seg"].values())


def test_records_begin_with_the_start_and_end_with_the_exit_before_teardown(warm: WarmStart, tmp_path: Path) -> None:
    ended = warm.start(tmp_path, config(), 2).wait()
    kinds = [r["k"] for r in ended.records[1]]
    assert kinds[0] == "start" and kinds.count("exit") == 1
    after = ended.records[1][kinds.index("exit") + 1 :]
    assert [r["name"] for r in after] == ["teardown", "teardown"]
    assert ended.of("exit", 1)[0] | {"t_ns": 0} == {
        "k": "exit", "t_ns": 0, "status": "finished", "step": 8, "code": 0, "error": None,
    }  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_run_has_the_same_bits_as_one_that_was_never_stopped(
    warm: WarmStart, tmp_path: Path, strategy: str
) -> None:
    # Dropout, so that the random number generators matter too.
    wanted = config(strategy=strategy, model={"preset": "nano", "dropout": 0.1})
    whole = warm.start(tmp_path / "whole", wanted, 2, per_node=per_node(strategy)).wait()
    assert whole.statuses == [0, 0]
    folder = tmp_path / "parts" / "checkpoints"
    folder.mkdir(parents=True)
    os.rename(tmp_path / "whole/checkpoints/step_00000004", folder / "step_00000004")
    second = warm.start(tmp_path / "parts", wanted, 2, per_node=per_node(strategy)).wait()
    assert second.of("ckpt", event="restored")[0]["step"] == 4
    assert second.losses() == {step: loss for step, loss in whole.losses().items() if step > 4}
    assert second.losses(1) == {step: loss for step, loss in whole.losses(1).items() if step > 4}
    norms = {r["step"]: r["grad_norm"] for r in whole.of("step")}
    assert {r["step"]: r["grad_norm"] for r in second.of("step")} == {s: n for s, n in norms.items() if s > 4}


def test_all_strategies_train_alike_in_fp32(warm: WarmStart, tmp_path: Path) -> None:
    losses = {}
    for strategy in STRATEGIES:
        wanted = config(strategy=strategy, checkpoint={"every_steps": 0, "mode": "sync"})
        losses[strategy] = warm.start(tmp_path / strategy, wanted, 2, per_node=per_node(strategy)).wait().losses()
    for strategy in STRATEGIES[1:]:
        for step, loss in losses["full_shard"].items():
            assert abs(losses[strategy][step] - loss) < 1e-5, (strategy, step)


def test_a_run_goes_on_with_the_same_data_on_4_then_2_then_4_ranks(warm: WarmStart, tmp_path: Path) -> None:
    whole = warm.start(tmp_path / "whole", config(steps=12), 4).wait()
    folder = tmp_path / "parts"
    losses: dict[int, float] = {}
    for world_size, steps in ((4, 4), (2, 8), (4, 12)):
        # The schedule is that of twelve steps; each part is stopped at its end.
        gang = warm.start(folder, config(steps=12, checkpoint={"every_steps": 4, "keep_last": 9}), world_size)
        gang.wait_for("ckpt", event="durable", step=steps)
        if steps < 12:
            for rank in range(world_size):
                gang.kill(rank)
        losses |= {s: x for s, x in gang.wait().losses().items() if s <= steps}
        for later in (folder / "checkpoints").glob("step_*"):
            if later.is_dir() and int(later.name.split("_")[1].split(".")[0]) > steps:
                os.rename(later, folder / f"not_used_{later.name}_{world_size}")
    assert losses.keys() == whole.losses().keys()
    assert all(abs(losses[step] - loss) < 1e-4 for step, loss in whole.losses().items())


@pytest.mark.parametrize(("mode", "how"), [("process", "control"), ("thread", "sigterm"), ("sync", "control")])
def test_a_graceful_stop_loses_no_step(warm: WarmStart, tmp_path: Path, mode: str, how: str) -> None:
    wanted = config(steps=100_000, checkpoint={"every_steps": 3, "mode": mode})
    gang = warm.start(tmp_path, wanted, 2)
    gang.wait_for("step", step=7)
    if how == "control":
        gang.tell("stop", reason="preempted", grace_s=30)
    else:
        gang.kill(1, signal.SIGTERM)
    ended = gang.wait()
    assert ended.statuses == [STOPPED, STOPPED]
    last = max(ended.losses())
    assert ended.of("ckpt", event="durable")[-1]["step"] == last == ended.of("exit")[0]["step"]
    assert max(ended.losses(1)) == last
    again = warm.start(tmp_path, wanted | {"steps": last + 1}, 2).wait()
    assert list(again.losses()) == [last + 1]


def test_the_others_leave_within_two_seconds_of_a_killed_rank(warm: WarmStart, tmp_path: Path) -> None:
    gang = warm.start(tmp_path, config(steps=100_000), 4)
    gang.wait_for("step", step=5)
    killed = time.time_ns()
    gang.kill(2)
    ended = gang.wait()
    assert ended.statuses[2] == -signal.SIGKILL
    assert [ended.statuses[rank] for rank in (0, 1, 3)] == [FAILED] * 3
    for rank in (0, 1, 3):
        assert ended.of("exit", rank)[0]["t_ns"] - killed < 2e9
    deadline = time.monotonic() + 5
    while any(gang.processes(rank) for rank in range(4)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(gang.processes(rank) for rank in range(4)), "a saver has outlived its rank"


def test_a_save_is_made_when_asked_for(warm: WarmStart, tmp_path: Path) -> None:
    gang = warm.start(tmp_path, config(steps=100_000, checkpoint={"every_steps": 0}), 2)
    gang.wait_for("step", step=3)
    gang.tell("save", 1)
    first = gang.wait_for("ckpt", event="durable")
    gang.tell("save", 2)
    gang.wait_for("ckpt", event="durable", step=first["step"] + 1)
    gang.tell("stop")
    assert gang.wait().statuses == [STOPPED, STOPPED]


def test_a_run_saves_by_the_clock_and_by_young_and_daly(warm: WarmStart, tmp_path: Path) -> None:
    rules = {"every_steps": 0, "interval_s": 0.2}
    gang = warm.start(tmp_path, config(steps=100_000, checkpoint=rules), 2)
    gang.wait_for("ckpt", event="durable")
    gang.tell("stop")
    assert gang.wait().statuses == [STOPPED, STOPPED]


def test_a_dead_saver_is_replaced_by_saving_in_line(warm: WarmStart, tmp_path: Path) -> None:
    gang = warm.start(tmp_path, config(steps=100_000, checkpoint={"every_steps": 5}), 2)
    gang.wait_for("ckpt", event="durable", step=5)
    (saver,) = [pid for pid in gang.processes(1) if pid != gang.pid(1)]
    os.kill(saver, signal.SIGKILL)
    done = gang.wait_for("ckpt", event="durable", mode="sync")
    gang.tell("stop")
    ended = gang.wait()
    assert ended.statuses == [STOPPED, STOPPED]
    assert ended.of("ckpt", event="durable")[-1]["step"] == max(ended.losses()) >= done["step"]
    assert any(r["event"] == "failed" for r in ended.of("ckpt", 1))


def test_a_full_disk_fails_the_save_and_not_the_training(warm: WarmStart, tmp_path: Path) -> None:
    wanted = config(steps=100_000, model={"preset": "tiny"}, checkpoint={"every_steps": 3})
    gang = warm.start(tmp_path, wanted, 2)
    gang.wait_for("ckpt", event="durable", step=3)
    for rank in (0, 1):
        for pid in gang.processes(rank):
            # No file of more than 1 MB from here on: a share of this checkpoint is larger, records and logs are not.
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    failed = gang.wait_for("ckpt", event="failed")
    gang.wait_for("step", step=failed["step"] + 4)
    good = max(r["step"] for r in gang.records() if r["k"] == "ckpt" and r["event"] == "durable")
    gang.tell("stop")
    ended = gang.wait()
    assert failed["reason"] == "the file system takes no file of this size"
    assert ended.statuses == [FAILED, FAILED]
    assert f"The state of step {max(ended.losses())} is not saved: the file system" in ended.errors[0]
    steps = [int(p.name.removeprefix("step_")) for p in gang.checkpoints.iterdir() if p.is_dir()]
    assert max(steps) == good, "the old checkpoints stay, and nothing half-written"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"strategy": "fsdp"}, "strategy must be one of"),
        ({"global_batch_size": 7}, "Use 8"),
        ({"data": {"corpus": "/does/not/exist"}}, "does not exist on this node"),
        ({"data": {"sequence_length": 900_000, "corpus": __file__}}, "too few for sequences"),
        ({"optimizer": {"lr": 10.0, "weight_decay": 10.0, "warmup_steps": 0}, "steps": 90}, "is not finite at step"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    warm: WarmStart, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    ended = warm.start(tmp_path, config(**changes), 2).wait()
    assert ended.statuses == [REFUSED, REFUSED]
    assert sentence in ended.errors[0] and "Traceback" not in ended.errors[0]
    assert ended.of("exit")[0]["code"] == REFUSED


def test_a_checkpoint_of_another_model_is_refused(warm: WarmStart, tmp_path: Path) -> None:
    warm.start(tmp_path, config(), 2).wait()
    ended = warm.start(tmp_path, config(model={"preset": "nano", "layers": 3}), 2).wait()
    assert ended.statuses == [REFUSED, REFUSED]
    assert "is of another model: it has" in ended.errors[1]


def test_a_chosen_checkpoint_is_never_replaced_by_another(warm: WarmStart, tmp_path: Path) -> None:
    warm.start(tmp_path, config(), 2).wait()
    chosen = tmp_path / "checkpoints/step_00000008"
    (chosen / ".metadata").write_bytes(b"x")
    ended = warm.start(tmp_path, config(steps=12), 2, resume=str(chosen)).wait()
    assert ended.statuses == [REFUSED, REFUSED] and "cannot be resumed from" in ended.errors[0]
    ended = warm.start(tmp_path, config(steps=12), 2, resume="auto").wait()
    assert ended.statuses == [0, 0]
    assert ended.of("ckpt", event="restored")[0]["step"] == 4
    assert ended.of("ckpt", event="corrupt")[0]["step"] == 8


def test_an_older_attempt_cannot_write_over_a_newer_one(warm: WarmStart, tmp_path: Path) -> None:
    warm.start(tmp_path, config(), 2, environment={"TRAINYARD_FENCE": "att_2:0"}).wait()
    ended = warm.start(tmp_path, config(steps=12), 2, environment={"TRAINYARD_FENCE": "att_1:3"}).wait()
    assert ended.statuses == [REFUSED, REFUSED] and "att_2:0 has taken over" in ended.errors[0]
    facts = json.loads((tmp_path / "checkpoints/step_00000008/manifest.json").read_text())
    assert facts["fence"] == "att_2:0"
