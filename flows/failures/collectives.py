"""A collective that never ended: the fabric's fault, one rank's, or a program that disagrees with itself. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flows.failures.case import Case
from flows.failures.lines import Line, rank_inside

SEQUENCE = re.compile(r"(?:SeqNum|seq(?:uence)?(?:_id| number)?)\s*[=:]?\s*(\d+)", re.IGNORECASE)
OPERATION = re.compile(r"OpType\s*[=:]\s*(\w+)", re.IGNORECASE)
ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work:?\s*(\d+)", re.IGNORECASE)
COMPLETED = re.compile(r"last completed(?: NCCL)? work:?\s*(\d+)", re.IGNORECASE)
# What an analyser of flight recorders says in words.
BEHIND = re.compile(
    r"rank (\d+)\b.{0,80}\b(behind|missing|not (entered|joined|reached)|did not (enter|join|call)|never (entered|joined))",
    re.I,
)
ABSENT = re.compile(r"(?:missing|absent|waiting for|did not join)\W{0,4}ranks?\W{0,4}(\d+)", re.IGNORECASE)
ALL_SAME = re.compile(r"all ranks\b.{0,60}\b(same|entered|joined|enqueued)", re.IGNORECASE)


@dataclass(frozen=True)
class Stuck:
    """What a collective's time-outs show: the code, the rank to blame if it is one, and the line that says so."""

    code: str
    rank: int | None
    line: Line


def who_is_stuck(case: Case, notes: Sequence[Line]) -> Stuck | None:
    """None when no collective has timed out."""
    reported: dict[int, tuple[int, str, Line]] = {}
    for line in notes:
        behind = BEHIND.search(line.text) or ABSENT.search(line.text)
        if behind and "flight-recorder" in line.text and int(behind[1]) < case.world_size:
            return Stuck("collective_timeout_rank", int(behind[1]), line)
        if ALL_SAME.search(line.text) and "flight-recorder" in line.text:
            return Stuck("collective_timeout_fabric", None, line)
        rank = line.rank if line.rank is not None else rank_inside(case, line.text)
        sequence, operation = SEQUENCE.search(line.text), OPERATION.search(line.text)
        if rank is not None and sequence and rank not in reported:
            reported[rank] = (int(sequence[1]), operation[1] if operation else "", line)
    if len(reported) < 2:
        return None
    sequences = Counter(sequence for sequence, _, _ in reported.values())
    operations = {(sequence, operation) for sequence, operation, _ in reported.values()}
    most = sequences.most_common(1)[0][0]
    first = min(reported.values(), key=lambda item: item[2].place)[2]
    if len(operations) > len(sequences):
        odd = Counter(operation for _, operation, _ in reported.values()).most_common()[-1][0]
        rank = next(r for r, item in sorted(reported.items()) if item[1] == odd)
        return Stuck("collective_mismatch", rank, reported[rank][2])
    late = [rank for rank, (sequence, _, _) in sorted(reported.items()) if sequence < most]
    if late:
        return Stuck("collective_timeout_rank", late[0], reported[late[0]][2])
    silent = sorted(set(range(case.world_size)) - set(reported))
    if len(silent) == 1:
        return Stuck("collective_timeout_rank", silent[0], first)
    return Stuck("collective_timeout_fabric", None, first) if not silent else None
