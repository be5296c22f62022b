"""The demo's report: every figure out of REST answers, and what is not as it was promised. Pure."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

SEEN_WITHIN_S = 2.0
NEXT_STEP_WITHIN_S = 10.0
FIRST_RANK_WITHIN_S = 8.0
IDLE_WITHIN_MB = 700.0
LEAST_CORPUS_BYTES = 4_000_000
NOT_A_NUMBER = float("nan")


@dataclass
class DemoFacts:
    """The answers that the report is made of. A figure that they do not hold is not a number."""

    job: dict[str, Any]
    timeline: dict[str, Any]
    series: dict[str, list[list[float]]]
    checkpoints: list[dict[str, Any]]
    usage: dict[str, Any]
    killed: dict[str, Any]
    second: dict[str, Any]
    idle_mb: float = NOT_A_NUMBER
    ready_s: float = NOT_A_NUMBER
    total_s: float = NOT_A_NUMBER

    @property
    def facts(self) -> dict[str, Any]:
        """What the trainer said about itself."""
        return dict((self.job.get("attempts") or [{}])[-1].get("facts") or {})

    @property
    def broken(self) -> dict[str, Any]:
        """The gang that lost the killed rank; empty when no gang broke after the kill."""
        return next((r for r in self._restarts if _at(r["rank_died_at"]) >= self.killed["at"] - 1.0), {})

    @property
    def resumed(self) -> dict[str, Any]:
        """The gang that came after the broken one."""
        rows = self._restarts
        place = next((i for i, row in enumerate(rows) if row is self.broken or row == self.broken), len(rows))
        return rows[place + 1] if place + 1 < len(rows) else {}

    @property
    def _restarts(self) -> list[dict[str, Any]]:
        return list(self.timeline.get("restarts", ()))

    def ends_of(self, name: str) -> tuple[float, float]:
        """First and last value of a series."""
        points = self.series.get(name) or [[NOT_A_NUMBER] * 5]
        return points[0][3], points[-1][3]

    @property
    def seen_s(self) -> float:
        """From the kill to the portal's knowing of it."""
        return _at(self.broken.get("seen_at")) - float(self.killed["at"])

    @property
    def next_step_s(self) -> float:
        """From the kill to the first new step."""
        return _at(self.resumed.get("first_step_at")) - float(self.killed["at"])

    @property
    def start_parts(self) -> dict[str, float]:
        """Seconds of each part between the submission and the first rank's code."""
        marks = ("submitted_at", "decided_at", "flow_started_at", "agent_started_at", "first_rank_at")
        names = ("decision", "Prefect", "agents", "ranks")
        times = [_at(self.timeline.get(mark)) for mark in marks]
        return {name: times[i + 1] - times[i] for i, name in enumerate(names)}

    @property
    def steps_recomputed(self) -> int:
        """Steps that were done twice."""
        return sum(int(row["steps_recomputed"]) for row in self._restarts)

    def as_json(self) -> dict[str, Any]:
        """The figures alone; what is not a number is null."""
        told = self.facts
        return {
            "job_state": self.job["state"],
            "second_job_state": self.second["state"],
            "loss": [_number(v, 6) for v in self.ends_of("loss")],
            "validation_loss": [_number(v, 6) for v in self.ends_of("val_loss")],
            "corpus": told.get("corpus"),
            "corpus_licence": told.get("corpus_licence"),
            "corpus_bytes": told.get("corpus_bytes"),
            "killed_rank": self.killed["rank"],
            "cause": self.broken.get("cause"),
            "seen_s": _number(self.seen_s),
            "next_step_s": _number(self.next_step_s),
            "start_parts_s": {name: _number(value) for name, value in self.start_parts.items()},
            "submit_to_first_rank_s": _number(sum(self.start_parts.values())),
            "steps_recomputed": self.steps_recomputed,
            "usage": self.usage,
            "idle_mb": _number(self.idle_mb, 1),
            "ready_s": _number(self.ready_s, 1),
            "total_s": _number(self.total_s, 1),
        }


def _at(text: str | None) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp() if text else NOT_A_NUMBER


def _number(value: float, digits: int = 3) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def faults_of(facts: DemoFacts) -> list[str]:
    """What did not happen as promised, each in a sentence; empty when all did."""
    # A figure that is missing is not a number, and compares as false: so each line asks for what is promised.
    found = []
    for job in (facts.job, facts.second):
        if job["state"] != "succeeded":
            found.append(f"{job['name']} ended {job['state']} ({(job['end_cause'] or {}).get('code', 'no cause')})")
    for name, words in (("loss", "training"), ("val_loss", "validation")):
        first, last = facts.ends_of(name)
        if not last < first:
            found.append(f"the {words} loss did not fall ({first:.3f} to {last:.3f})")
    if not facts.facts.get("corpus_bytes", 0) >= LEAST_CORPUS_BYTES:
        found.append(f"the corpus has less than {LEAST_CORPUS_BYTES / 1e6:.0f} MB of text")
    if not facts.resumed:
        found.append("the killed rank led to no restart")
    else:
        if not facts.seen_s <= SEEN_WITHIN_S:
            found.append(f"the killed rank was seen after {facts.seen_s:.2f} s (promised: {SEEN_WITHIN_S:.0f} s)")
        if not facts.next_step_s <= NEXT_STEP_WITHIN_S:
            found.append(f"the next step came after {facts.next_step_s:.1f} s (promised: {NEXT_STEP_WITHIN_S:.0f} s)")
        if not (facts.resumed["resumed_step"] or 0) > 0:
            found.append("the job started over instead of going on from a checkpoint")
    return found + _ledger_faults(facts.usage)


def _ledger_faults(usage: dict[str, Any]) -> list[str]:
    found = []
    if not 0 < usage["booked_gpu_s"] == usage["held_gpu_s"]:
        found.append(f"the ledger books {usage['booked_gpu_s']:.3f} GPU-seconds of {usage['held_gpu_s']:.3f} held")
    if len(usage["items"]) < 2:
        found.append("the ledger does not show two teams")
    for row in usage["items"]:
        if round(sum(row["shares_percent"].values()), 1) != 100.0:
            found.append(f"the causes of team {row['key']} do not sum to 100.0 %")
    return found


def report_text(facts: DemoFacts) -> str:
    """The report as a person reads it."""
    told, parts = facts.facts, facts.start_parts
    first, last = facts.ends_of("loss")
    val_first, val_last = facts.ends_of("val_loss")
    start_s = sum(parts.values())
    kept = sum(c["state"] in ("durable", "verified") for c in facts.checkpoints)
    verified = sum(c["state"] == "verified" for c in facts.checkpoints)
    cause = facts.broken.get("cause") or {}
    lines = [
        "",
        _title("What was trained"),
        _line("corpus", f"{told.get('corpus')}, {told.get('corpus_bytes', 0) / 1e6:.1f} MB"),
        _line("licence", str(told.get("corpus_licence"))),
        _line("model", f"{told.get('num_parameters', 0):,} parameters, {told.get('strategy')}, 2 nodes × 2 ranks"),
        _line("training loss", f"{first:.3f} → {last:.3f}"),
        _line("validation loss", f"{val_first:.3f} → {val_last:.3f}  (text that was held out)"),
        _line("checkpoints", f"{kept} kept, {verified} verified by reading back"),
        _title("How it started"),
        _line(
            "submit → rank", f"{start_s:.2f} s until the first rank's code ran" + _beyond(start_s, FIRST_RANK_WITHIN_S)
        ),
        _line("", " · ".join(f"{name} {value:.2f} s" for name, value in parts.items())),
        _title("What the killed rank cost"),
        _line("killed", f"rank {facts.killed['rank']} on {facts.killed['node']}, with SIGKILL"),
        _line("seen", f"after {facts.seen_s:.2f} s, as {cause.get('class')}/{cause.get('code')}"),
        _line("next new step", f"{facts.next_step_s:.2f} s after the kill"),
        _line(
            "done again",
            f"{facts.steps_recomputed} steps, from the checkpoint of step {facts.resumed.get('resumed_step')}",
        ),
        _title("What the GPUs were used for"),
        *usage_lines(facts.usage),
        _title("The platform"),
        _line("at rest", f"{facts.idle_mb:.0f} MB resident in all" + _beyond(facts.idle_mb, IDLE_WITHIN_MB, "MB")),
        _line("time", f"{facts.ready_s:.0f} s until ready, {facts.total_s:.0f} s in all"),
    ]
    return "\n".join(lines)


def _title(text: str) -> str:
    return f"── {text} " + "─" * (74 - len(text))


def _line(name: str, text: str) -> str:
    return f"  {name:<18}{text}"


def _beyond(value: float, aim: float, unit: str = "s") -> str:
    return "" if value <= aim else f"  (more than the {aim:.0f} {unit} aimed at)"


def usage_lines(usage: dict[str, Any]) -> list[str]:
    """The ledger per team as a table with bars; each column sums to 100.0 %."""
    rows = usage["items"]
    if not rows:
        return [_line("", "nothing is booked")]
    causes = [c for c in rows[0]["causes"] if any(row["causes"][c] > 0 for row in rows)]
    lines = [_line("cause", "".join(str(row["key"]).rjust(12) for row in rows))]
    for cause in causes:
        shares = [row["shares_percent"][cause] for row in rows]
        bar = "█" * round(max(shares) / 4)
        lines.append(_line(cause.replace("_", " "), "".join(f"{s:10.1f} %" for s in shares) + "  " + bar))
    sums = [sum(row["shares_percent"].values()) for row in rows]
    lines.append(_line("sum", "".join(f"{s:10.1f} %" for s in sums)))
    lines.append(_line("held GPU-seconds", "".join(f"{row['gpu_s']:12.1f}" for row in rows)))
    return lines
