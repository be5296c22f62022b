"""The demo's report: every figure out of REST answers, and what is not as it was promised."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

SEEN_WITHIN_S = 2.0
NEXT_STEP_WITHIN_S = 10.0
FIRST_RANK_WITHIN_S = 8.0
IDLE_WITHIN_MB = 700.0


@dataclass
class DemoFacts:
    """The answers that the report is made of."""

    job: dict[str, Any]
    timeline: dict[str, Any]
    series: dict[str, list[list[float]]]
    checkpoints: list[dict[str, Any]]
    usage: dict[str, Any]
    killed: dict[str, Any]
    second: dict[str, Any]
    idle_mb: float = 0.0
    ready_s: float = 0.0
    total_s: float = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """What the trainer said about itself."""
        found: dict[str, Any] = self.job["attempts"][-1]["facts"]
        return found

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """Every gang of the job, in order."""
        found: list[dict[str, Any]] = self.timeline["restarts"]
        return found

    @property
    def losses(self) -> tuple[float, float]:
        """First and last training loss."""
        points = self.series["loss"]
        return points[0][3], points[-1][3]

    @property
    def validation_losses(self) -> tuple[float, float]:
        """First and last validation loss."""
        points = self.series["val_loss"]
        return points[0][3], points[-1][3]

    @property
    def seen_s(self) -> float:
        """From the kill to the portal's knowing of it."""
        return _at(self.restarts[0]["seen_at"]) - float(self.killed["at"])

    @property
    def next_step_s(self) -> float:
        """From the kill to the first new step."""
        return _at(self.restarts[1]["first_step_at"]) - float(self.killed["at"])

    @property
    def start_parts(self) -> dict[str, float]:
        """Seconds of each part between the submission and the first rank's code."""
        line = self.timeline
        marks = ("submitted_at", "decided_at", "flow_started_at", "agent_started_at", "first_rank_at")
        names = ("decision", "Prefect", "agents", "ranks")
        times = [_at(line[mark]) for mark in marks]
        return {name: times[i + 1] - times[i] for i, name in enumerate(names)}

    @property
    def steps_recomputed(self) -> int:
        """Steps that were done twice."""
        return sum(int(r["steps_recomputed"]) for r in self.restarts)

    def as_json(self) -> dict[str, Any]:
        """The figures alone."""
        return {
            "job_state": self.job["state"],
            "second_job_state": self.second["state"],
            "loss": self.losses,
            "validation_loss": self.validation_losses,
            "corpus": self.facts.get("corpus"),
            "corpus_licence": self.facts.get("corpus_licence"),
            "corpus_bytes": self.facts.get("corpus_bytes"),
            "killed_rank": self.killed["rank"],
            "seen_s": round(self.seen_s, 3),
            "next_step_s": round(self.next_step_s, 3),
            "start_parts_s": {name: round(value, 3) for name, value in self.start_parts.items()},
            "submit_to_first_rank_s": round(sum(self.start_parts.values()), 3),
            "steps_recomputed": self.steps_recomputed,
            "usage": self.usage,
            "idle_mb": round(self.idle_mb, 1),
            "ready_s": round(self.ready_s, 1),
            "total_s": round(self.total_s, 1),
        }


def _at(text: str | None) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp() if text else float("nan")


def faults_of(facts: DemoFacts) -> list[str]:
    """What did not happen as promised, each in a sentence; empty when all did."""
    found = []
    if facts.job["state"] != "succeeded" or facts.second["state"] != "succeeded":
        found.append(f"the jobs ended {facts.job['state']} and {facts.second['state']}")
    if len(facts.restarts) < 2:
        return [*found, "the killed rank led to no restart"]
    for name, (first, last) in {"training": facts.losses, "validation": facts.validation_losses}.items():
        if not last < first:
            found.append(f"the {name} loss did not fall ({first:.3f} to {last:.3f})")
    if not facts.seen_s <= SEEN_WITHIN_S:
        found.append(f"the killed rank was seen after {facts.seen_s:.2f} s (promised: {SEEN_WITHIN_S:.0f} s)")
    if not facts.next_step_s <= NEXT_STEP_WITHIN_S:
        found.append(f"the next step came after {facts.next_step_s:.1f} s (promised: {NEXT_STEP_WITHIN_S:.0f} s)")
    if facts.usage["booked_gpu_s"] != facts.usage["held_gpu_s"]:
        found.append("the ledger does not equal what was held")
    for row in facts.usage["items"]:
        if abs(sum(row["shares_percent"].values()) - 100.0) > 0.05:
            found.append(f"the causes of team {row['key']} do not sum to 100 %")
    return found


def report_text(facts: DemoFacts) -> str:
    """The report as a person reads it."""
    told = facts.facts
    first, last = facts.losses
    val_first, val_last = facts.validation_losses
    parts = facts.start_parts
    lines = [
        "",
        "── What was trained " + "─" * 58,
        f"  corpus            {told['corpus']}, {told['corpus_bytes'] / 1e6:.1f} MB, licence {told['corpus_licence']}",
        f"  model             {told['num_parameters']:,} parameters, {told['strategy']}, 2 nodes × 2 ranks",
        f"  training loss     {first:.3f} → {last:.3f}",
        f"  validation loss   {val_first:.3f} → {val_last:.3f}  (text that was held out)",
        f"  checkpoints       {sum(c['state'] in ('durable', 'verified') for c in facts.checkpoints)} kept, "
        f"{sum(c['state'] == 'verified' for c in facts.checkpoints)} verified by reading them back",
        "── How it started " + "─" * 60,
        f"  submit → first rank's code   {sum(parts.values()):.2f} s"
        + (f"   (more than the {FIRST_RANK_WITHIN_S:.0f} s aimed at)" if sum(parts.values()) > FIRST_RANK_WITHIN_S else ""),
        "                    " + " · ".join(f"{name} {value:.2f} s" for name, value in parts.items()),
        "── What the killed rank cost " + "─" * 49,
        f"  killed            rank {facts.killed['rank']} on {facts.killed['node']}, SIGKILL",
        f"  seen after        {facts.seen_s:.2f} s",
        f"  next new step     {facts.next_step_s:.2f} s after the kill",
        f"  done again        {facts.steps_recomputed} steps, from the checkpoint of step "
        f"{facts.restarts[1]['resumed_step'] if len(facts.restarts) > 1 else '–'}",
        "── What the GPUs were used for " + "─" * 47,
        *usage_lines(facts.usage),
        "── The platform " + "─" * 62,
        f"  at rest           {facts.idle_mb:.0f} MB resident in all",
        f"  time              {facts.ready_s:.0f} s until ready, {facts.total_s:.0f} s in all",
    ]
    return "\n".join(lines)


def usage_lines(usage: dict[str, Any]) -> list[str]:
    """The ledger per team as a table with bars; each column sums to 100.0 %."""
    rows = usage["items"]
    causes = [c for c in rows[0]["causes"] if any(row["causes"][c] > 0 for row in rows)]
    lines = ["  " + "cause".ljust(18) + "".join(str(row["key"]).rjust(12) for row in rows)]
    for cause in causes:
        shares = [row["shares_percent"][cause] for row in rows]
        bar = "█" * round(max(shares) / 4)
        lines.append("  " + cause.replace("_", " ").ljust(18) + "".join(f"{s:10.1f} %" for s in shares) + "  " + bar)
    sums = [sum(row["shares_percent"].values()) for row in rows]
    lines.append("  " + "sum".ljust(18) + "".join(f"{s:10.1f} %" for s in sums))
    lines.append("  " + "held GPU-seconds".ljust(18) + "".join(f"{row['gpu_s']:12.1f}" for row in rows))
    return lines
