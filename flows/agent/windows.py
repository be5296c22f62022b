"""Where a rank's time went, out of its own records: stretches that meet and never overlap. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PHASE_CAUSE = {
    "import": "startup",
    "rendezvous": "startup",
    "build": "startup",
    "restore": "restore",
    "compile": "compile",
    "train": "productive",
    "eval": "productive",
    "save": "checkpoint_stall",
    "teardown": "teardown",
}


@dataclass
class RankTime:
    """The time of one rank of one restart, from its start record on.

    Steps up to ``max_step_done`` were done before the restart: doing them again is recomputed work.
    """

    rank: int
    restart: int
    max_step_done: int = 0
    cursor_ns: int | None = None
    from_ns: int | None = None
    n: int = 0
    first_step: int | None = None
    last_step: int | None = None
    num_steps: int = 0
    tokens: int = 0
    last_done: int = 0
    ended: bool = False
    _phases: list[str] = field(default_factory=list)
    _causes: dict[str, int] = field(default_factory=dict)
    _saving: bool = False

    def begin(self, t_ns: int) -> None:
        """The rank's first instant."""
        if self.cursor_ns is None:
            self.cursor_ns = self.from_ns = t_ns

    def feed(self, record: Mapping[str, Any], least_comm_wait_ns: int | None = None) -> None:
        """Account for the time up to a record. Records of one rank come in the order in which they were written."""
        kind, at = record["k"], int(record["t_ns"])
        if kind == "start":
            self.begin(at)
        if self.cursor_ns is None or self.ended:
            return
        if kind == "step":
            self._step(record, at, least_comm_wait_ns)
        elif kind == "phase":
            self._spend(at, self._cause())
            self._phase(record)
        elif kind == "ckpt" and record.get("event") == "begin" and self._phases[-1:] == ["train"]:
            # The save itself is no phase: the time until the next step's beginning stood still for it.
            self._saving = True
        elif kind == "exit":
            self._spend(at, "recomputed" if record.get("status") == "error" and self._in_step() else self._cause())
            self._phases = ["teardown"]

    def end(self, t_ns: int) -> None:
        """The rank is dead: what it did since its last record came to nothing if it was in a step."""
        if self.cursor_ns is None or self.ended:
            return
        self._spend(t_ns, "recomputed" if self._in_step() else self._cause())
        self.ended = True

    def cut(self) -> dict[str, Any] | None:
        """The window since the last cut, or None when no time has passed."""
        if self.cursor_ns is None or self.from_ns is None or self.cursor_ns <= self.from_ns:
            return None
        window = {
            "rank": self.rank,
            "restart": self.restart,
            "n": self.n,
            "from_ns": self.from_ns,
            "to_ns": self.cursor_ns,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "num_steps": self.num_steps,
            "tokens": self.tokens,
            "seconds": {cause: length / 1e9 for cause, length in self._causes.items() if length},
        }
        self.n += 1
        self.from_ns, self._causes = self.cursor_ns, {}
        self.first_step = self.last_step = None
        self.num_steps = self.tokens = 0
        return window

    def _in_step(self) -> bool:
        return self._phases[-1:] == ["train"]

    def _cause(self) -> str:
        if not self._phases:
            return "startup"
        if self._phases[-1] == "train" and not self.last_done:
            return "startup"
        return PHASE_CAUSE.get(self._phases[-1], "productive")

    def _phase(self, record: Mapping[str, Any]) -> None:
        name = str(record.get("name"))
        if record.get("event") == "begin":
            self._phases.append(name)
        elif name in self._phases:
            while self._phases.pop() != name:
                pass

    def _step(self, record: Mapping[str, Any], at: int, least_comm_wait_ns: int | None) -> None:
        step, duration = int(record["step"]), int(record["dur_ns"])
        begin = max(self.cursor_ns or at, at - duration)
        again = step <= self.max_step_done
        before = "checkpoint_stall" if self._saving else ("productive" if self.last_done else "startup")
        self._spend(begin, "recomputed" if again and before == "productive" else before)
        self._saving = False
        if again:
            self._spend(at, "recomputed")
        else:
            self._split(at, record.get("seg") or {}, least_comm_wait_ns)
        self.last_done = step
        self.first_step = step if self.first_step is None else self.first_step
        self.last_step = step
        self.num_steps += 1
        self.tokens += int(record.get("tokens") or 0)

    def _split(self, at: int, segments: Mapping[str, int], least_comm_wait_ns: int | None) -> None:
        """A step's own segments, scaled to the time that is left for it."""
        length = max(0, at - (self.cursor_ns or at))
        whole = sum(segments.values())
        parts = {"data_wait": int(segments.get("data_wait", 0)), "checkpoint_stall": int(segments.get("checkpoint", 0))}
        if least_comm_wait_ns is not None:
            # The last to arrive waits least; what others wait longer, they wait for it.
            parts["straggler"] = max(0, int(segments.get("comm_wait", 0)) - least_comm_wait_ns)
        if whole > 0:
            for cause, value in parts.items():
                share = min(length * value // whole, at - (self.cursor_ns or at))
                self._spend((self.cursor_ns or at) + share, cause)
        self._spend(at, "productive")

    def _spend(self, until_ns: int, cause: str) -> None:
        if self.cursor_ns is None or until_ns <= self.cursor_ns:
            return
        self._causes[cause] = self._causes.get(cause, 0) + until_ns - self.cursor_ns
        self.cursor_ns = until_ns
