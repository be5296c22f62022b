"""Wishes of the platform to a running rank: a file that grows, and SIGTERM. Free of torch."""

import json
import os
import signal
import time
from dataclasses import dataclass
from typing import Any


@dataclass
class Wishes:
    """What has been asked for so far. ``deadline`` is on the monotonic clock, in seconds."""

    stop: bool = False
    reason: str = ""
    deadline: float | None = None
    save_id: int = 0
    profile_id: int = 0


class Control:
    """Looks at the control file with one ``stat`` a step; reads it only when it has grown."""

    def __init__(self, path: str | None) -> None:
        self.path, self._read, self._rest = path, 0, b""
        self.wishes = Wishes()

    def listen(self) -> None:
        """SIGTERM means: stop at the end of this step, and save."""
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: Any) -> None:
        self.wishes.stop = True
        self.wishes.reason = self.wishes.reason or "SIGTERM"

    def look(self) -> Wishes:
        """The wishes as they stand now."""
        if self.path:
            try:
                size = os.stat(self.path).st_size
            except OSError:
                size = 0
            if size > self._read:
                with open(self.path, "rb") as file:
                    file.seek(self._read)
                    data = self._rest + file.read(size - self._read)
                self._read = size
                *lines, self._rest = data.split(b"\n")
                for line in lines:
                    self._take(line)
        return self.wishes

    def _take(self, line: bytes) -> None:
        try:
            wish = json.loads(line)
            kind, number = wish["kind"], int(wish.get("id", 0))
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        if kind == "stop":
            self.wishes.stop = True
            self.wishes.reason = str(wish.get("reason") or "asked to")
            grace = wish.get("grace_s")
            if isinstance(grace, (int, float)) and not isinstance(grace, bool):
                self.wishes.deadline = time.monotonic() + grace
        elif kind == "save":
            self.wishes.save_id = max(self.wishes.save_id, number)
        elif kind == "profile":
            self.wishes.profile_id = max(self.wishes.profile_id, number)
