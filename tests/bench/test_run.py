"""``make bench`` collects what its benches print, and says which of them failed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of three benches: one gives figures, one fails, one forgets its last line."""
    package = tmp_path / "tests" / "bench"
    package.mkdir(parents=True)
    for name in (package.parent, package):
        (name / "__init__.py").touch()
    (package / "bench_good.py").write_text(
        'GPU = True\nprint("a table")\nprint(\'{"speed": {"ratio": 1.25}, "runs": [1]}\')\n'
    )
    (package / "bench_broken.py").write_text('raise SystemExit("no disk")\n')
    (package / "bench_silent.py").write_text('print("done")\n')
    monkeypatch.setattr(run, "HERE", package)
    return package


def test_figures_and_failures_stand_in_one_table(folder: Path) -> None:
    results = [run.run_bench(path) for path in run.bench_files(gpu=False, only=[])]
    by_name = {result["bench"]: result for result in results}
    assert by_name["good"]["figures"]["speed"] == {"ratio": 1.25}
    assert by_name["broken"]["error"] == "exit status 1"
    assert by_name["silent"]["error"] == "its last line is no JSON"
    text = run.table(results)
    assert "speed.ratio" in text
    assert "1.25" in text
    assert "FAILED: exit status 1" in text


def test_only_benches_that_ask_for_it_run_on_a_gpu(folder: Path) -> None:
    assert [path.stem for path in run.bench_files(gpu=True, only=[])] == ["bench_good"]


def test_an_unknown_bench_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(SystemExit, match="no bench 'fast'. There are: broken, good, silent"):
        run.bench_files(gpu=False, only=["fast"])


def test_the_exit_status_tells_whether_all_gave_their_figures(folder: Path, tmp_path: Path) -> None:
    root = folder.parent.parent
    (folder / "run.py").write_text(Path(run.__file__).read_text())
    for only, code in ((["good"], 0), (["good", "silent"], 1)):
        out = tmp_path / "out.json"
        command = [sys.executable, "-m", "tests.bench.run", "--only", *only, "--out", str(out)]
        assert subprocess.run(command, cwd=root, capture_output=True, check=False).returncode == code
        assert [row["bench"] for row in json.loads(out.read_text())["benches"]] == only
