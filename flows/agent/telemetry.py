"""From record files to what is reported: notable records, windows of time, series of numbers, log sizes."""

import math
from dataclasses import dataclass, field
from typing import Any

from flows.agent.plan import AgentPlan
from flows.agent.tail import RecordTail
from flows.agent.windows import RankTime

NOTABLE = frozenset({"start", "phase", "ckpt", "eval", "config", "exit", "group"})
STEP_SERIES = ("loss", "grad_norm", "lr")


@dataclass
class Batch:
    """What is new since the last one."""

    records: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    points: dict[tuple[str, int, int], list[list[Any]]] = field(default_factory=dict)
    urgent: bool = False

    def add_point(self, name: str, rank: int, restart: int, step: int, t_ns: int, value: Any) -> None:
        """One value of one series; what is no finite number is left out."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            self.points.setdefault((name, rank, restart), []).append([step, t_ns, float(value)])

    def as_json(self) -> dict[str, Any]:
        """The fields of a report."""
        series = [
            {"name": name, "rank": rank, "restart": restart, "points": points}
            for (name, rank, restart), points in self.points.items()
        ]
        return {"records": self.records, "windows": self.windows, "series": series}

    def __bool__(self) -> bool:
        return bool(self.records or self.windows or self.points)


class Telemetry:
    """Reads the record files of one restart's ranks on this node."""

    def __init__(self, plan: AgentPlan, restart: int, max_step_done: int) -> None:
        self.plan, self.restart = plan, restart
        self.tails = {
            rank: RecordTail(plan.rank_folder(restart, rank) / "records.jsonl") for rank in plan.ranks
        }
        self.times = {rank: RankTime(rank, restart, max_step_done) for rank in plan.ranks}
        self.log_sizes: dict[str, int] = {}

    def read(self) -> Batch:
        """What the ranks have written since the last call."""
        batch = Batch()
        fresh = {rank: tail.read() for rank, tail in self.tails.items()}
        least = _least_comm_wait(fresh)
        for rank, records in fresh.items():
            for record in records:
                step = record.get("step")
                waited = least.get(step) if isinstance(step, int) else None
                self._take(batch, rank, record, waited)
        return batch

    def cut(self, batch: Batch) -> None:
        """Close the windows of all ranks at their last record."""
        for time in self.times.values():
            window = time.cut()
            if window is not None:
                batch.windows.append(window)

    def logs(self) -> list[dict[str, Any]]:
        """Log files whose size has changed."""
        found = []
        for rank in self.plan.ranks:
            for stream in ("stdout", "stderr"):
                path = self.plan.rank_folder(self.restart, rank) / f"{stream}.log"
                try:
                    size = path.stat().st_size
                except OSError:
                    continue
                name = str(path.relative_to(self.plan.folder.parent.parent))
                if self.log_sizes.get(name) != size:
                    self.log_sizes[name] = size
                    row = {"rank": rank, "restart": self.restart, "stream": stream, "path": name, "bytes": size}
                    found.append(row)
        return found

    def _take(self, batch: Batch, rank: int, record: dict[str, Any], least_comm_wait_ns: int | None) -> None:
        if not isinstance(record.get("t_ns"), int):
            return
        kind, at, step = record["k"], record["t_ns"], record.get("step")
        self.times[rank].feed(record, least_comm_wait_ns)
        if kind in NOTABLE:
            batch.records.append({**record, "rank": rank, "restart": self.restart})
            batch.urgent = batch.urgent or kind in ("start", "ckpt", "exit", "config")
        if rank != 0 or not isinstance(step, int):
            return
        if kind == "step":
            duration_s = record["dur_ns"] / 1e9
            for name in STEP_SERIES:
                batch.add_point(name, rank, self.restart, step, at, record.get(name))
            batch.add_point("step_s", rank, self.restart, step, at, duration_s)
            if duration_s > 0 and record.get("tokens"):
                rate = record["tokens"] * self.plan.world_size / duration_s
                batch.add_point("tokens_per_s", rank, self.restart, step, at, rate)
        elif kind == "eval":
            batch.add_point("val_loss", rank, self.restart, step, at, record.get("val_loss"))
        elif kind == "metric" and isinstance(record.get("values"), dict):
            for name, value in record["values"].items():
                batch.add_point(str(name)[:100], rank, self.restart, step, at, value)


def _least_comm_wait(fresh: dict[int, list[dict[str, Any]]]) -> dict[int, int]:
    """By step, the shortest wait among this node's ranks; only of steps that all of them have done."""
    waits: dict[int, list[int]] = {}
    for records in fresh.values():
        for record in records:
            if record["k"] == "step" and isinstance(record.get("step"), int):
                waits.setdefault(record["step"], []).append(int((record.get("seg") or {}).get("comm_wait", 0)))
    return {step: min(values) for step, values in waits.items() if len(values) == len(fresh)}
