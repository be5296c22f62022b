"""``make demo``: the main job on this machine, with a killed rank, and what the GPUs were used for."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flows.embedded import children as stack
from flows.embedded.layout import ROOT, CannotStart, layout_open
from flows.embedded.memory import stack_memory
from flows.embedded.report import DemoFacts, faults_of, report_text
from flows.embedded.supervisor import Supervisor, stop_on_signals

STEPS = 160
KILL_AFTER_STEP = 60
JOB_TIMEOUT_S = 200.0
TERMINAL = ("succeeded", "failed", "cancelled")


class DemoFailed(Exception):
    """Something that was promised did not happen."""


def job_spec() -> dict[str, Any]:
    """Two nodes with two ranks each, FSDP2 on the standard library's sources."""
    return {
        "name": "demo-language-model",
        "team": "language",
        "gpu_type": "cpu-sim",
        "nodes": 2,
        "gpus_per_node": 2,
        "time_limit_s": 600,
        "labels": {"purpose": "demo"},
        "workload": {
            "kind": "trainer",
            "config": {
                "steps": STEPS,
                "strategy": "full_shard",
                "global_batch_size": 16,
                "model": {"preset": "nano"},
                "data": {"corpus": "python-stdlib", "sequence_length": 64},
                "optimizer": {"lr": 0.003, "warmup_steps": 20},
                "checkpoint": {"every_steps": 25},
                "eval": {"every_steps": 40, "batches": 2},
            },
        },
    }


def second_spec() -> dict[str, Any]:
    """A short job of the other team, so that the ledger has two."""
    spec = job_spec() | {"name": "demo-small", "team": "vision", "nodes": 1, "gpus_per_node": 1}
    config = spec["workload"]["config"] | {"steps": 40, "checkpoint": {"every_steps": 20}}
    return spec | {"workload": {"kind": "trainer", "config": config}}


@dataclass
class Portal:
    """REST as a pipeline would use it."""

    url: str
    token: str = ""

    def call(self, path: str, body: Any = None) -> Any:
        """The answer; a refusal ends the demo with its sentence."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60, trust_env=False) as client:
            answer = client.get(path) if body is None else client.post(path, json=body)
        data = answer.json()
        if answer.status_code >= 400:
            raise DemoFailed(str(data.get("detail", answer.status_code)))
        return data


def run_demo(data: Path, *, port: int | None, leave: bool, json_path: Path | None) -> int:
    """The exit status: 0 when everything that was promised happened."""
    from flows.embedded.__main__ import say

    begin = time.monotonic()
    _forget(data)
    layout = layout_open(data, port)
    inventory = layout.data / "inventory.json"
    nodes = [{"name": f"node-{i}", "gpu_type": "cpu-sim", "gpus": 2} for i in (1, 2)]
    inventory.write_text(json.dumps({"nodes": nodes}))
    supervisor = Supervisor(layout, say=say, inventory=inventory)
    stop_on_signals(supervisor)
    say("starting the platform: database, broker, Prefect, portal, scheduler")
    try:
        supervisor.start()
        ready_s = time.monotonic() - begin
        say(f"ready after {ready_s:.0f} s; two virtual nodes with two GPUs each")
        idle_mb = sum(row["rss_mb"] for row in stack_memory(layout.data))
        story = _Story(supervisor, layout.portal_url, say)
        thread = threading.Thread(target=story.run, name="demo", daemon=True)
        thread.start()
        while thread.is_alive() and not supervisor.stopping.wait(0.1):
            supervisor.turn()
        if supervisor.stopping.is_set():
            return 130
        if story.facts is None:
            raise CannotStart(f"the demo failed: {story.failure}")
        facts = story.facts
        facts.idle_mb, facts.ready_s, facts.total_s = idle_mb, ready_s, time.monotonic() - begin
        print(report_text(facts), flush=True)
        if json_path is not None:
            json_path.write_text(json.dumps(facts.as_json(), indent=1) + "\n")
        faults = faults_of(facts)
        for fault in faults:
            print(f"NOT AS PROMISED: {fault}", file=sys.stderr)
        if not leave and not faults:
            print(f"\nThe portal stays up at {layout.portal_url}  (log in as admin, password: {story.password})")
            print("Ctrl-C stops everything.", flush=True)
            supervisor.watch()
        return 1 if faults else 0
    finally:
        supervisor.stop()


def _forget(data: Path) -> None:
    """A fresh demo each time: what an earlier one left is cleared away, its processes first."""
    import shutil

    from flows.embedded.cleanup import end_all, leftovers

    data = data.resolve()
    if (data / "ports.json").exists():
        end_all(leftovers(data, data / "run" / "processes.json"), grace_s=2.0)
        shutil.rmtree(data, ignore_errors=True)


class _Story:
    """What happens in the demo, told through the command line and REST."""

    def __init__(self, supervisor: Supervisor, url: str, say: Callable[[str], None]) -> None:
        self.supervisor, self.say, self.portal = supervisor, say, Portal(url)
        self.password = ""
        self.facts: DemoFacts | None = None
        self.failure = "it was stopped"
        self._last_twenty, self._last_state = -1, ""

    def run(self) -> None:
        """Runs in a thread of its own, since the supervisor's thread must look after its children."""
        try:
            self.facts = self._tell()
        except (DemoFailed, httpx.HTTPError) as error:
            self.failure = str(error) or type(error).__name__

    def _tell(self) -> DemoFacts:
        self._people()
        first = self.portal.call("/jobs", job_spec())["id"]
        self.say(f"submitted {first}: 2 nodes × 2 ranks, FSDP2, {STEPS} steps")
        killed = self._kill_a_rank(first)
        self._wait_end(first)
        second = self.portal.call("/jobs", second_spec())["id"]
        self.say(f"submitted {second} for the second team")
        self._wait_end(second)
        usage = self._closed_usage()
        job = self.portal.call(f"/jobs/{first}")
        return DemoFacts(
            job=job,
            timeline=self.portal.call(f"/jobs/{first}/timeline"),
            series=self.portal.call(f"/jobs/{first}/metrics?names=loss,val_loss&points=20000")["series"],
            checkpoints=self.portal.call(f"/jobs/{first}/checkpoints")["items"],
            usage=usage,
            killed=killed,
            second=self.portal.call(f"/jobs/{second}"),
        )

    def _people(self) -> None:
        words = self._manage("admin_create", "admin").split()
        self.password = words[-1]
        for team in ("language", "vision"):
            self._manage("team_create", team, "--quota", "cpu-sim=2", "--cohort", "research", "--member", "admin:owner")
        self.portal.token = self._manage("token_create", "admin", "--name", "demo").strip()
        self.say("made an administrator and two teams; each owns 2 GPUs and may borrow the other's")

    def _manage(self, *arguments: str) -> str:
        environment = stack.portal_environment(self.supervisor.layout)
        done = subprocess.run(
            stack.manage(*arguments), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise DemoFailed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else arguments[0])
        return done.stdout

    def _kill_a_rank(self, job_id: str) -> dict[str, Any]:
        """SIGKILL for one rank, once a checkpoint is durable and some steps have followed it."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while True:
            job = self._progress(job_id)
            saved = [c for c in self.portal.call(f"/jobs/{job_id}/checkpoints")["items"] if c["state"] == "durable"]
            if saved and job["last_step"] >= KILL_AFTER_STEP:
                break
            if job["state"] in TERMINAL:
                raise DemoFailed(f"the job ended early: {job['state']} ({job['end_cause']})")
            self._pause(deadline)
        attempt = job["attempts"][-1]["id"]
        victim = self.portal.call(f"/attempts/{attempt}/ranks")["items"][-1]
        at = time.time()
        os.kill(victim["pid"], signal.SIGKILL)
        self.say(f"killed rank {victim['rank']} on {victim['node']} (pid {victim['pid']}) with SIGKILL")
        return {"rank": victim["rank"], "node": victim["node"], "pid": victim["pid"], "at": at}

    def _wait_end(self, job_id: str) -> None:
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while self._progress(job_id)["state"] not in TERMINAL:
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise DemoFailed(f"the job did not get there within {JOB_TIMEOUT_S:.0f} s")
        if self.supervisor.stopping.wait(0.5):
            raise DemoFailed("it was stopped")

    def _progress(self, job_id: str) -> dict[str, Any]:
        """The job; a line when its state or its progress has changed."""
        job: dict[str, Any] = self.portal.call(f"/jobs/{job_id}")
        loss = self.portal.call(f"/jobs/{job_id}/metrics?names=loss,tokens_per_s&points=20000")["series"]
        if loss.get("loss"):
            step, _, _, value, _ = loss["loss"][-1]
            rate = loss.get("tokens_per_s", [[0, 0, 0, 0, 0]])[-1][3]
            if step // 20 != self._last_twenty:
                self._last_twenty = step // 20
                self.say(f"{job['name']}: {job['state']}  step {step}  loss {value:.3f}  {rate:,.0f} tokens/s")
        if job["state"] != self._last_state:
            self._last_state = job["state"]
            self.say(f"{job['name']}: {job['state']}")
        return job

    def _closed_usage(self) -> dict[str, Any]:
        """The ledger per team, once it covers all that was held."""
        deadline = time.monotonic() + 30
        while True:
            usage: dict[str, Any] = self.portal.call("/usage?group_by=team")
            if usage["items"] and usage["booked_gpu_s"] == usage["held_gpu_s"]:
                return usage
            self._pause(deadline)
