"""On SIGUSR1 a rank writes down where it stands: the stacks of all threads, and torch's record of collectives.

It works while the main thread is stuck in a collective: Python's own signal handler would wait for that to return, so
a thread listens to the pipe that the interpreter's lowest layer writes signal numbers into.
"""

import faulthandler
import os
import signal
import threading
from pathlib import Path
from typing import Any


class Dumper:
    """Listens for SIGUSR1. The files are ``<records>.stacks`` and ``<records>.flight.json``, written anew each time."""

    def __init__(self, records: str, groups: dict[str, list[int]], sequence: dict[str, int]) -> None:
        self._stacks, self._flight = Path(f"{records}.stacks"), Path(f"{records}.flight.json")
        self._groups, self._sequence = groups, sequence
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="dump", daemon=True).start()

    def _listen(self) -> None:
        while number := os.read(self._read, 1):
            if number[0] == signal.SIGUSR1:
                self.dump()

    def dump(self) -> None:
        """Write both files."""
        with self._stacks.open("w") as out:
            out.write(f"collectives completed by group: {self._sequence}\nranks by group: {self._groups}\n")
            out.flush()
            faulthandler.dump_traceback(out, all_threads=True)
        new = self._flight.with_suffix(".new")
        new.write_bytes(_flight_record())
        new.replace(self._flight)


def _flight_record() -> bytes:
    from torch._C import _distributed_c10d as c10d

    dump: Any = getattr(c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return b'{"unavailable":"this torch has no flight recorder"}'
    text = dump()
    return text if isinstance(text, bytes) else str(text).encode()
