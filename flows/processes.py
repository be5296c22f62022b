"""Who a process is, who dies with whom, and whether anything of an attempt is left."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.files import read_json as read_json
from flows.files import write_whole as write_whole

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ATTEMPT_VARIABLE = "TRAINYARD_ATTEMPT"


@dataclass(frozen=True)
class ProcessId:
    """A process for good: pids are used again, start times within one boot are not."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that has this pid now; None when there is none, or only its corpse."""
        row = ProcessRow.of(pid)
        return row.identity if row is not None and row.alive else None

    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return ProcessId.of(self.pid) == self

    def as_json(self) -> dict[str, Any]:
        """For a registry file."""
        return asdict(self)


@dataclass(frozen=True)
class ProcessRow:
    """What the kernel says about one process at one moment."""

    identity: ProcessId
    state: str
    parent: int
    group: int

    @classmethod
    def of(cls, pid: int) -> "ProcessRow | None":
        """The process with this pid, corpses included."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        # The command's name may hold spaces and brackets: fields are counted from the last bracket on.
        fields = text[text.rindex(")") + 2 :].split()
        return cls(ProcessId(pid, int(fields[19]), boot_id()), fields[0], int(fields[1]), int(fields[2]))

    @property
    def alive(self) -> bool:
        """It still runs: it is no zombie that waits for its parent."""
        return self.state not in ("Z", "X")

    def environment(self) -> frozenset[bytes]:
        """``NAME=value`` as they were at its start; empty when they may not be read."""
        try:
            return frozenset(Path(f"/proc/{self.identity.pid}/environ").read_bytes().split(b"\0"))
        except OSError:
            return frozenset()


_boot_id = ""


def boot_id() -> str:
    """Changes at each boot of the machine."""
    global _boot_id
    if not _boot_id:
        _boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return _boot_id


def all_processes() -> list[ProcessRow]:
    """Every process of the machine that is no corpse."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    rows = [ProcessRow.of(pid) for pid in pids]
    return [row for row in rows if row is not None and row.alive]


def descendants(roots: Iterable[int], rows: Iterable[ProcessRow]) -> set[int]:
    """Pids of these processes and all that they have started, as far as parents still say so."""
    children: dict[int, list[int]] = {}
    for row in rows:
        children.setdefault(row.parent, []).append(row.identity.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def attempt_processes(attempt: str) -> Iterator[ProcessRow]:
    """All processes of an attempt: whoever has its id in the environment, ranks and their children."""
    mark = f"{ATTEMPT_VARIABLE}={attempt}".encode()
    for row in all_processes():
        if mark in row.environment():
            yield row


def prctl(option: int, value: int) -> None:
    """The system call of that name."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def die_with_parent(parent: int) -> Callable[[], None]:
    """For ``preexec_fn``: SIGKILL for the child when the thread that started it dies.

    The thread, not the process: so children are started by a thread that lives as long as the process.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def set_it() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the call took effect.
        if os.getppid() != parent:
            os._exit(1)

    return set_it


def kill_process(process: ProcessId, number: int = signal.SIGKILL) -> None:
    """A signal to exactly this process: never to another that has got its pid since."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.alive():
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(descriptor)


def kill_group(pid: int, number: int = signal.SIGKILL) -> None:
    """A signal to the process group that the pid leads or led; nothing when it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal: only then does the signal not end it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(mask >> (number - 1) & 1)


def wait_until(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.05) -> bool:
    """Whether the condition came true within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True
