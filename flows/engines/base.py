"""What an engine can do. Every act is idempotent by attempt, node and generation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    engine: str
    run_dir: Path
    job_dir: Path
    nodes: tuple[NodePart, ...]
    ranks_per_node: int
    workload: dict[str, Any]
    environment: dict[str, str] = field(repr=False)
    resume: str
    heartbeat_s: float

    def node_folder(self, node: str) -> Path:
        """Where a node's files are."""
        return self.run_dir / "nodes" / node

    @property
    def checkpoint_dir(self) -> Path:
        """Shared by all attempts of the job."""
        return self.job_dir / "checkpoints"

    @classmethod
    def from_answer(cls, data: Mapping[str, Any]) -> "LaunchPlan":
        """The plan out of the portal's answer."""
        return cls(
            attempt=data["attempt"],
            job=data["job"],
            epoch=data["epoch"],
            engine=data["engine"],
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
            heartbeat_s=float(data["heartbeat_s"]),
        )


@dataclass(frozen=True)
class Grant:
    """The portal's leave to start one agent: which generation it is and how it proves that."""

    generation: int
    token: str = field(repr=False)
    portal_url: str


@dataclass(frozen=True)
class AgentStatus:
    """What the engine sees of a node's agent; generation 0: there was none yet."""

    node: str
    generation: int
    alive: bool

    def as_json(self) -> dict[str, Any]:
        """Its row in a heartbeat."""
        return {"node": self.node, "generation": self.generation, "alive": self.alive}


@dataclass(frozen=True)
class Inventory:
    """What a node really has."""

    num_cores: int
    num_gpus: int
    memory_bytes: int


class EngineProblem(Exception):
    """The engine could not do it: a code for the portal's policy and a sentence for people."""

    def __init__(self, code: str, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.node = code, message, node

    def as_json(self) -> dict[str, Any]:
        """For a heartbeat."""
        return {"code": self.code, "message": self.message, "node": self.node}


class Superseded(Exception):
    """A newer agent was started on this node meanwhile: by a flow that has taken over."""


class Engine(Protocol):
    """Local processes, Slurm jobs or Kubernetes pods."""

    def inventory(self) -> Inventory:
        """What there is to run on."""

    def check(self, plan: LaunchPlan, node: NodePart) -> None:
        """Raise ``EngineProblem`` when an agent could not work there."""

    def launch(self, plan: LaunchPlan, node: NodePart, grant: Grant) -> None:
        """Start the node's agent of this generation, unless it runs already. Raises ``Superseded``."""

    def find(self, plan: LaunchPlan, node: str) -> AgentStatus:
        """The node's newest agent, running or not."""

    def status(self, plan: LaunchPlan) -> list[AgentStatus]:
        """Every node's newest agent."""

    def signal(self, plan: LaunchPlan, node: str, number: int) -> bool:
        """Whether the node's agent was there to get the signal."""

    def stop(self, plan: LaunchPlan) -> None:
        """End whatever the attempt has left running."""

    def gone(self, plan: LaunchPlan) -> bool:
        """Whether no process of the attempt is left, proved and not assumed."""

    def cleanup(self, plan: LaunchPlan) -> None:
        """Remove what nobody needs after the end: the agents' tokens first of all."""


def engine_of(name: str) -> Engine:
    """The engine that a plan names."""
    from flows.engines.local import LocalEngine

    engines: dict[str, Callable[[], Engine]] = {"local": LocalEngine}
    if name not in engines:
        raise EngineProblem("engine_unknown", f"The engine {name!r} does not exist. Known: {', '.join(engines)}.")
    return engines[name]()
