"""``make demo``: the main job on this machine, with a killed rank, and what the GPUs were used for."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.ask import ask
from flows.embedded.children import manage, portal_environment, stack_units
from flows.embedded.layout import ROOT, CannotStart, Layout
from flows.embedded.memory import stack_memory
from flows.embedded.report import DemoFacts, faults_of, report_text
from flows.embedded.supervisor import Interrupted, Say, Supervisor
from flows.embedded.up import stack_on

STEPS = 160
KILL_AFTER_STEP = 60
SHOW_EVERY = 20
JOB_TIMEOUT_S = 200.0
AWAY_TIMEOUT_S = 30.0
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
        """The answer; a refusal, or a portal that stays away, ends the demo with a sentence."""
        headers = {"Authorization": f"Bearer {self.token}"}
        deadline = time.monotonic() + AWAY_TIMEOUT_S
        while True:
            try:
                status, data = ask(f"{self.url}/api/v1{path}", body=body, headers=headers, timeout_s=60.0)
                break
            except OSError as error:
                # Reading again is harmless; submitting again would make a second job.
                if body is not None or time.monotonic() > deadline:
                    raise DemoFailed(f"the portal did not answer {path} ({error})") from None
                time.sleep(0.2)
        if status >= 400:
            raise DemoFailed(f"the portal refused {path}: {(data or {}).get('detail', status)}")
        return data


def run_demo(data: Path, *, port: int | None, leave: bool, keep: bool, json_path: Path | None, say: Say) -> int:
    """The exit status: 0 when everything that was promised happened."""
    begin = time.monotonic()
    data = data.resolve()
    inventory = data / "inventory.json"

    def prepare() -> None:
        if not keep:
            _forget(data)
        nodes = [{"name": f"node-{i}", "gpu_type": "cpu-sim", "gpus": 2} for i in (1, 2)]
        inventory.write_text(json.dumps({"nodes": nodes}))

    units = partial(stack_units, inventory=inventory)
    with stack_on(data, port=port, say=say, units=units, prepare=prepare) as (layout, supervisor):
        say("starting the platform: database, broker, Prefect, portal, scheduler")
        supervisor.start()
        ready_s = time.monotonic() - begin
        say(f"ready after {ready_s:.0f} s; two virtual nodes with two GPUs each")
        story = _Story(supervisor, layout, say)
        thread = threading.Thread(target=story.run, name="demo", daemon=True)
        thread.start()
        supervisor.watch(until=lambda: not thread.is_alive())
        if supervisor.stopping.is_set():
            raise Interrupted
        if story.facts is None:
            raise CannotStart(f"the demo failed: {story.failure} Logs are in {layout.logs}.")
        facts = story.facts
        facts.ready_s, facts.total_s = ready_s, time.monotonic() - begin
        faults = faults_of(facts)
        print(report_text(facts), flush=True)
        if json_path is not None:
            json_path.write_text(json.dumps(facts.as_json() | {"not_as_promised": faults}, indent=1) + "\n")
        for fault in faults:
            print(f"NOT AS PROMISED: {fault}", file=sys.stderr)
        if not leave and not faults:
            print(f"\nThe portal stays up at {layout.portal_url}  (log in as admin, password: {story.password})")
            print("Ctrl-C stops everything.", flush=True)
            supervisor.watch()
        return 1 if faults else 0


def _forget(data: Path) -> None:
    """A fresh demo each time. What holds the folder (its lock) stays, and the corpus, which is the same each time."""
    for entry in data.iterdir():
        if entry.name not in ("run", "cache"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


class _Story:
    """What happens in the demo, told through the command line and REST."""

    def __init__(self, supervisor: Supervisor, layout: Layout, say: Say) -> None:
        self.supervisor, self.layout, self.say, self.portal = supervisor, layout, say, Portal(layout.portal_url)
        self.password = ""
        self.facts: DemoFacts | None = None
        self.failure = "it was stopped."
        self._shown: tuple[str, str, int] = ("", "", -1)

    def run(self) -> None:
        """Runs in a thread of its own, since the supervisor's thread must look after its children."""
        try:
            self.facts = self._tell()
        except DemoFailed as error:
            self.failure = f"{error}."

    def _tell(self) -> DemoFacts:
        self._people()
        idle_mb = self._memory_mb()
        first = self.portal.call("/jobs", job_spec())["id"]
        self.say(f"submitted {first}: 2 nodes × 2 ranks, FSDP2, {STEPS} steps")
        killed = self._kill_a_rank(first)
        self._wait_end(first)
        second = self.portal.call("/jobs", second_spec())["id"]
        self.say(f"submitted {second} for the second team")
        self._wait_end(second)
        usage = self._closed_usage()
        idle_mb = max(idle_mb, self._memory_mb())
        job = self.portal.call(f"/jobs/{first}")
        return DemoFacts(
            job=job,
            timeline=self.portal.call(f"/jobs/{first}/timeline"),
            series=self.portal.call(f"/jobs/{first}/metrics?names=loss,val_loss&points=20000")["series"],
            checkpoints=self.portal.call(f"/jobs/{first}/checkpoints")["items"],
            usage=usage,
            killed=killed,
            second=self.portal.call(f"/jobs/{second}"),
            idle_mb=idle_mb,
        )

    def _memory_mb(self) -> float:
        """What all processes of the platform take while no job runs."""
        return sum(float(row["rss_mb"]) for row in stack_memory(self.layout.data) if row["name"] != "flow")

    def _people(self) -> None:
        words = self._manage("admin_create", "admin").split()
        self.password = words[-1]
        limits = ("--quota", "cpu-sim=2", "--cohort", "research", "--member", "admin:owner")
        commands = [("team_create", team, *limits) for team in ("language", "vision")]
        with ThreadPoolExecutor(2) as pool:
            *_, token = pool.map(
                lambda words: self._manage(*words), [*commands, ("token_create", "admin", "--name", "demo")]
            )
        self.portal.token = token.strip()
        self.say("made an administrator and two teams; each owns 2 GPUs and may borrow the other's")

    def _manage(self, *arguments: str) -> str:
        done = subprocess.run(
            manage(*arguments),
            cwd=ROOT,
            env=portal_environment(self.layout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise DemoFailed(f"`manage.py {arguments[0]}` failed: {lines[-1]}")
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
        """The job; a line when its state has changed or its training has gone on for a while."""
        job: dict[str, Any] = self.portal.call(f"/jobs/{job_id}")
        stretch = int(job["last_step"]) // SHOW_EVERY
        shown = (job_id, str(job["state"]), stretch)
        if shown != self._shown:
            text = f"{job['name']}: {job['state']}"
            if stretch != self._shown[2] and stretch > 0:
                text += self._figures(job_id, int(job["last_step"]))
            self._shown = shown
            self.say(text)
        return job

    def _figures(self, job_id: str, step: int) -> str:
        query = f"names=loss,tokens_per_s&after_step={step - SHOW_EVERY}"
        answer = self.portal.call(f"/jobs/{job_id}/metrics?{query}")
        last = {name: points[-1] for name, points in answer["series"].items() if points}
        loss = f"  loss {last['loss'][3]:.3f}" if "loss" in last else ""
        rate = f"  {last['tokens_per_s'][3]:,.0f} tokens/s" if "tokens_per_s" in last else ""
        return f"  step {step}{loss}{rate}"

    def _closed_usage(self) -> dict[str, Any]:
        """The ledger per team, once it covers all that was held."""
        deadline = time.monotonic() + 30
        while True:
            usage: dict[str, Any] = self.portal.call("/usage?group_by=team")
            if usage["items"] and usage["booked_gpu_s"] == usage["held_gpu_s"]:
                return usage
            self._pause(deadline)
