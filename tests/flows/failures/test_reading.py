"""Cases from files: of any size, in any state, and each pattern's own prefilter."""

import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.failures.classify import classify
from flows.failures.read import BadCase, case_read, file_lines
from flows.failures.signatures.signature import literals_of


def written(folder: Path, *logs: dict[str, str], **changes: Any) -> Path:
    data = {
        "engine": "local",
        "world": {"nodes": 1, "ranks_per_node": 1, "node_names": ["n0"]},
        "exit": {"launcher_exit_code": 1, "ranks": [{"rank": 0, "node": "n0", "exit_code": 1, "t_s": 3.0}]},
        "engine_state": "FAILED",
        "logs": list(logs),
        **changes,
    }
    path = folder / "case.json"
    path.write_text(json.dumps(data))
    return path


def test_a_flood_of_one_line_costs_neither_memory_nor_the_cause(tmp_path: Path) -> None:
    line = b"WARNING: retrying in 1 s\n"
    with (tmp_path / "log.bin").open("wb") as file:
        file.write(b"start\n")
        for _ in range(40):
            file.write(line * 40_000)
        file.write(b"Traceback (most recent call last):\nZeroDivisionError: division by zero\n")
    path = written(tmp_path, {"source": "rank 0 stderr", "path": "log.bin"})
    began = time.process_time()
    tracemalloc.start()
    cause = classify(case_read(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cause.code == "value_error"
    assert peak < 40 * 2**20
    assert time.process_time() - began < 10


def test_bytes_that_are_no_text_are_read_over(tmp_path: Path) -> None:
    (tmp_path / "log.bin").write_bytes(b"\xff\xfe\x00 garbage\n\x1b[31mKeyError: 'a'\x1b[0m")
    path = written(tmp_path, {"source": "rank 0 stderr", "path": "log.bin"})
    assert classify(case_read(path)).code == "key_error"


@given(st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b), max_size=30))
def test_lines_of_a_file_are_its_lines_without_repeats(tmp_path_factory: Any, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("lines") / "log"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    kept = [line for place, line in enumerate(lines) if place == 0 or line != lines[place - 1]]
    # An empty first line equals the nothing before it.
    kept = kept[1:] if kept[:1] == [b""] else kept
    assert list(file_lines(path)) == [line.decode("utf-8", "replace") for line in kept]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"world": {}}', '{"world": {"nodes": "x"}, "exit": {}}', "not json"],
)
def test_a_file_that_is_no_case_is_refused_in_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(content)
    with pytest.raises(BadCase, match=r"case\.json is no"):
        case_read(path)


def test_the_command_prints_one_object_or_refuses(tmp_path: Path) -> None:
    path = written(tmp_path, {"source": "rank 0 stderr", "text": "NameError: x"})
    good = subprocess.run([sys.executable, "-m", "flows.failures", str(path)], capture_output=True, text=True)
    assert json.loads(good.stdout)["code"] == "name_error"
    bad = subprocess.run([sys.executable, "-m", "flows.failures", "/no/file"], capture_output=True, text=True)
    assert bad.returncode == 2
    assert bad.stderr.strip().endswith("No such file or directory.")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"Errno 28\b|ENOSPC", ("errno 28", "enospc")),
        (r"(CUDA|HIP) out of memory", (" out of memory",)),
        (r"colou?r failed", ("r failed",)),
        (r"\d+(error|fault)\d", ("error", "fault")),
        (r"x|long enough", ()),
        (r"(?<!not )ready now", ("ready now",)),
        (r"a[bc]d{2}efg", ("efg",)),
    ],
)
def test_every_match_holds_one_of_the_literals(pattern: str, expected: tuple[str, ...]) -> None:
    assert literals_of(pattern) == expected
