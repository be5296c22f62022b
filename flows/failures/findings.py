"""What logs say: every line that a signature knows, weighed by where it stands and what came after it. Pure."""

import re
from collections import Counter
from dataclasses import dataclass, field

from flows.failures.case import Case
from flows.failures.lines import STEP, STEP_NUMBER, Line, lines_of, node_inside, rank_inside
from flows.failures.signatures import first_match
from flows.failures.signatures.signature import FATAL, VICTIM, Signature

# Enough to see who said it first and last; a flood of one message is no more evidence than a page of it.
MAX_OF_A_KIND = 40
LEVEL = re.compile(r"\b(INFO|DEBUG|WARN(ING)?)\b|\bwarning:|\w+Warning:", re.IGNORECASE)
RECOVERED = re.compile(
    r"\b(retry(ing)?|retried|recovered|re-?connected|ignor(ed|ing)|skipp(ed|ing)|will (try|retry)|attempt \d+/\d+)\b",
    re.I,
)
ADVICE = re.compile(r"^\s*(hint|note|tip|see|for debugging|compile with|to enable|if reserved|please|consider)\b", re.I)
TRACEBACK = re.compile(r"^Traceback \(most recent call last\)")
EXCEPTION = re.compile(
    r"^([A-Za-z_]\w*\.)*[A-Za-z_]\w*(Error|Exception|Exit|Interrupt|Timeout|Warning|Invalid|NotFound|Failure|OOM)\w*(:|$)"
)
QUOTED = re.compile(r"""^\s*([{"']|(text|prompt|sample|input|generated|example|output|response)\b)""", re.I)
END_MARKER = re.compile(
    r"\b(training|train|run|job|fit)\b.{0,30}\b(complete[d]?|finished|done|ended successfully)\b|\btrain_runtime\b"
    r"|final (checkpoint|model) (saved|verified|written)|`Trainer\.fit` stopped: `max_",
    re.IGNORECASE,
)
LEVEL_ERROR = re.compile(r"\b(error|fail\w*|abort\w*|killed|not)\b", re.IGNORECASE)
COLLECTIVE_NOTE = re.compile(
    r"Watchdog caught|WorkNCCL|flight-recorder:|last enqueued|SeqNum|Timed out waiting \d+ms|no progress"
)
MAX_NOTES = 5000
MAX_FRAMES = 20
NCCL_RANK = re.compile(r"^(\S+?):(\d+):\d+ \[\d+\] NCCL INFO comm .* rank (\d+) nranks \d+ .*busId ([0-9a-fA-F]+)")
XID = re.compile(r"Xid \(PCI:[0-9a-fA-F]+:([0-9a-fA-F]{2}):[^)]*\): \d+(?:, pid='?(\d+))?")
PEER = re.compile(r"(?:remote peer|from peer|peer) ([\w.-]+?)(?:<\d+>|:\d+)")
# The host of a Slurm job's batch script stands in its messages whichever node is meant.
BATCH_HOST = re.compile(r"\b(JOB|STEP) \S+ ON \S+")
SUMMARY_PID = re.compile(r"\s+exitcode\s*: -?\d+ \(pid: (\d+)\)")
SUMMARY_RANK = re.compile(r"\s+rank\s*: (\d+)")
ROOT_SUMMARY = re.compile(r"Root Cause \(first observed failure\)")


@dataclass(frozen=True)
class Finding:
    """One line that says something, and how much it proves here."""

    signature: Signature
    line: Line
    weight: int
    rank: int | None
    node: str | None
    ends_traceback: bool
    context: str = ""  # the frames of the traceback that it ends


@dataclass
class Found:
    """All that the logs of a case say."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[Line] = field(default_factory=list)  # what collectives left behind, for their own judge
    num_progress: int = 0
    last_step: int = 0
    end_marker: Line | None = None
    launcher_root: int | None = None
    blamed_nodes: Counter[str] = field(default_factory=Counter)
    rank_of_pid: dict[int, int] = field(default_factory=dict)
    rank_of_bus: dict[tuple[str, str], int] = field(default_factory=dict)  # (host, PCI bus) of a GPU


def read_logs(case: Case) -> Found:
    """Every finding of every log."""
    found = Found()
    readers = []
    for log in case.logs:
        reader = _Reader(case, found)
        for line in lines_of(case, log):
            reader.take(line)
        readers.append(reader)
    # Only now is known which process and which GPU is which rank.
    for reader in readers:
        reader.close()
    return found


class _Reader:
    """Reads one log from its first line to its last."""

    def __init__(self, case: Case, found: Found) -> None:
        self.case, self.found = case, found
        self.progress: list[int] = []
        self.matches: dict[str, list[tuple[Signature, Line, bool, str]]] = {}
        self.tracebacks: dict[int | None, list[str]] = {}
        self.in_summary = False
        self.summary_rank: int | None = None

    def take(self, line: Line) -> None:
        """One more line."""
        text = line.text
        if STEP.search(text):
            self._progress(line)
            return
        self._identities(text)
        self._blame(line)
        if END_MARKER.search(text) and not LEVEL_ERROR.search(text):
            self.found.end_marker = line
        if COLLECTIVE_NOTE.search(text) and len(self.found.notes) < MAX_NOTES:
            self.found.notes.append(line)
        ends, context = self._follow_traceback(line)
        signature = first_match(text)
        if signature is not None and not ADVICE.match(text):
            kept = self.matches.setdefault(signature.code, [])
            kept.append((signature, line, ends, context))
            if len(kept) > MAX_OF_A_KIND:
                del kept[MAX_OF_A_KIND // 2]

    def _follow_traceback(self, line: Line) -> tuple[bool, str]:
        """Whether the line ends a traceback, and that traceback's frames."""
        text, frames = line.text, self.tracebacks.get(line.rank)
        if TRACEBACK.match(text):
            self.tracebacks[line.rank] = []
        elif frames is not None and text.startswith((" ", "\t")):
            frames.append(text.strip()[:200])
            del frames[:-MAX_FRAMES]
        elif frames is not None:
            del self.tracebacks[line.rank]
            return bool(EXCEPTION.match(text)), "\n".join(frames)
        return False, ""

    def _identities(self, text: str) -> None:
        """Which process and which GPU is which rank: NCCL and torchrun say it."""
        if ROOT_SUMMARY.search(text):
            self.in_summary = True
        number = SUMMARY_RANK.match(text)
        if number:
            self.summary_rank = int(number[1])
            if self.in_summary and self.found.launcher_root is None:
                self.found.launcher_root = self.summary_rank
        pid = SUMMARY_PID.match(text)
        if pid and self.summary_rank is not None:
            self.found.rank_of_pid[int(pid[1])] = self.summary_rank
        made = NCCL_RANK.search(text)
        if made:
            host, process, rank, bus = made[1], int(made[2]), int(made[3]), made[4].lower()
            self.found.rank_of_pid[process] = rank
            self.found.rank_of_bus[(host, bus.rjust(5, "0")[:2])] = rank

    def _blame(self, line: Line) -> None:
        """Nodes that others speak of as gone."""
        peer = PEER.search(line.text)
        named = peer[1] if peer else None
        if "engine" in line.source or "launcher" in line.source:
            text = BATCH_HOST.sub("", line.text)
            named = named or node_inside(self.case, text)
        if named in self.case.node_names:
            self.found.blamed_nodes[named] += 1

    def _progress(self, line: Line) -> None:
        self.progress.append(line.place)
        del self.progress[:-MAX_OF_A_KIND]
        self.found.num_progress += 1
        numbers = [int(n) for n in STEP_NUMBER.findall(line.text)]
        self.found.last_step = max([self.found.last_step, *numbers])

    def _rank_of_xid(self, line: Line) -> int | None:
        """The rank whose process or whose GPU the kernel names."""
        named = XID.search(line.text)
        if not named:
            return None
        rank = self.found.rank_of_pid.get(int(named[2])) if named[2] else None
        return rank if rank is not None else self.found.rank_of_bus.get((line.node or "", named[1].lower()))

    def close(self) -> None:
        """The log is read: say what its lines are worth."""
        for kept in self.matches.values():
            for signature, line, ends, context in kept:
                went_on = sum(place > line.place for place in self.progress) > 2
                weight = _weight(signature, line, ends, went_on=went_on)
                rank = line.rank if line.rank is not None else rank_inside(self.case, line.text)
                rank = rank if rank is not None else self._rank_of_xid(line)
                node = line.node or self.case.node_of(rank) or node_inside(self.case, line.text)
                self.found.findings.append(Finding(signature, line, weight, rank, node, ends, context))


def _weight(signature: Signature, line: Line, ends_traceback: bool, *, went_on: bool) -> int:
    """How much the line proves. What training survived, and what is printed as a warning, was not the end."""
    weight = signature.weight
    if signature.weight == VICTIM:
        return weight
    text = line.text
    if signature.weight < FATAL or "engine" not in line.source:
        if went_on:
            weight -= 45
        elif not ends_traceback and (RECOVERED.search(text) or LEVEL.search(text)):
            weight -= 18
        if QUOTED.match(text):
            weight -= 40
    if ends_traceback:
        weight += 8
    return weight
