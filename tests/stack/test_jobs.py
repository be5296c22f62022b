"""Jobs of several kinds on the real stack: a user's script, a resume, a cancellation, a bad checkpoint."""

from pathlib import Path

import pytest

from flows.embedded.layout import ROOT
from tests.stack.stack import Stack

pytestmark = pytest.mark.stack


def test_a_users_own_script_reports_steps_and_checkpoints(stack: Stack) -> None:
    argv = ["python", "examples/plain_script.py", "120", "0.02"]
    job_id = stack.submit(nodes=1, name="script", workload={"kind": "command", "argv": argv, "working_dir": str(ROOT)})
    job = stack.wait_end(job_id)
    assert job["state"] == "succeeded", job
    assert job["last_step"] == 120
    series = stack.call(f"/jobs/{job_id}/metrics?names=loss,slope")["series"]
    assert series["slope"][-1][3] > series["slope"][0][3]
    steps = {c["step"] for c in stack.call(f"/jobs/{job_id}/checkpoints")["items"] if c["state"] != "failed"}
    assert {50, 100} <= steps
    lines = stack.call(f"/jobs/{job_id}/logs?rank=0&stream=stdout")["lines"]
    assert lines[-1].startswith("step 120: y = ")
    stack.check_books(job_id)


def test_a_cancelled_job_saves_its_last_step_and_leaves_nothing_behind(stack: Stack) -> None:
    job_id = stack.submit(steps=5000)
    stack.wait_checkpoint(job_id)
    stack.call(f"/jobs/{job_id}/cancel", {"reason": "test"})
    job = stack.wait_end(job_id)
    assert job["state"] == "cancelled"
    newest = stack.call(f"/jobs/{job_id}/checkpoints")["items"][0]
    assert newest["step"] == job["last_step"], "no step was lost"
    stack.check_books(job_id)


def test_a_job_resumes_from_a_chosen_checkpoint_and_refuses_a_corrupt_one(stack: Stack) -> None:
    first = stack.submit(nodes=1, steps=30)
    assert stack.wait_end(first)["state"] == "succeeded"
    kept = [c for c in stack.call(f"/jobs/{first}/checkpoints")["items"] if c["state"] in ("durable", "verified")]
    chosen = next(c for c in kept if c["step"] < 30)
    again = stack.submit(nodes=1, steps=30, resume=chosen["id"])
    job = stack.wait_end(again)
    assert job["state"] == "succeeded"
    [restart] = job["attempts"][0]["restarts"]
    assert (restart["resumed_step"], restart["first_step"]) == (chosen["step"], chosen["step"] + 1)

    part = next(Path(chosen["path"]).glob("*.distcp"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    bad = stack.submit(nodes=1, steps=30, resume=chosen["id"])
    job = stack.wait_end(bad)
    assert job["state"] == "failed"
    assert len(job["attempts"]) == 1, "trying again would not mend it"
    assert "another content" in " ".join(job["end_cause"]["evidence"]), job["end_cause"]
