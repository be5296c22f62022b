"""From record files to what is reported: notable records, windows of time, series of numbers."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from flows.agent.clean import is_finite, record_clean, record_fit
from flows.agent.plan import AgentPlan
from flows.agent.tail import RecordTail
from flows.agent.windows import RankTime

NOTABLE = frozenset({"start", "phase", "ckpt", "eval", "config", "exit", "group"})
URGENT = frozenset({"start", "ckpt", "eval", "config", "exit"})
STEP_SERIES = ("loss", "grad_norm", "lr")
MAX_RECORDS = 2000
MAX_POINTS = 500
MAX_SERIES = 200
# A step is booked when all ranks here have reported it, or when this much time has passed.
HOLD_S = 2.0
MAX_HELD = 2000


@dataclass
class Batch:
    """What is new since the last one."""

    records: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    points: dict[tuple[str, int, int], list[list[Any]]] = field(default_factory=dict)
    urgent: bool = False
    num_dropped: int = 0

    def add_record(self, record: dict[str, Any]) -> None:
        """One notable record; a program that writes too many loses some, and that is counted."""
        if len(self.records) >= MAX_RECORDS and record["k"] not in ("exit", "ckpt"):
            self.num_dropped += 1
            return
        self.records.append(record_fit(record))
        self.urgent = self.urgent or record["k"] in URGENT

    def add_point(self, name: str, rank: int, restart: int, step: int, t_ns: int, value: Any) -> None:
        """One value of one series; what is no finite number is left out."""
        key = (name, rank, restart)
        if is_finite(value) and (key in self.points or len(self.points) < MAX_SERIES):
            self.points.setdefault(key, []).append([step, t_ns, float(value)])

    def as_json(self) -> dict[str, Any]:
        """The fields of a report; long series are thinned, their last point stays."""
        series = [
            {"name": name, "rank": rank, "restart": restart, "points": _thin(points)}
            for (name, rank, restart), points in self.points.items()
        ]
        return {"records": self.records, "windows": self.windows, "series": series}

    def __bool__(self) -> bool:
        return bool(self.records or self.windows or self.points)


def _thin(points: list[list[Any]]) -> list[list[Any]]:
    stride = -(-len(points) // MAX_POINTS)
    return points[::-1][::stride][::-1]


class Telemetry:
    """Reads the record files of one restart's ranks on this node."""

    def __init__(self, plan: AgentPlan, restart: int, max_step_done: int) -> None:
        self.plan, self.restart = plan, restart
        self.tails = {r: RecordTail(plan.rank_folder(restart, r) / "records.jsonl") for r in plan.ranks}
        self.times = {r: RankTime(r, restart, max_step_done) for r in plan.ranks}
        # Read and not yet booked: a record, the offset behind it, and when it was read (monotonic).
        self._held: dict[int, deque[tuple[dict[str, Any], int, float]]] = {r: deque() for r in plan.ranks}
        self._booked = dict.fromkeys(plan.ranks, 0)
        self._waits: dict[int, dict[int, int]] = {}

    def as_json(self) -> dict[str, Any]:
        """What another agent needs to go on exactly here."""
        return {
            "restart": self.restart,
            "offsets": {str(r): offset for r, offset in self._booked.items()},
            "times": [t.as_json() for t in self.times.values()],
        }

    @classmethod
    def from_json(cls, plan: AgentPlan, data: Mapping[str, Any]) -> Self:
        """Where an agent before has left off."""
        made = cls(plan, int(data["restart"]), 0)
        for row in data["times"]:
            time_ = RankTime.from_json(row)
            made.times[time_.rank] = time_
        for rank in plan.ranks:
            made.tails[rank].offset = made._booked[rank] = int(data["offsets"][str(rank)])
        return made

    def read(self, batch: Batch, *, now_ns: int, writing: frozenset[int]) -> None:
        """Book what the ranks have written since the last call. ``writing``: ranks that may still write."""
        now = time.monotonic()
        for rank, tail in self.tails.items():
            for raw, offset in tail.read():
                record = record_clean(raw, now_ns)
                if record is None:
                    continue
                self._held[rank].append((record, offset, now))
                if record["k"] == "step":
                    wait = (record.get("seg") or {}).get("comm_wait", 0)
                    self._waits.setdefault(record["step"], {})[rank] = wait
        for rank in self.times:
            self._book(batch, rank, now, writing)
        while len(self._waits) > MAX_HELD:
            del self._waits[min(self._waits)]

    def drain(self, batch: Batch, rank: int, *, now_ns: int) -> None:
        """Book everything that a rank has ever written: it is dead and writes no more."""
        before = -1
        while self.tails[rank].offset != before:
            before = self.tails[rank].offset
            self.read(batch, now_ns=now_ns, writing=frozenset(self.times) - {rank})
        self._book(batch, rank, float("inf"), frozenset())

    def cut(self, batch: Batch) -> None:
        """Close the windows of all ranks at their last record."""
        for time_ in self.times.values():
            window = time_.cut()
            if window is not None:
                batch.windows.append(window)

    def _book(self, batch: Batch, rank: int, now: float, writing: frozenset[int]) -> None:
        held = self._held[rank]
        while held:
            record, offset, read_at = held[0]
            least = None
            if record["k"] == "step":
                waits = self._waits.get(record["step"], {})
                complete = not (writing - waits.keys())
                if not complete and now - read_at < HOLD_S and len(held) < MAX_HELD:
                    return
                if complete and len(waits) > 1:
                    least = min(waits.values())
            held.popleft()
            self._booked[rank] = offset
            self._take(batch, rank, record, least)

    def _take(self, batch: Batch, rank: int, record: dict[str, Any], least_comm_wait_ns: int | None) -> None:
        kind, at, step = record["k"], record["t_ns"], record.get("step")
        self.times[rank].feed(record, least_comm_wait_ns)
        if kind in NOTABLE:
            batch.add_record({**record, "rank": rank, "restart": self.restart})
        if rank != 0 or step is None:
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
                batch.add_point(str(name)[:100] or "value", rank, self.restart, step, at, value)
