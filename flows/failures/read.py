"""A case out of a JSON file, with logs in the file or in files beside it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from flows.failures.case import Case, Log, RankExit, log_of_lines

READ_BYTES = 1 << 20
# Of a longer file the beginning and the end are read: what a program died of stands at its end.
HEAD_BYTES, TAIL_BYTES = 16 << 20, 32 << 20
MAX_LINE_BYTES = 64 * 1024


class BadCase(ValueError):
    """The file is no case: what is wrong with it, in one sentence."""


def case_read(path: Path) -> Case:
    """The case in a file. Logs with a ``path`` are read line by line when they are needed."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise BadCase(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise BadCase(f"{path} is no JSON file.") from None
    try:
        return case_parse(data, path.parent)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadCase(f"{path} is no case: {type(error).__name__} at {error}.") from None


def case_parse(data: Mapping[str, Any], folder: Path) -> Case:
    """The case in a JSON object; relative log paths are inside ``folder``."""
    world, end = data["world"], data["exit"]
    return Case(
        engine=str(data.get("engine", "")),
        num_nodes=int(world["nodes"]),
        ranks_per_node=int(world["ranks_per_node"]),
        node_names=tuple(str(n) for n in world["node_names"]),
        ranks=tuple(
            RankExit(
                rank=int(r["rank"]),
                node=str(r["node"]),
                exit_code=None if r.get("exit_code") is None else int(r["exit_code"]),
                t_s=None if r.get("t_s") is None else float(r["t_s"]),
                record=r.get("record"),
            )
            for r in end["ranks"]
        ),
        engine_state=str(data.get("engine_state") or ""),
        launcher_exit_code=end.get("launcher_exit_code"),
        logs=tuple(_log(row, folder) for row in data.get("logs", ())),
    )


def _log(row: Mapping[str, Any], folder: Path) -> Log:
    source = str(row["source"])
    if "path" in row:
        path = folder / str(row["path"])
        return Log(source, lambda: file_lines(path))
    return log_of_lines(source, str(row["text"]).splitlines())


def file_lines(path: Path) -> Iterator[str]:
    """Lines of a file of any size, unreadable bytes replaced; a line that is repeated in a row is given once."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = size if size <= HEAD_BYTES + TAIL_BYTES else HEAD_BYTES
        yield from _lines(file, head)
        if head < size:
            file.seek(size - TAIL_BYTES)
            file.readline()
            yield from _lines(file, TAIL_BYTES)


def _lines(file: IO[bytes], num_bytes: int) -> Iterator[str]:
    """The lines of the next so many bytes. Blocks that repeat one line are passed over."""
    rest, last, repeated = b"", b"", b""
    while num_bytes > 0 and (block := file.read(min(READ_BYTES, num_bytes))):
        num_bytes -= len(block)
        data = rest + block
        if repeated and data.startswith(repeated[: len(data)]):
            # A flood of one line: the block has nothing new but its beginning and its end.
            data = data[len(data) - len(data) % (len(last) + 1) - len(last) - 1 :]
        *lines, rest = data.split(b"\n")
        for line in lines:
            if line != last:
                last = line
                yield line[:MAX_LINE_BYTES].decode("utf-8", "replace")
        repeated = (last + b"\n") * (READ_BYTES // (len(last) + 1) + 2) if lines and last else b""
        rest = rest[:MAX_LINE_BYTES]
    if rest and rest != last:
        yield rest.decode("utf-8", "replace")
