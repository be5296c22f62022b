"""A portal, an engine and folders for one attempt; whatever is left of it is killed at the end."""

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows.engines.base import Grant, LaunchPlan
from flows.engines.local import LocalEngine
from flows.processes import attempt_processes, wait_until
from tests.flows.portal import PortalOfOneAttempt
from tests.flows.prefect import prefect, worker

__all__ = ["prefect", "worker"]

RANK = Path(__file__).with_name("rank.py")


@dataclass
class Gang:
    """One attempt: its portal, its plan, and the engine that starts its agents."""

    portal: PortalOfOneAttempt
    engine: LocalEngine = field(default_factory=LocalEngine)

    @property
    def plan(self) -> LaunchPlan:
        with self.portal.lock:
            nodes = [{**n, "generation": 0} for n in self.portal.plan["nodes"]]
            answer = {**self.portal.plan, "attempt": self.portal.attempt, "epoch": 1, "nodes": nodes}
        return LaunchPlan.from_answer(answer)

    def launch(self, *names: str) -> None:
        """Start agents as a flow would: with a grant of the portal's."""
        for node in self.plan.nodes:
            if not names or node.name in names:
                with self.portal.lock:
                    answer = self.portal.launch(node.name)
                self.engine.launch(self.plan, node, Grant(**answer))

    def folder(self, node: str = "n1") -> Path:
        return self.plan.node_folder(node)

    def agent_pid(self, node: str = "n1") -> int:
        found = self.engine.find(self.plan, node)
        assert found.alive
        return int(json.loads((self.folder(node) / "agent.json").read_text())["pid"])

    def pids(self) -> list[int]:
        return [row.identity.pid for row in attempt_processes(self.portal.attempt)]

    def wait_gone(self, timeout_s: float = 10.0) -> None:
        assert wait_until(lambda: self.engine.gone(self.plan), timeout_s=timeout_s), self.pids()


MakeGang = Callable[..., Gang]


@pytest.fixture
def make_gang(tmp_path: Path) -> Iterator[MakeGang]:
    """Builds gangs of small rank programs: ``make_gang("steps=5", nodes=2, ranks_per_node=2)``."""
    made: list[Gang] = []

    def make(*options: str, nodes: int = 1, ranks_per_node: int = 1, **changes: Any) -> Gang:
        number = len(made)
        attempt = f"att_{secrets.token_hex(6)}"
        job_dir = tmp_path / "data" / "jobs" / f"job_{number}"
        plan = {
            "job": f"job_{number}",
            "engine": "local",
            "job_dir": str(job_dir),
            "run_dir": str(job_dir / "attempts" / attempt),
            "nodes": [
                {"name": f"n{i + 1}", "node_rank": i, "address": "127.0.0.1", "gpu_indices": [0, 1]}
                for i in range(nodes)
            ],
            "ranks_per_node": ranks_per_node,
            "workload": {
                "kind": "command",
                "argv": [sys.executable, str(RANK), *options],
                "working_dir": str(RANK.parent.parent.parent),
            },
            "environment": {"PYTHONPATH": str(RANK.parent.parent.parent)},
            "resume": "auto",
            "grace_s": 5.0,
            "heartbeat_s": 0.1,
            **changes,
        }
        portal = PortalOfOneAttempt(attempt=attempt, plan=plan)
        portal.open()
        gang = Gang(portal)
        made.append(gang)
        return gang

    yield make
    for gang in made:
        gang.engine.stop(gang.plan)
        gang.portal.close()
        gang.wait_gone()
