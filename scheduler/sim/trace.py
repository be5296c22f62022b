"""Traces of jobs: the schema of public cluster traces, read and checked."""

import csv
import gzip
import io
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, inf, isfinite
from pathlib import Path

from scheduler.snapshot import Node

COLUMNS = ("job_id", "submit_s", "duration_s", "gpus")
# More than any cluster has: a larger number is a slip of the pen.
MOST_GPUS = 10**6


class BadTrace(ValueError):
    """The file is no trace; the message says what is wrong, and in which line."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. `duration_s` is the truth, which only rules that say so may read."""

    id: str
    submit_s: float
    duration_s: float
    num_gpus: int
    team: str = ""
    gpu_types: tuple[str, ...] = ()
    priority: int = 0

    def worker_gpus(self, gpus_per_node: int) -> int:
        """GPUs of one worker: the whole job where a node is large enough, else the largest equal parts."""
        return self.num_gpus if self.num_gpus <= gpus_per_node else gcd(self.num_gpus, gpus_per_node)


def trace_read(path: Path) -> list[TraceJob]:
    """The trace's jobs in order of submission. The file may be gzipped. Raises BadTrace, OSError."""
    raw = path.read_bytes()
    try:
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadTrace(f"It cannot be unpacked as gzip with UTF-8 text: {error}.") from error
    return trace_rows(csv.DictReader(io.StringIO(text)))


def trace_rows(reader: "csv.DictReader[str]") -> list[TraceJob]:
    """The rows of a table with a header line. Raises BadTrace."""
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise BadTrace(f"It has no column {missing[0]}; needed are {', '.join(COLUMNS)}.")
    jobs = [_job(row, line) for line, row in enumerate(reader, start=2)]
    if not jobs:
        raise BadTrace("It holds no job.")
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise BadTrace(f"Job {job.id} is in it twice; each needs an id of its own.")
        seen.add(job.id)
    return sorted(jobs, key=lambda j: j.submit_s)


def _job(row: dict[str, str], line: int) -> TraceJob:
    gpus = _number(row, "gpus", line, least=1, most=MOST_GPUS)
    if gpus != int(gpus):
        raise BadTrace(f"Line {line}: gpus is {row['gpus']}; GPUs are whole.")
    duration = _number(row, "duration_s", line)
    if duration <= 0:
        raise BadTrace(f"Line {line}: duration_s is {row['duration_s']}; a job runs for more than 0 s.")
    job_id = (row["job_id"] or "").strip()
    if not job_id:
        raise BadTrace(f"Line {line}: the job has no job_id.")
    return TraceJob(
        id=job_id,
        submit_s=_number(row, "submit_s", line),
        duration_s=duration,
        num_gpus=int(gpus),
        team=(row.get("team") or "").strip(),
        gpu_types=tuple(part for part in (row.get("gpu_type") or "").split("|") if part),
        priority=int(_number(row, "priority", line, least=-inf)) if (row.get("priority") or "").strip() else 0,
    )


def _number(row: dict[str, str], name: str, line: int, least: float = 0, most: float = inf) -> float:
    text = row[name]
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise BadTrace(f"Line {line}: {name} is {text!r}, which is no number.") from None
    if not isfinite(value) or not least <= value <= most:
        raise BadTrace(f"Line {line}: {name} is {text}, which is out of range.")
    return value


def cluster_nodes(num_nodes: int, gpus_per_node: int, gpu_type: str = "gpu") -> tuple[Node, ...]:
    """That many equal nodes."""
    width = len(str(num_nodes - 1))
    return tuple(Node(f"node-{i:0{width}}", gpu_type, gpus_per_node) for i in range(num_nodes))


def too_large(jobs: Iterable[TraceJob], num_nodes: int, gpus_per_node: int) -> list[TraceJob]:
    """Jobs that no state of the cluster can hold."""
    return [
        job
        for job in jobs
        if job.num_gpus // job.worker_gpus(gpus_per_node)
        > num_nodes * (gpus_per_node // job.worker_gpus(gpus_per_node))
    ]
