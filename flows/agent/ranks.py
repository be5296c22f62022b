"""One rank as a process: how it is started, what is said about it."""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flows.processes import ProcessId, die_with_parent

# Below the range from which the kernel takes ports for outgoing connections: those would take one that
# was free a moment ago. 20,000 and up keeps clear of well-known services.
FIRST_PORT = 20_000
NUM_TRIES = 50


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
    tail: str = ""

    @property
    def running(self) -> bool:
        """It has not been seen to end."""
        return self.ended_ns is None

    @property
    def known(self) -> bool:
        """It is more than an order: it has a process or has had one."""
        return self.process is not None or not self.running

    @property
    def failed(self) -> bool:
        """It ended, and not with status 0."""
        return not self.running and self.exit_code != 0

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


def command_start(
    argv: Sequence[str],
    *,
    working_dir: str,
    environment: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> "subprocess.Popen[bytes]":
    """A user's own program as a rank: its own process group, and dead when this agent dies."""
    return subprocess.Popen(
        list(argv),
        cwd=working_dir,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        process_group=0,
        # The main thread calls this: it lives as long as the agent, so the signal means its death.
        preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509
    )


def free_port(address: str) -> socket.socket:
    """A bound socket: its port is free as long as it is held. An address of another machine counts as any."""
    try:
        last = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - 1
    except (OSError, ValueError):
        last = 32_767
    tries = [random.randint(FIRST_PORT, last) for _ in range(NUM_TRIES)] if last > FIRST_PORT else []
    for host in (address, ""):
        for port in [*tries, 0]:
            holder = socket.socket()
            try:
                holder.bind((host, port))
            except OSError:
                holder.close()
                continue
            return holder
    raise OSError("no free port on this node")
