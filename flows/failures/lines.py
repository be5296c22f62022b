"""Lines of logs as they are meant: without colours and labels, each with the rank that wrote it. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flows.failures.case import Case, Log

# A line longer than this is data that somebody printed; its beginning says what kind.
MAX_LINE = 4000
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
SOURCE_RANK = re.compile(r"\brank (\d+)\b")
SOURCE_NODE = re.compile(r"\bnode (\S+)")
# `[rank3]: ` of torch, `3: ` of srun --label, `[default3]:` of torchrun --tee (a local rank).
LABELS = (re.compile(r"^\[rank(\d+)\]:\s?"), re.compile(r"^\s*(\d{1,5}): "))
LOCAL_LABEL = re.compile(r"^\[default(\d+)\]:\s?")
INSIDE = re.compile(r"\[(?:[Rr]ank |rank)(\d+)\]|\bRank (\d+)\]|\b[Rr]ank (\d+)\b")
ATTEMPT = re.compile(r"^agent: attempt (\d+) start")
STEP = re.compile(
    r"\b(step|iter(ation)?s?|epoch|update|num_updates|global_step)\b\W{0,6}\d.*\b(loss|ppl|lr|tok/s|grad_?norm|it/s)\b"
    r"|'loss': ?[\d.]|\bit/s\b.*loss|samples/sec",
    re.IGNORECASE,
)
# Where step numbers stand in lines of progress.
STEP_NUMBER = re.compile(r"(?:step|iter(?:ation)?|update|num_updates)\W{1,4}(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One line: its place in its log, the rank that wrote it if that is known, and its text."""

    source: str
    place: int
    rank: int | None
    node: str | None
    raw: str
    text: str


def lines_of(case: Case, log: Log) -> Iterator[Line]:
    """The lines of the log's last attempt; one that is repeated in a row is given once."""
    start = _last_attempt(log)
    rank = _number(SOURCE_RANK.search(log.source))
    found = SOURCE_NODE.search(log.source)
    node = found[1] if found else case.node_of(rank)
    before = None
    for place, raw in enumerate(log.lines()):
        if place < start or raw == before:
            continue
        before = raw
        clean = ESCAPES.sub("", raw[:MAX_LINE]).rstrip()
        text, labelled = _unlabel(case, clean)
        who = rank if rank is not None else labelled
        if text.strip():
            yield Line(log.source, place, who, case.node_of(who) or node, clean.strip(), text)


def _last_attempt(log: Log) -> int:
    """Where the last attempt begins, in a log that holds several."""
    start, before = 0, None
    for place, raw in enumerate(log.lines()):
        if raw != before and raw.startswith("agent: attempt") and ATTEMPT.match(raw):
            start = place
        before = raw
    return start


def _unlabel(case: Case, text: str) -> tuple[str, int | None]:
    """The text behind labels, and the rank that the labels name."""
    rank = None
    for _ in range(3):
        local = LOCAL_LABEL.match(text)
        if local:
            text = text[local.end() :]
            rank = int(local[1]) if case.num_nodes == 1 else rank
        for label in LABELS:
            found = label.match(text)
            if found and int(found[1]) < case.world_size:
                rank, text = int(found[1]), text[found.end() :]
    return text, rank


def rank_inside(case: Case, text: str) -> int | None:
    """The rank that a line speaks of."""
    found = INSIDE.search(text)
    number = next((int(g) for g in found.groups() if g), None) if found else None
    return number if number is not None and number < case.world_size else None


def node_inside(case: Case, text: str) -> str | None:
    """The one node that a line speaks of."""
    named = [n for n in case.node_names if re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", text)]
    return named[0] if len(named) == 1 else None


def _number(found: "re.Match[str] | None") -> int | None:
    return int(found[1]) if found else None
