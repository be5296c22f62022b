"""The embedded stack as a whole: at rest, when it cannot start, and at its end."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows.embedded.layout import ROOT
from flows.embedded.memory import stack_memory
from tests.stack.stack import Stack, wait_for

pytestmark = pytest.mark.stack


def remote_addresses(pid: int) -> set[str]:
    """Addresses outside this machine that the process is connected to."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        address = socket.inet_ntoa(bytes.fromhex(fields[2].split(":")[0])[::-1])
        if fields[9] in inodes and not address.startswith("127.") and address != "0.0.0.0":
            found.add(address)
    return found


def test_at_rest_the_stack_is_small_and_talks_to_nobody_outside(stack: Stack) -> None:
    wait_for("the last flow to leave", lambda: "flow" not in {r["name"] for r in stack_memory(stack.data)}, 30.0)
    processes = [p for p in stack.everything() if p.alive()]
    assert {"web", "scheduler", "celery", "prefect-server", "prefect-worker"} <= set(stack.pids())
    assert len(processes) >= 5
    for process in processes:
        assert remote_addresses(process.pid) == set()
    rows = stack_memory(stack.data)
    resident = sum(row["rss_mb"] for row in rows)
    assert resident <= 700, rows


def test_children_know_only_the_secrets_that_they_need(stack: Stack) -> None:
    pids = stack.pids()
    keys = {name: (stack.data / "secrets" / name).read_text().strip() for name in ("secret_key", "token_key")}
    for name in ("prefect-server", "prefect-worker", "broker"):
        environment = Path(f"/proc/{pids[name].pid}/environ").read_text()
        assert not any(key in environment for key in keys.values()), name


@pytest.mark.parametrize("what", ["port", "folder"])
def test_what_is_in_use_is_said_before_anything_starts(stack: Stack, tmp_path: Path, what: str) -> None:
    data = stack.data if what == "folder" else tmp_path / "other"
    port = ["--port", str(stack.layout.port)] if what == "port" else []
    done = subprocess.run(
        [sys.executable, "-m", "flows.embedded", "up", "--data-dir", str(data), *port],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert ("is in use by" if what == "port" else "runs on") in line
    assert stack.process is not None
    assert stack.process.poll() is None
