"""What an engine can do. Every act is idempotent by attempt, node and generation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class NodePart:
    """One node's part of an attempt, as the portal placed it."""

    name: str
    node_rank: int
    address: str
    gpu_indices: tuple[int, ...]
    generation: int


@dataclass(frozen=True)
class LaunchPlan:
    """What the portal wants started (the answer to a claim)."""

    attempt: str
    job: str
    epoch: int
    run_dir: Path
    job_dir: Path
    nodes: tuple[NodePart, ...]
    ranks_per_node: int
    workload: dict[str, Any]
    environment: dict[str, str]
    resume: str

    def node_folder(self, node: str) -> Path:
        """Where a node's files are."""
        return self.run_dir / "nodes" / node

    @classmethod
    def from_answer(cls, data: dict[str, Any]) -> "LaunchPlan":
        """The plan out of the portal's answer."""
        return cls(
            attempt=data["attempt"],
            job=data["job"],
            epoch=data["epoch"],
            run_dir=Path(data["run_dir"]),
            job_dir=Path(data["job_dir"]),
            nodes=tuple(
                NodePart(n["name"], n["node_rank"], n["address"], tuple(n["gpu_indices"]), n["generation"])
                for n in data["nodes"]
            ),
            ranks_per_node=data["ranks_per_node"],
            workload=data["workload"],
            environment=data["environment"],
            resume=data["resume"],
        )


@dataclass(frozen=True)
class AgentStatus:
    """What the engine sees of a node's agent."""

    node: str
    generation: int
    alive: bool


class EngineProblem(Exception):
    """The engine could not do it: a code for the portal's policy and a sentence for people."""

    def __init__(self, code: str, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.node = code, message, node


class Engine(Protocol):
    """Local processes, Slurm jobs or Kubernetes pods."""

    def check(self, plan: LaunchPlan, node: NodePart) -> None:
        """Raise ``EngineProblem`` when an agent could not work there."""

    def launch(self, plan: LaunchPlan, node: NodePart, *, generation: int, token: str, portal_url: str) -> None:
        """Start the node's agent of this generation."""

    def find(self, plan: LaunchPlan, node: str) -> AgentStatus:
        """The node's newest agent, running or not."""

    def stop(self, plan: LaunchPlan) -> None:
        """Ask every agent and rank of the attempt to go, and make them go."""

    def gone(self, plan: LaunchPlan) -> bool:
        """Whether no process of the attempt is left, proved and not assumed."""
