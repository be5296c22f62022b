"""The callbacks of the examples, each in a real run of its library: steps, a graceful stop, and going on after it."""

import json
from pathlib import Path

import pytest

from tests.trainer.test_sdk import REPOSITORY, records, start, wait_for_step
from trainer.records import STOPPED

SCRIPTS = {name: str(REPOSITORY / f"tests/trainer/{name}_script.py") for name in ("huggingface", "lightning")}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("library", SCRIPTS)
def test_a_library_reports_steps_stops_when_asked_and_goes_on_where_it_was(tmp_path: Path, library: str) -> None:
    script = start(tmp_path, SCRIPTS[library], "100000", **OFFLINE)
    wait_for_step(tmp_path, 10)
    with (tmp_path / "control.jsonl").open("a") as file:
        file.write(json.dumps({"id": 1, "kind": "stop", "reason": "preempted"}) + "\n")
    _, err = script.communicate(timeout=60)
    assert script.returncode == STOPPED, err
    steps = [r["step"] for r in records(tmp_path) if r["k"] == "step"]
    assert steps == list(range(1, steps[-1] + 1))
    assert records(tmp_path)[-1]["status"] == "stopped"
    losses = [r["loss"] for r in records(tmp_path) if r["k"] == "step" and "loss" in r]
    assert losses and losses[-1] < losses[0]
    (tmp_path / "control.jsonl").unlink()
    again = start(tmp_path, SCRIPTS[library], str(steps[-1] + 5), **OFFLINE)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert [r["step"] for r in records(tmp_path) if r["k"] == "step"] == list(range(1, steps[-1] + 6))
