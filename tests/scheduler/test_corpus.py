"""The scenario corpus: situations from other schedulers' test tables, judged by the corpus's own comparison."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scheduler.scenario import decide_lines

SHARED = Path(os.environ.get("TRAINYARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
CHECK = SHARED / "scenarios" / "check.py"
# Rows of other schools that are optional here; what they would need is in docs/benchmarks.md.
LEAST_OPTIONAL = 20


class InProcess:
    """What the comparison calls in place of a command."""

    def many(self, scenarios: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in decide_lines(json.dumps(s) for s in scenarios)]


@pytest.mark.skipif(not CHECK.is_file(), reason="the scenario corpus is not beside the repository")
def test_every_core_scenario_of_the_corpus_is_decided_as_expected() -> None:
    found = importlib.util.spec_from_file_location("scenario_check", CHECK)
    assert found is not None
    assert found.loader is not None
    check = importlib.util.module_from_spec(found)
    found.loader.exec_module(check)
    scenarios = check.load(str(CHECK.parent))
    result = check.evaluate(scenarios, InProcess())
    core = {s["id"] for s in scenarios if "core" in s["tests"]}
    failed = {name: faults for name, faults in result.items() if faults}
    assert len(core) == 167
    assert {name: faults for name, faults in failed.items() if name in core} == {}
    assert len(scenarios) - len(core) - len(failed) >= LEAST_OPTIONAL
