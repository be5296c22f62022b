"""The embedded stack for tests: real processes, a real supervisor, driven through REST."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from flows.embedded.children import portal_environment
from flows.embedded.cleanup import carrying
from flows.embedded.layout import ROOT, Layout
from flows.embedded.ports import free_port
from flows.processes import ProcessId, attempt_processes

START_TIMEOUT_S = 180.0


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """The condition's first true value; fails with what was waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.05)


@dataclass
class Stack:
    """A running stack on a data folder of its own."""

    data: Path
    process: "subprocess.Popen[bytes] | None" = None
    token: str = ""
    password: str = "a-long-test-password"
    http: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=90.0))

    @property
    def layout(self) -> Layout:
        """Its folder and ports."""
        ports = json.loads((self.data / "ports.json").read_text())
        return Layout(self.data, ports["port"], ports["prefect_port"])

    def start(self) -> "Stack":
        """Start the supervisor and wait until the portal serves."""
        self.data.mkdir(parents=True, exist_ok=True)
        inventory = self.data / "inventory.json"
        inventory.write_text(
            json.dumps({"nodes": [{"name": f"node-{i}", "gpu_type": "cpu-sim", "gpus": 2} for i in (1, 2)]})
        )
        log = (self.data / "supervisor.log").open("ab")
        before = self._times_ready()
        argv = [sys.executable, "-m", "flows.embedded", "up", "--data-dir", str(self.data)]
        argv += ["--inventory", str(inventory)]
        if not (self.data / "ports.json").exists():
            # A port of its own: another stack may be about to take the first free one, too.
            argv += ["--port", str(free_port())]
        self.process = subprocess.Popen(
            argv,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("TRAINYARD_")},
        )
        wait_for("the stack to start", lambda: self._started(before), START_TIMEOUT_S)
        return self

    def _times_ready(self) -> int:
        return (self.data / "supervisor.log").read_text().count("the portal is at")

    def _started(self, before: int) -> bool:
        assert self.process is not None
        text = (self.data / "supervisor.log").read_text()
        assert self.process.poll() is None, text
        return self._times_ready() > before

    def people(self) -> "Stack":
        """An administrator, a member, a team with quota for all GPUs."""
        os.environ["TEST_PASSWORD"] = self.password
        self.manage("admin_create", "root", "--password-env", "TEST_PASSWORD")
        self.manage("user_create", "ada", "--password-env", "TEST_PASSWORD")
        self.manage("team_create", "vision", "--quota", "cpu-sim=4", "--member", "ada:member")
        self.token = self.manage("token_create", "ada").strip()
        return self

    def manage(self, *arguments: str) -> str:
        """Run a management command; its output."""
        environment = {**portal_environment(self.layout), "TEST_PASSWORD": self.password}
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    def pids(self) -> dict[str, ProcessId]:
        """Its children by name."""
        try:
            rows = json.loads((self.data / "run" / "processes.json").read_text())
        except (OSError, ValueError):
            return {}
        return {name: ProcessId(**row) for name, row in rows.items()}

    def everything(self) -> list[ProcessId]:
        """Every process that belongs to the stack, flows included."""
        return carrying(f"TRAINYARD_STACK={self.data}")

    def call(self, path: str, body: Any = None, **headers: str) -> Any:
        """A REST call; a portal that is away for a moment is waited for."""
        url = f"{self.layout.portal_url}/api/v1{path}"
        headers["authorization"] = f"Bearer {self.token}"
        deadline = time.monotonic() + 30
        while True:
            try:
                if body is None:
                    answer = self.http.get(url, headers=headers)
                else:
                    answer = self.http.post(url, json=body, headers=headers)
                if answer.status_code < 500:
                    assert answer.status_code < 400, answer.text
                    return answer.json()
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, f"the portal did not answer {path}"
            time.sleep(0.2)

    def submit(self, *, nodes: int = 2, gpus_per_node: int = 1, steps: int = 40, **changes: Any) -> str:
        """A small real training job; its id."""
        config: dict[str, Any] = {
            "steps": steps,
            "global_batch_size": 8,
            "model": {"preset": "nano"},
            "data": {"sequence_length": 64},
            "checkpoint": {"every_steps": 10},
            "eval": {"every_steps": 20, "batches": 1},
        }
        spec = {
            "name": "tiny",
            "team": "vision",
            "gpu_type": "cpu-sim",
            "nodes": nodes,
            "gpus_per_node": gpus_per_node,
            "workload": {"kind": "trainer", "config": config},
        }
        return str(self.call("/jobs", spec | changes)["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as REST shows it."""
        found: dict[str, Any] = self.call(f"/jobs/{job_id}")
        return found

    def wait_end(self, job_id: str, timeout_s: float = 150.0) -> dict[str, Any]:
        """The job when it has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.call(f"/jobs/{job_id}?wait=10&until=terminal")
            if found["state"] in ("succeeded", "failed", "cancelled"):
                return dict(found)
            assert time.monotonic() < deadline, json.dumps(found, indent=1)

    def wait_checkpoint(self, job_id: str) -> None:
        """A durable checkpoint of the job is there."""
        wait_for(
            "a durable checkpoint",
            lambda: any(
                c["state"] in ("durable", "verified") for c in self.call(f"/jobs/{job_id}/checkpoints")["items"]
            ),
            90.0,
        )

    def attempt(self, job_id: str) -> dict[str, Any]:
        """The job's newest attempt."""
        return dict(self.job(job_id)["attempts"][-1])

    def agents(self, job_id: str) -> Iterator[ProcessId]:
        """Node agents of the job's newest attempt."""
        attempt = self.attempt(job_id)["id"]
        for path in (self.data / "jobs" / job_id / "attempts" / attempt / "nodes").glob("*/agent.json"):
            row = json.loads(path.read_text())
            yield ProcessId(row["pid"], row["start_ticks"], row["boot_id"])

    def flow(self) -> ProcessId:
        """The process of the one flow that runs."""
        known = {p.pid for p in self.pids().values()}

        def find() -> ProcessId | None:
            for process in self.everything():
                try:
                    command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"prefect.engine" in command and process.pid not in known:
                    return process
            return None

        found: ProcessId = wait_for("a flow process", find, 20.0)
        return found

    def check_books(self, job_id: str) -> None:
        """No process is left, and the ledger equals what was held."""
        for attempt in self.job(job_id)["attempts"]:
            left = wait_for("all processes to be gone", lambda a=attempt: [*attempt_processes(a["id"])] == [], 10.0)
            assert left
        usage = wait_for("the closed ledger", lambda: self._closed_usage(job_id), 30.0)
        assert usage["booked_gpu_s"] == usage["held_gpu_s"] > 0
        [row] = usage["items"]
        assert abs(sum(row["shares_percent"].values()) - 100.0) < 0.01
        assert row["causes"]["productive"] > 0, row
        self.manage("check_invariants")

    def _closed_usage(self, job_id: str) -> Any:
        usage = self.call(f"/usage?group_by=job&job={job_id}")
        return usage if usage["items"] and usage["booked_gpu_s"] == usage["held_gpu_s"] else None
