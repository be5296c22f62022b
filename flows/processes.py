"""Who a process is, who dies with whom, and whether anything of an attempt is left."""

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The command's name may hold spaces and brackets: fields are counted from the last bracket on.
        fields = text[text.rindex(")") + 2 :].split()
        if fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), boot_id())

    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return ProcessId.of(self.pid) == self

    def as_json(self) -> dict[str, Any]:
        """For a registry file."""
        return asdict(self)


def boot_id() -> str:
    """Changes at each boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def prctl(option: int, value: int) -> None:
    """The system call of that name."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> Callable[[], None]:
    """For ``preexec_fn``: SIGKILL for the child when the thread that started it dies.

    The thread, not the process: so children are started by a thread that lives as long as the process.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def set_it() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_it


def kill_group(pid: int, number: int = signal.SIGKILL) -> None:
    """A signal to the process group that the pid leads; nothing when it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_process(process: ProcessId, number: int = signal.SIGKILL) -> None:
    """A signal to exactly this process: never to another that has got its pid since."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.alive():
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def attempt_processes(attempt: str) -> Iterator[int]:
    """Pids of all processes of an attempt: whoever has its id in the environment, ranks and their children."""
    mark = f"{ATTEMPT_VARIABLE}={attempt}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry.name}/environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0") and ProcessId.of(int(entry.name)) is not None:
            yield int(entry.name)


def wait_until(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.05) -> bool:
    """Whether the condition came true within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write a file so that a reader finds the old one or the new one, never a part."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when it is absent or no JSON object."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
