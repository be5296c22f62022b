"""Records survive a crash in the middle of a line."""

import json
from pathlib import Path

from trainer.records import RecordWriter, read_records, records_in


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    whole = b'{"k":"a","t_ns":1}\n{"k":"b"'
    records, used = read_records(whole)
    assert [r["k"] for r in records] == ["a"] and whole[used:] == b'{"k":"b"'


def test_what_is_no_record_is_skipped() -> None:
    records, _ = read_records(b'{"k":"a"}\nnoise\n[1]\n{"x":1}\n\xff\xfe\n{"k":"b"}\n')
    assert [r["k"] for r in records] == ["a", "b"]


def test_a_record_is_one_compact_line_and_its_cost_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.jsonl"
    writer = RecordWriter(path)
    writer.write("step", step=1, loss=float("nan"))
    writer.phase("train", "begin")
    writer.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 2 and ": " not in lines[0]
    assert json.loads(lines[1])["name"] == "train"
    assert writer.spent_ns > 0
    assert [r["k"] for r in records_in(path)] == ["step", "phase"]


def test_without_a_path_nothing_is_written() -> None:
    RecordWriter(None).write("step", step=1)
