"""What an agent is told when it is started: read once, from its folder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.files import read_json


@dataclass(frozen=True)
class AgentPlan:
    """The node's part of one attempt (``launch.json`` and ``token`` of docs/protocol.md)."""

    folder: Path
    attempt: str
    job: str
    node: str
    node_rank: int
    num_nodes: int
    ranks_per_node: int
    generation: int
    portal_url: str
    token: str = field(repr=False)
    address: str
    gpu_indices: tuple[int, ...]
    threads_per_rank: int
    checkpoint_dir: Path
    cache_dir: Path
    workload: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def run_dir(self) -> Path:
        """The attempt's folder: log paths are told relative to it."""
        return self.folder.parent.parent

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.num_nodes * self.ranks_per_node

    @property
    def ranks(self) -> range:
        """Global numbers of this node's ranks."""
        first = self.node_rank * self.ranks_per_node
        return range(first, first + self.ranks_per_node)

    def rank_folder(self, restart: int, rank: int) -> Path:
        """Where a rank's records and logs are."""
        return self.folder / f"restart_{restart:03d}" / f"rank_{rank}"

    def control_path(self, restart: int) -> Path:
        """Where the wishes to this node's ranks are written."""
        return self.folder / f"restart_{restart:03d}" / "control.jsonl"


class BadPlan(Exception):
    """The folder does not hold what an agent needs."""


def plan_read(folder: Path) -> AgentPlan:
    """The plan in a node folder."""
    data = read_json(folder / "launch.json")
    try:
        token = (folder / "token").read_text().strip()
    except OSError:
        raise BadPlan(f"{folder} holds no token that this user can read.") from None
    if data is None:
        raise BadPlan(f"{folder} holds no launch.json.")
    try:
        return AgentPlan(
            folder=folder,
            attempt=str(data["attempt"]),
            job=str(data["job"]),
            node=str(data["node"]),
            node_rank=int(data["node_rank"]),
            num_nodes=int(data["num_nodes"]),
            ranks_per_node=int(data["ranks_per_node"]),
            generation=int(data["generation"]),
            portal_url=str(data["portal_url"]),
            token=token,
            address=str(data["address"]),
            gpu_indices=tuple(int(i) for i in data["gpu_indices"]),
            threads_per_rank=int(data["threads_per_rank"]),
            checkpoint_dir=Path(data["checkpoint_dir"]),
            cache_dir=Path(data["cache_dir"]),
            workload=dict(data["workload"]),
            environment={str(k): str(v) for k, v in data["environment"].items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadPlan(f"launch.json in {folder} lacks or misspells {error}.") from None
