"""A real Prefect server and worker for a test session, with the settings of the embedded stack."""

import base64
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.prefect_env import migrate_argv, prefect_environment, server_argv, worker_argv
from flows.processes import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
AUTH = "tests:secret"


@dataclass
class Prefect:
    """Where it is, and how its processes are started."""

    home: Path
    api_url: str

    @property
    def client(self) -> httpx.Client:
        """Speaks as the portal's launcher does."""
        header = "Basic " + base64.b64encode(AUTH.encode()).decode()
        return httpx.Client(base_url=self.api_url, headers={"Authorization": header}, timeout=30, trust_env=False)

    def environment(self, **more: str) -> dict[str, str]:
        """Of its processes and of flows."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        made = prefect_environment(api_url=self.api_url, auth=AUTH, home=self.home)
        return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | made | more

    def start(self, argv: list[str], log: str, **more: str) -> "subprocess.Popen[bytes]":
        """One process, its output in a file of the home."""
        with (self.home / log).open("ab") as file:
            return subprocess.Popen(argv, env=self.environment(**more), cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

    def flow(self, portal: Any, epoch: int) -> "subprocess.Popen[bytes]":
        """A flow of an attempt, started without a worker."""
        code = "import asyncio, sys; from flows.attempt import attempt; print(asyncio.run(attempt(*sys.argv[1:])))"
        token = self.home / f"token_{portal.attempt}"
        token.write_text(portal.flow_token)
        return self.start(
            [sys.executable, "-c", code, portal.attempt, str(epoch)],
            f"flow_{portal.attempt}_{epoch}.log",
            TRAINYARD_PORTAL_URL=portal.url,
            TRAINYARD_FLOW_TOKEN_FILE=str(token),
            TRAINYARD_PORTAL_PATIENCE_S="20",
        )

    def run(self, attempt: str, epoch: int) -> str:
        """The id of a flow run for the worker. A database that is locked is asked again, as the portal does."""
        body = {
            "parameters": {"attempt_id": attempt, "epoch": epoch},
            "idempotency_key": f"{attempt}:{epoch}",
        }
        with self.client as client:
            deployment = client.get("/deployments/name/attempt/trainyard").json()["id"]
            answers: list[httpx.Response] = []

            def made() -> bool:
                answers.append(client.post(f"/deployments/{deployment}/create_flow_run", json=body))
                return answers[-1].status_code in (200, 201)

            assert wait_until(made, timeout_s=30, every_s=0.2), answers[-1].text
            return str(answers[-1].json()["id"])

    def output(self, log: str) -> str:
        """What a process has written."""
        return (self.home / log).read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL: a worker whose server is gone may take its time."""
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def prefect() -> Iterator[Prefect]:
    """A server with the deployment, on a database of its own."""
    home = Path(tempfile.mkdtemp(prefix="trainyard-prefect-"))
    port = free_port()
    made = Prefect(home, f"http://127.0.0.1:{port}/api")
    server = None
    try:
        migrated = made.start(migrate_argv(), "migrate.log")
        assert migrated.wait(timeout=240) == 0, made.output("migrate.log")
        server = made.start(server_argv(port), "server.log")

        def answers() -> bool:
            try:
                with made.client as client:
                    return client.get("/health").status_code == 200
            except httpx.HTTPError:
                return False

        assert wait_until(answers, timeout_s=120, every_s=0.1), made.output("server.log")
        ids = set()
        for _ in range(2):
            deployed = subprocess.run(
                [sys.executable, "-m", "flows.deploy"],
                env=made.environment(),
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
            ids.add(deployed.stdout.strip().splitlines()[-1])
        assert len(ids) == 1, "deploying again changes nothing"
        yield made
    finally:
        if server is not None:
            end(server)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def worker(prefect: Prefect) -> Iterator[Any]:
    """Starts a worker whose flows know this portal."""
    started: list[subprocess.Popen[bytes]] = []

    def start(portal: Any) -> "subprocess.Popen[bytes]":
        token = prefect.home / "token_worker"
        token.write_text(portal.flow_token)
        process = prefect.start(
            worker_argv(4),
            "worker.log",
            TRAINYARD_PORTAL_URL=portal.url,
            TRAINYARD_FLOW_TOKEN_FILE=str(token),
        )
        started.append(process)
        assert wait_until(lambda: "started!" in prefect.output("worker.log"), timeout_s=90)
        return process

    yield start
    for process in started:
        end(process)
