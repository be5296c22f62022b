"""Starting ranks, seeing them end, and killing them with everything that they started."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.agent.environment import machine_environment
from flows.agent.plan import AgentPlan
from flows.processes import ProcessId, die_with_parent, kill_group


@dataclass
class RankProcess:
    """One rank of one restart, running or ended."""

    rank: int
    local_rank: int
    restart: int
    started_ns: int
    process: ProcessId | None = None
    exit_code: int | None = None
    ended_ns: int | None = None

    @property
    def running(self) -> bool:
        """It has not been seen to end."""
        return self.ended_ns is None

    def as_json(self) -> dict[str, Any]:
        """Its row in a report."""
        row: dict[str, Any] = {
            "rank": self.rank,
            "restart": self.restart,
            "local_rank": self.local_rank,
            "pid": self.process.pid if self.process else None,
            "state": "running" if self.running else "exited",
            "t_ns": self.started_ns if self.ended_ns is None else self.ended_ns,
        }
        if not self.running:
            row["exit_code"] = self.exit_code
            if self.exit_code is not None and self.exit_code < 0:
                row["signal"] = signal_name(-self.exit_code)
        return row


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class WarmStart:
    """The agent's process that has torch imported and forks ranks (``trainer.warm``)."""

    def __init__(self, plan: AgentPlan) -> None:
        self.ours, theirs = socket.socketpair()
        environment = machine_environment(os.environ) | {
            "TRAINYARD_AGENT_PID": str(os.getpid()),
            "TRAINYARD_ATTEMPT": plan.attempt,
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        log = (plan.folder / "warm.log").open("ab")
        self.child = subprocess.Popen(
            [sys.executable, "-m", "trainer.warm"],
            stdin=theirs,
            stdout=log,
            stderr=log,
            env=environment,
            preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509 - the agent has no thread yet that forks
        )
        log.close()
        theirs.close()
        self.ready = False
        self.gone = False
        self._rest = b""

    def start(self, order: dict[str, Any]) -> None:
        """Ask for a rank; its pid comes back as a message."""
        self.ours.sendall(json.dumps(order).encode() + b"\n")

    def messages(self) -> list[dict[str, Any]]:
        """What it has said since the last call. An empty read means that it is gone, and its ranks with it."""
        try:
            data = self.ours.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.gone = True
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = [json.loads(line) for line in lines]
        self.ready = self.ready or any("ready" in message for message in found)
        return found

    def stop(self) -> None:
        """End it; ranks that it still has die with it."""
        self.ours.close()
        self.child.kill()
        self.child.wait()


def command_start(
    argv: Sequence[str], *, working_dir: str, environment: Mapping[str, str], stdout: Path, stderr: Path
) -> "subprocess.Popen[bytes]":
    """A user's own program as a rank: its own process group, and dead when this agent dies."""
    with stdout.open("ab") as out, stderr.open("ab") as err:
        return subprocess.Popen(
            list(argv),
            cwd=working_dir,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            process_group=0,
            preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509 - called from the thread that lives longest
        )


def free_port(address: str) -> socket.socket:
    """A bound socket: its port is free as long as it is held."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((address, 0))
    except OSError:
        holder.bind(("127.0.0.1", 0))
    return holder


def kill_all(ranks: Sequence[RankProcess]) -> None:
    """SIGKILL for every running rank's process group."""
    for rank in ranks:
        if rank.running and rank.process is not None:
            kill_group(rank.process.pid)


def term_all(ranks: Sequence[RankProcess]) -> None:
    """SIGTERM for every running rank itself: its children are its own to stop."""
    for rank in ranks:
        if rank.running and rank.process is not None and rank.process.alive():
            os.kill(rank.process.pid, signal.SIGTERM)


def now_ns() -> int:
    """The node's clock."""
    return time.time_ns()
