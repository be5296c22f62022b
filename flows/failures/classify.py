"""From an ended gang to its cause: what the evidence says, weighed, and the rank where it began. Pure."""

from dataclasses import replace

from flows.failures.case import Case, Cause, log_of_lines
from flows.failures.causes import conclude
from flows.failures.findings import read_logs


def classify(case: Case) -> Cause:
    """The cause. Uncertain ends get the action that costs least when wrong: one more try."""
    case = with_tails(case)
    return conclude(case, read_logs(case))


def with_tails(case: Case) -> Case:
    """Exit records and last lines of ranks as logs, when the case brings none of its own."""
    logs = list(case.logs)
    known = {log.source for log in logs}
    for rank in case.ranks:
        source = f"rank {rank.rank} stderr"
        lines = rank.log_tail.splitlines()
        error = (rank.record or {}).get("error") or {}
        if error:
            lines += [
                "Traceback (most recent call last):",
                f"{error.get('type', '')}: {error.get('message', '')}",
            ]
        if lines and source not in known:
            logs.append(log_of_lines(source, lines))
    return replace(case, logs=tuple(logs))
