"""The failure corpus, when it is there: how often class and action are right, and that no stop is wrong."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from flows.failures.classify import classify
from flows.failures.read import case_read
from flows.failures.signatures import SIGNATURES

SHARED = Path(os.environ.get("TRAINYARD_SHARED") or Path(__file__).resolve().parents[3].parent / "shared")
CORPUS = SHARED / "failures"

pytestmark = pytest.mark.skipif(not (CORPUS / "score.py").is_file(), reason="the failure corpus is not here")


@pytest.fixture(scope="module")
def score() -> ModuleType:
    """The corpus' own scorer."""
    spec = importlib.util.spec_from_file_location("corpus_score", CORPUS / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_causes_of_the_corpus_are_found(score: ModuleType, tmp_path: Path) -> None:
    judged, traps = [], []
    for case in score.load(str(CORPUS)):
        cause = classify(case_read(Path(score.materialise(case, str(tmp_path), 1 << 20))))
        answer = {
            **cause.as_json(),
            "evidence": [{"line": line} for line in cause.evidence],
        }
        assert answer["class"] in score.CLASSES
        assert answer["action"] in score.ACTIONS
        judged.append(score.judge(case, answer))
        if "trap" in case["tags"]:
            traps.append(judged[-1]["joint"])

    def share(name: str) -> float:
        return float(score.rate([j[name] for j in judged])[2])

    assert share("joint") >= 0.95
    assert share("rank") >= 0.95
    assert share("evidence") >= 0.9
    assert sum(traps) / len(traps) >= 0.85
    assert not any(j["wrong_stop"] or j["wrong_quarantine"] for j in judged)


def test_the_prefilter_hides_no_line_that_a_pattern_knows(score: ModuleType) -> None:
    lines = {
        line
        for case in score.load(str(CORPUS))
        for log in case["logs"]
        for line in (log.get("text") or "").splitlines()
    }
    for line in sorted(lines)[::4]:
        lowered = line.lower()
        for signature in SIGNATURES:
            if signature.pattern.search(line):
                assert signature.matches(line, lowered), (signature.code, line)
