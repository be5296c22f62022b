"""A script with five added lines: reports, resumes, stops, and says how it ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.records import REFUSED, STOPPED, records_in

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "examples/plain_script.py"


def start(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    values = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPOSITORY),
        "TRAINYARD_RECORDS": str(folder / "records.jsonl"),
        "TRAINYARD_CONTROL": str(folder / "control.jsonl"),
        "TRAINYARD_CHECKPOINT_DIR": str(folder / "checkpoints"),
        **environment,
    }
    command = [sys.executable, *(arguments or (str(SCRIPT),))]
    return subprocess.Popen(command, cwd=folder, env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "records.jsonl"
    return list(records_in(path)) if path.exists() else []


def wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 30
    while not any(r["k"] == "step" and r["step"] >= step for r in records(folder)):
        assert time.monotonic() < deadline, "the script makes no steps"
        time.sleep(0.02)


def test_a_script_reports_steps_checkpoints_and_its_own_numbers(tmp_path: Path) -> None:
    out, err = start(tmp_path, str(SCRIPT), "120").communicate(timeout=60)
    assert "step 120: y = 2.0" in out, err
    found = records(tmp_path)
    assert found[0]["k"] == "start"
    steps = [r for r in found if r["k"] == "step"]
    assert [r["step"] for r in steps] == list(range(1, 121)) and steps[-1]["loss"] < steps[0]["loss"]
    assert all(sum(r["seg"].values()) == r["dur_ns"] for r in steps)
    assert [r["step"] for r in found if r["k"] == "ckpt" and r["event"] == "durable"] == [50, 100]
    assert [r["values"]["slope"] for r in found if r["k"] == "metric"][-1] == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize("how", ["sigterm", "control"])
def test_a_stop_saves_leaves_with_its_own_status_and_goes_on_where_it_was(tmp_path: Path, how: str) -> None:
    script = start(tmp_path, str(SCRIPT), "100000", "0.005")
    wait_for_step(tmp_path, 10)
    if how == "sigterm":
        script.send_signal(signal.SIGTERM)
    else:
        with (tmp_path / "control.jsonl").open("a") as file:
            file.write(json.dumps({"id": 1, "kind": "stop", "reason": "preempted"}) + "\n")
    assert script.wait(30) == STOPPED
    found = records(tmp_path)
    last = max(r["step"] for r in found if r["k"] == "step")
    assert found[-1]["k"] == "exit" and (found[-1]["status"], found[-1]["step"]) == ("stopped", last)
    assert [r["step"] for r in found if r["k"] == "ckpt" and r["event"] == "durable"][-1] == last
    out, _ = start(tmp_path, str(SCRIPT), str(last + 1)).communicate(timeout=60)
    assert [r["step"] for r in records(tmp_path) if r["k"] == "step"][-2:] == [last, last + 1]


def test_a_corrupt_checkpoint_is_passed_over_and_a_chosen_one_is_refused(tmp_path: Path) -> None:
    start(tmp_path, str(SCRIPT), "120").communicate(timeout=60)
    newest = tmp_path / "checkpoints/step_00000100"
    (newest / "weights.json").write_text("[0, 0]")
    script = start(tmp_path, str(SCRIPT), "120", TRAINYARD_RESUME=str(newest))
    _, err = script.communicate(timeout=60)
    assert script.returncode == REFUSED and "cannot be resumed from" in err and "Traceback" not in err
    start(tmp_path, str(SCRIPT), "120").communicate(timeout=60)
    found = records(tmp_path)
    assert [r["step"] for r in found if r["k"] == "ckpt" and r["event"] == "restored"] == [50]


def test_an_exception_is_in_the_exit_record(tmp_path: Path) -> None:
    code = "import trainer.sdk\nrun = trainer.sdk.init()\nrun.report(1, loss=2)\nraise ValueError('bad batch')"
    script = start(tmp_path, "-c", code)
    script.communicate(timeout=60)
    assert script.returncode == 1
    last = records(tmp_path)[-1]
    assert (last["k"], last["status"], last["step"]) == ("exit", "error", 1)
    assert (last["error"]["type"], last["error"]["message"]) == ("ValueError", "bad batch")


def test_a_save_that_fails_is_told_and_the_script_goes_on(tmp_path: Path) -> None:
    code = """
import trainer.sdk
def save(folder):
    (folder / "half").write_text("x")
    raise OSError(28, "No space left on device")
run = trainer.sdk.init()
print(run.checkpoint(3, save), list(run.folder.iterdir()))
"""
    out, err = start(tmp_path, "-c", code).communicate(timeout=60)
    assert out == "False []\n" and "No space left on device" in err
    assert [r["event"] for r in records(tmp_path) if r["k"] == "ckpt"] == ["begin", "failed"]


def test_every_rank_writes_its_part_of_one_checkpoint(tmp_path: Path) -> None:
    code = """
import trainer.sdk
run = trainer.sdk.init()
run.checkpoint(5, lambda folder: (folder / f"part_{run.rank}").write_text(str(run.rank)), every_rank=True)
"""
    ranks = [start(tmp_path, "-c", code, RANK=str(r), WORLD_SIZE="3") for r in (2, 1, 0)]
    for rank in ranks:
        rank.communicate(timeout=60)
    found: list[str] = []
    script = start(
        tmp_path,
        "-c",
        "import trainer.sdk\nprint(trainer.sdk.init().resume(lambda f: print(sorted(p.name for p in f.glob('part*')))))",
    )
    out, _ = script.communicate(timeout=60)
    found = out.splitlines()
    assert found == ["['part_0', 'part_1', 'part_2']", "5"]


def test_a_script_runs_without_the_platform(tmp_path: Path) -> None:
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, str(SCRIPT), "60"], cwd=tmp_path, env=plain, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "checkpoints/step_00000050/COMMITTED").exists()


def test_what_is_no_number_is_refused_by_name(tmp_path: Path) -> None:
    code = "import trainer.sdk\ntrainer.sdk.init().report(1, loss=None)"
    _, err = start(tmp_path, "-c", code).communicate(timeout=60)
    assert "report() takes numbers, and loss is NoneType." in err
