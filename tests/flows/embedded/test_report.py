"""The demo's report out of REST answers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from flows.embedded.report import DemoFacts, faults_of, report_text


def at(second: float) -> str:
    return f"2026-12-01T10:00:{second:09.6f}Z"


def good() -> DemoFacts:
    """A demo as it should be: killed at second 30."""
    died = {"rank_died_at": at(30.05), "seen_at": at(30.25), "first_step_at": at(8), "resumed_step": None}
    back = {"rank_died_at": None, "seen_at": None, "first_step_at": at(32.5), "resumed_step": 50}
    cause = {"class": "host_oom", "code": "killed"}
    usage = {
        "items": [
            {
                "key": team,
                "gpu_s": held,
                "causes": {"productive": held * 0.75, "startup": held * 0.25, "compile": 0.0},
                "shares_percent": {"productive": 75.0, "startup": 25.0, "compile": 0.0},
            }
            for team, held in (("language", 160.0), ("vision", 20.0))
        ],
        "booked_gpu_s": 180.0,
        "held_gpu_s": 180.0,
    }
    told = {
        "corpus": "source files",
        "corpus_licence": "PSF-2.0",
        "corpus_bytes": 25_000_000,
        "num_parameters": 131_392,
        "strategy": "full_shard",
    }
    return DemoFacts(
        job={"name": "first", "state": "succeeded", "end_cause": {"code": "finished"}, "attempts": [{"facts": told}]},
        timeline={
            "submitted_at": at(1),
            "decided_at": at(1.1),
            "flow_started_at": at(3.1),
            "agent_started_at": at(3.6),
            "first_rank_at": at(6.6),
            "restarts": [
                {**died, "cause": cause, "steps_recomputed": 0},
                {**back, "cause": None, "steps_recomputed": 12},
            ],
        },
        series={
            "loss": [[1, 0, 5.5, 5.5, 5.5], [160, 0, 2.3, 2.3, 2.3]],
            "val_loss": [[40, 0, 3, 3.0, 3], [160, 0, 2, 2.4, 2]],
        },
        checkpoints=[{"state": "durable"}, {"state": "verified"}, {"state": "deleted"}],
        usage=usage,
        killed={"rank": 3, "node": "node-2", "pid": 1, "at": 1_796_119_230.0},
        second={"name": "second", "state": "succeeded", "end_cause": None},
        idle_mb=640.0,
        ready_s=9.0,
        total_s=70.0,
    )


def test_every_figure_of_the_report_comes_from_the_answers() -> None:
    facts = good()
    assert faults_of(facts) == []
    figures = facts.as_json()
    assert figures["seen_s"] == pytest.approx(0.25)
    assert figures["next_step_s"] == pytest.approx(2.5)
    assert figures["start_parts_s"] == {"decision": 0.1, "Prefect": 2.0, "agents": 0.5, "ranks": 3.0}
    assert figures["submit_to_first_rank_s"] == pytest.approx(5.6)
    assert figures["steps_recomputed"] == 12
    text = report_text(facts)
    for part in (
        "5.500 → 2.300",
        "3.000 → 2.400",
        "PSF-2.0",
        "rank 3 on node-2",
        "0.25 s",
        "2.50 s",
        "5.60 s",
        "12 steps",
    ):
        assert part in text
    assert text.count("100.0 %") == 2


def change(path: str, value: Any) -> Callable[[DemoFacts], None]:
    """Set a value deep inside the answers."""

    def act(facts: DemoFacts) -> None:
        first, *rest = path.split(".")
        if not rest:
            setattr(facts, first, value)
            return
        place = getattr(facts, first)
        for key in rest[:-1]:
            place = place[int(key) if key.isdigit() else key]
        place[int(rest[-1]) if rest[-1].isdigit() else rest[-1]] = value

    return act


@pytest.mark.parametrize(
    ("breaks", "fault"),
    [
        (change("job.state", "failed"), "first ended failed (finished)"),
        (change("second.state", "cancelled"), "second ended cancelled (no cause)"),
        (change("series.loss.1.3", 5.6), "the training loss did not fall"),
        (change("series.val_loss", []), "the validation loss did not fall"),
        (change("job.attempts.0.facts.corpus_bytes", 3_999_999), "the corpus has less than 4 MB"),
        (change("timeline.restarts", good().timeline["restarts"][:1]), "the killed rank led to no restart"),
        (change("timeline.restarts.0.rank_died_at", at(9)), "the killed rank led to no restart"),
        (change("timeline.restarts.0.seen_at", at(32.1)), "the killed rank was seen after 2.10 s"),
        (change("timeline.restarts.0.seen_at", None), "the killed rank was seen after nan s"),
        (change("timeline.restarts.1.first_step_at", at(40.2)), "the next step came after 10.2 s"),
        (change("timeline.restarts.1.resumed_step", None), "the job started over"),
        (change("usage.booked_gpu_s", 179.5), "the ledger books 179.500 GPU-seconds of 180.000 held"),
        (change("usage.items.0.shares_percent.startup", 24.0), "the causes of team language do not sum"),
        (change("usage.items", []), "the ledger does not show two teams"),
    ],
)
def test_what_did_not_happen_is_a_fault_and_the_report_is_still_written(
    breaks: Callable[[DemoFacts], None], fault: str
) -> None:
    facts = copy.deepcopy(good())
    breaks(facts)
    assert any(line.startswith(fault) for line in faults_of(facts)), faults_of(facts)
    assert "What the GPUs were used for" in report_text(facts)
    assert facts.as_json()["killed_rank"] == 3
