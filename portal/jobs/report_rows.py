"""The rows that an agent's report becomes. Everything here may be sent twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from portal.jobs.models import Attempt, Checkpoint, Rank, Restart
from portal.jobs.telemetry import LogFile, MetricChunk, RankWindow
from portal.times import from_ns

# A name that a user's script makes up must not become an unbounded number of series.
MAX_SERIES_PER_JOB = 200
CAUSES = (
    "productive",
    "data_wait",
    "straggler",
    "checkpoint_stall",
    "compile",
    "restore",
    "startup",
    "teardown",
    "recomputed",
)


@dataclass(frozen=True)
class Steps:
    """How far the ranks of a report have come."""

    max_step: int | None = None
    last_step_at: datetime | None = None


def ranks_store(attempt: Attempt, node: str, ranks: Sequence[Mapping[str, Any]], tails: Mapping[str, str]) -> None:
    """One row per rank of the current restart; reports about older restarts fill in their ends."""
    for row in ranks:
        restart = int(row.get("restart", attempt.restart))
        values: dict[str, Any] = {
            "node_id": node,
            "local_rank": row["local_rank"],
            "pid": row.get("pid"),
            "state": row["state"],
        }
        if row["state"] == "exited":
            values |= {
                "exit_code": row.get("exit_code"),
                "signal": str(row.get("signal") or ""),
                "ended_at": from_ns(row["t_ns"]),
                "stderr_tail": tails.get(str(row["rank"]), "")[-8192:].replace("\0", ""),
            }
        else:
            values["started_at"] = from_ns(row["t_ns"])
        Rank.objects.update_or_create(attempt=attempt, restart=restart, rank=row["rank"], defaults=values)


def records_store(attempt: Attempt, node: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Starts, checkpoints, exits and facts out of the ranks' own records."""
    for record in records:
        kind = record.get("k")
        if kind == "start":
            at = from_ns(record["t_ns"])
            Restart.objects.filter(
                Q(first_rank_at__isnull=True) | Q(first_rank_at__gt=at),
                attempt=attempt,
                number=record["restart"],
            ).update(first_rank_at=at)
        elif kind == "exit":
            Rank.objects.filter(attempt=attempt, restart=record["restart"], rank=record["rank"]).update(
                exit_record={k: record.get(k) for k in ("status", "step", "code", "error", "t_ns")}
            )
        elif kind == "ckpt":
            _checkpoint_store(attempt, record)
        elif kind == "config" and record["rank"] == 0:
            attempt.facts = {k: v for k, v in record.items() if k not in ("k", "rank", "restart", "t_ns")}
            Attempt.objects.filter(pk=attempt.pk).update(facts=attempt.facts)


def _checkpoint_store(attempt: Attempt, record: Mapping[str, Any]) -> None:
    """Follow a checkpoint from its first byte to durable, and what is found out about it later."""
    event, path = record.get("event"), str(record.get("path") or "")
    if event == "restored":
        Restart.objects.filter(attempt=attempt, number=record["restart"]).update(resumed_step=record.get("step"))
        Checkpoint.objects.filter(job_id=attempt.job_id, path=path).update(state=Checkpoint.State.VERIFIED)
        return
    states = {
        "begin": Checkpoint.State.WRITING,
        "durable": Checkpoint.State.DURABLE,
        "verified": Checkpoint.State.VERIFIED,
        "failed": Checkpoint.State.FAILED,
        "corrupt": Checkpoint.State.CORRUPT,
        "deleted": Checkpoint.State.DELETED,
    }
    if event not in states or not path or (record["rank"] != 0 and event == "begin"):
        return
    values: dict[str, Any] = {"state": states[event], "note": str(record.get("reason") or "")[:500]}
    if event in ("begin", "durable"):
        values |= {"attempt": attempt, "step": record["step"], "written_at": from_ns(record["t_ns"])}
    for name, key, scale in (("stall_s", "stall_ns", 1e9), ("duration_s", "dur_ns", 1e9)):
        if record.get(key) is not None:
            values[name] = record[key] / scale
    for name, key in (("num_bytes", "bytes"), ("digest", "digest"), ("world_size", "world_size")):
        if record.get(key) is not None:
            values[name] = record[key]
    rows = Checkpoint.objects.filter(job_id=attempt.job_id, path=path)
    if event == "begin":
        # A record of a save that has ended since must not reopen it.
        if not rows.exclude(state__in=("failed", "deleted", "writing")).exists():
            Checkpoint.objects.update_or_create(job_id=attempt.job_id, path=path, defaults=values)
    elif event == "durable":
        Checkpoint.objects.update_or_create(job_id=attempt.job_id, path=path, defaults=values)
    else:
        rows.update(**values)


def telemetry_store(
    attempt: Attempt,
    windows: Sequence[Mapping[str, Any]],
    series: Sequence[Mapping[str, Any]],
    logs: Sequence[Mapping[str, Any]],
) -> Steps:
    """Windows, points and log sizes; how far the steps have come."""
    RankWindow.objects.bulk_create(
        [
            RankWindow(
                attempt=attempt,
                rank=w["rank"],
                restart=w["restart"],
                n=w["n"],
                from_ns=w["from_ns"],
                to_ns=w["to_ns"],
                first_step=w.get("first_step"),
                last_step=w.get("last_step"),
                num_steps=w.get("num_steps", 0),
                tokens=w.get("tokens", 0),
                seconds={cause: float(w["seconds"].get(cause, 0.0)) for cause in CAUSES},
            )
            for w in windows
        ],
        ignore_conflicts=True,
    )
    last = max((w["last_step"] for w in windows if w.get("last_step") is not None), default=None)
    last_at: datetime | None = None
    known = set(MetricChunk.objects.filter(job_id=attempt.job_id).values_list("name", flat=True).distinct())
    chunks = []
    for item in series:
        points = [p for p in item["points"] if p[2] is not None]
        name = str(item["name"])[:100]
        if not points or (name not in known and len(known) >= MAX_SERIES_PER_JOB):
            continue
        known.add(name)
        restart = int(item.get("restart", attempt.restart))
        chunks.append(
            MetricChunk(
                job_id=attempt.job_id,
                attempt=attempt,
                restart=restart,
                name=name,
                rank=item.get("rank", 0),
                first_step=points[0][0],
                last_step=points[-1][0],
                points=points,
            )
        )
        if name != "val_loss":
            _first_step_note(attempt, restart, points[0])
            last = max(last or 0, points[-1][0])
            last_at = max(last_at, from_ns(points[-1][1])) if last_at else from_ns(points[-1][1])
    MetricChunk.objects.bulk_create(chunks)
    for item in logs:
        LogFile.objects.update_or_create(
            attempt=attempt,
            path=str(item["path"])[:300],
            defaults={
                "rank": item["rank"],
                "restart": item["restart"],
                "stream": str(item["stream"])[:10],
                "num_bytes": item["bytes"],
            },
        )
    return Steps(last, last_at)


def _first_step_note(attempt: Attempt, restart: int, point: Sequence[Any]) -> None:
    """The first step that a restart has done, and when it was done."""
    if point[0] >= 1:
        Restart.objects.filter(attempt=attempt, number=restart, first_step_at__isnull=True).update(
            first_step=point[0], first_step_at=from_ns(point[1])
        )
