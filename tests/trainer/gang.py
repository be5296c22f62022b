"""Starts real ranks over gloo. They are forked from one process that has imported torch, as the node agent does it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.records import records_in

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 90.0


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class WarmStart:
    """The process that ranks are forked from."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        environment = {**os.environ, "TRAINYARD_AGENT_PID": str(os.getpid()), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.warm"], stdin=theirs, env=environment, cwd=REPOSITORY
        )
        theirs.close()
        self._ours.settimeout(DEADLINE_S)
        self._lines = self._ours.makefile("rb")
        assert "ready" in self._read()
        self._number = 0

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, "the warm process has died"
        return dict(json.loads(line))

    def start(self, folder: Path, config: dict[str, Any], world_size: int, **settings: Any) -> "Gang":
        """A gang of ranks that train in ``folder``."""
        self._number += 1
        return Gang(self, self._number, folder, config, world_size, **settings)

    def close(self) -> None:
        """End the process; its ranks die with it."""
        self._ours.close()
        self._process.terminate()
        self._process.wait(DEADLINE_S)


@dataclass
class Ended:
    """How a gang ended: exit statuses (negative: killed by that signal), and what each rank wrote."""

    statuses: list[int]
    records: list[list[dict[str, Any]]]
    errors: list[str]

    def of(self, kind: str, rank: int = 0, **wanted: Any) -> list[dict[str, Any]]:
        """A rank's records of one kind that have these values."""
        found = [r for r in self.records[rank] if r["k"] == kind]
        return [r for r in found if all(r.get(name) == value for name, value in wanted.items())]

    def losses(self, rank: int = 0) -> dict[int, float]:
        """Loss by step."""
        return {r["step"]: r["loss"] for r in self.of("step", rank)}


class Gang:
    """Ranks under way."""

    def __init__(
        self,
        warm: WarmStart,
        number: int,
        folder: Path,
        config: dict[str, Any],
        world_size: int,
        *,
        per_node: int | None = None,
        resume: str = "auto",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.warm, self.number, self.folder, self.world_size = warm, number, folder, world_size
        self.run = folder / f"run_{number}"
        self.run.mkdir(parents=True)
        self.control = self.run / "control.jsonl"
        (self.run / "config.json").write_text(json.dumps(config))
        self.pids: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        port, per_node = free_port(), per_node or world_size
        for rank in range(world_size):
            values = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % per_node),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(per_node),
                "GROUP_RANK": str(rank // per_node),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RESTART_COUNT": str(number),
                "PATH": os.environ["PATH"],
                "OMP_NUM_THREADS": "1",
                "TRAINYARD_RECORDS": str(self._records(rank)),
                "TRAINYARD_CONTROL": str(self.control),
                "TRAINYARD_CHECKPOINT_DIR": str(self.checkpoints),
                "TRAINYARD_CACHE": str(folder.parent / "cache"),
                "TRAINYARD_RESUME": resume,
                **(environment or {}),
            }
            self._order(rank, values)

    @property
    def checkpoints(self) -> Path:
        """Where the gang's checkpoints lie."""
        return self.folder / "checkpoints"

    def _records(self, rank: int) -> Path:
        return self.run / f"rank_{rank}.jsonl"

    def _order(self, rank: int, environment: dict[str, str]) -> None:
        order = {
            "id": f"{self.number}:{rank}",
            "environment": environment,
            "arguments": ["--config", str(self.run / "config.json")],
            "stdout": str(self.run / f"out_{rank}"),
            "stderr": str(self.run / f"err_{rank}"),
        }
        self.warm._ours.sendall(json.dumps(order).encode() + b"\n")

    def _take(self) -> None:
        message = self.warm._read()
        name = message.get("started") or message.get("ended") or ""
        number, _, rank = str(name).partition(":")
        if number != str(self.number):
            return
        if "started" in message:
            self.pids[int(rank)] = message["pid"]
        else:
            self.ended[int(rank)] = os.waitstatus_to_exitcode(message["status"])

    def records(self, rank: int = 0) -> list[dict[str, Any]]:
        """What a rank has written so far."""
        path = self._records(rank)
        return list(records_in(path)) if path.exists() else []

    def wait_for(self, kind: str, rank: int = 0, **wanted: Any) -> dict[str, Any]:
        """The first record of a rank with these values; numbers mean "at least"."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for record in self.records(rank):
                if record["k"] == kind and all(_fits(record.get(n), v) for n, v in wanted.items()):
                    return record
            time.sleep(0.02)
        raise AssertionError(f"no record {kind} {wanted} of rank {rank}:\n{self.error(rank)}")

    def tell(self, kind: str, number: int = 1, **more: Any) -> None:
        """A line in the control file, as the node agent writes it."""
        with self.control.open("a") as file:
            file.write(json.dumps({"id": number, "kind": kind, **more}) + "\n")

    def pid(self, rank: int) -> int:
        """A rank's process."""
        while rank not in self.pids:
            self._take()
        return self.pids[rank]

    def processes(self, rank: int) -> list[int]:
        """The rank's process group as it lives: itself, its saver, its loader workers."""
        return [pid for pid in _alive() if _group_of(pid) == self.pid(rank)]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a rank a signal."""
        os.kill(self.pid(rank), number)

    def error(self, rank: int) -> str:
        """What a rank said on standard error."""
        path = self.run / f"err_{rank}"
        return path.read_text() if path.exists() else ""

    def wait(self) -> Ended:
        """The end of all ranks."""
        while len(self.ended) < self.world_size:
            self._take()
        ranks = range(self.world_size)
        return Ended(
            [self.ended[rank] for rank in ranks],
            [self.records(rank) for rank in ranks],
            [self.error(rank) for rank in ranks],
        )


def _fits(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
        return isinstance(found, (int, float)) and found >= wanted
    return bool(found == wanted)


def _alive() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _group_of(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[2])
