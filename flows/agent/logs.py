"""Log files of ranks: how long they are, and an end to their growth."""

import os
import shutil
from pathlib import Path
from typing import Any

from flows.agent.plan import AgentPlan

# A log keeps its newest output: one full file of the past and the present one.
MAX_LOG_BYTES = 64 * 1024 * 1024
STREAMS = ("stdout", "stderr")


class RankLogs:
    """The logs of one restart's ranks on this node."""

    def __init__(self, plan: AgentPlan, restart: int, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.plan, self.restart, self.max_bytes = plan, restart, max_bytes
        self._sizes: dict[str, int] = {}

    def look(self) -> list[dict[str, Any]]:
        """A row for each log whose length has changed. One that is too long is turned over first."""
        rows = []
        for rank in self.plan.ranks:
            for stream in STREAMS:
                path = self.plan.rank_folder(self.restart, rank) / f"{stream}.log"
                for file in (path, turned_path(path)):
                    row = self._row(file, rank, stream)
                    if row is not None:
                        rows.append(row)
        return rows

    def _row(self, path: Path, rank: int, stream: str) -> dict[str, Any] | None:
        try:
            size = path.stat().st_size
            if size > self.max_bytes and path.suffix == ".log":
                log_turn(path)
                size = path.stat().st_size
        except OSError:
            return None
        name = str(path.relative_to(self.plan.run_dir))
        if self._sizes.get(name) == size:
            return None
        self._sizes[name] = size
        shown = stream if path.suffix == ".log" else f"{stream}.1"
        return {"rank": rank, "restart": self.restart, "stream": shown, "path": name, "bytes": size}


def turned_path(path: Path) -> Path:
    """Where the output before the present file's is."""
    return path.with_name(f"{path.name}.1")


def log_turn(path: Path) -> None:
    """Move the content to the file of the past and begin anew, in the same file: a rank writes into it.

    Output that is written between the copy and the cut is lost; a log this long is a flood.
    """
    past = turned_path(path)
    new = past.with_name(f".{past.name}.new")
    try:
        shutil.copyfile(path, new)
        new.replace(past)
    except OSError:
        # No room for a copy is one more reason to shorten the log.
        new.unlink(missing_ok=True)
    size = path.stat().st_size
    os.truncate(path, 0)
    with path.open("ab") as file:
        text = f"this log grew too long: its last {size} bytes are in {past.name}, older ones are gone"
        file.write(f"[trainyard: {text}]\n".encode())
