"""The real trainer under the agent: warm start, a killed rank, restart from the newest checkpoint."""

import os
import signal
import time

from tests.flows.conftest import MakeGang

CONFIG = {
    "steps": 60,
    "global_batch_size": 4,
    "model": {"preset": "nano"},
    "data": {"sequence_length": 32},
    "checkpoint": {"every_steps": 5},
    "eval": {"every_steps": 0},
}


def test_a_killed_trainer_rank_costs_seconds_and_no_step_is_lost_for_good(make_gang: MakeGang) -> None:
    workload = {"kind": "trainer", "config": {**CONFIG, "steps": 4000}}
    gang = make_gang(nodes=1, ranks_per_node=2, workload=workload)
    gang.launch()
    portal = gang.portal

    def durable() -> list[int]:
        return [r["step"] for r in portal.records if r["k"] == "ckpt" and r["event"] == "durable"]

    portal.wait(lambda: len(durable()) >= 2, timeout_s=60)
    killed_ns = time.time_ns()
    os.kill(portal.rank(1)["pid"], signal.SIGKILL)
    portal.wait(lambda: portal.rank(1)["state"] == "exited")
    assert (portal.seen_at_ns[(0, 1)] - killed_ns) / 1e9 < 2.0

    def first_step_ns() -> int | None:
        for row in portal.windows_of(0, 1):
            if row["num_steps"]:
                return int(row["to_ns"])
        return None

    portal.wait(first_step_ns, timeout_s=30)
    restored = [r for r in portal.records if r["k"] == "ckpt" and r["event"] == "restored" and r["restart"] == 1]
    assert restored
    first = next(p for p in portal.points["loss"] if p[1] > restored[0]["t_ns"])
    print(f"kill to next step done: {(first[1] - killed_ns) / 1e9:.2f} s")
    assert restored[0]["step"] in durable()
    assert first[0] == restored[0]["step"] + 1
    with portal.lock:
        portal.phase, portal.stop = "stop", {"grace_s": 20.0, "reason": "enough"}
    portal.wait(lambda: [portal.rank(r, 1).get("exit_code") for r in (0, 1)] == [90, 90], timeout_s=20)
