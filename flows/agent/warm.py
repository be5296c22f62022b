"""The agent's side of the warm start: a process that has torch and forks ranks (``trainer.warm``)."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from flows.agent.environment import RANK_MARK, machine_environment
from flows.agent.plan import AgentPlan
from flows.agent.tail import last_text
from flows.processes import die_with_parent


class WarmStart:
    """One such process. It dies with the agent, and the ranks that it has forked die with it."""

    def __init__(self, plan: AgentPlan) -> None:
        self.plan = plan
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        environment = machine_environment(os.environ) | {
            "TRAINYARD_AGENT_PID": str(os.getpid()),
            "TRAINYARD_ATTEMPT": plan.attempt,
            "TRAINYARD_NODE": plan.node,
            RANK_MARK: plan.attempt,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with self._log_path.open("ab") as log, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainer.warm"],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=environment,
                # The main thread calls this: it lives as long as the agent, so the signal means its death.
                preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509
            )
        self.pid = self.process.pid
        self.ready = False
        self._rest = b""

    def start(self, order: dict[str, Any]) -> None:
        """Ask for a rank; its pid comes back as a message. Orders are much smaller than the buffer."""
        self.channel.sendall(json.dumps(order).encode() + b"\n")

    def messages(self) -> list[dict[str, Any]] | None:
        """What it has said since the last call; None when it is gone, and its ranks with it."""
        found: list[dict[str, Any]] = []
        while True:
            try:
                data = self.channel.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                return None
            if not data:
                return found or None
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += [json.loads(line) for line in lines]
        self.ready = self.ready or any("ready" in message for message in found)
        return found

    def last_words(self) -> str:
        """The last line that it wrote before it died."""
        lines = [line for line in last_text(self._log_path, 4096).splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it wrote nothing"

    def stop(self) -> None:
        """End it; ranks that it still has die with it."""
        self.channel.close()
        try:
            # Not the subprocess module's kill: that would reap it, and its end is to be seen.
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    @property
    def _log_path(self) -> Path:
        return self.plan.folder / "warm.log"
