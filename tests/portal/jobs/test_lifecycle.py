"""The two transition tables."""

from pathlib import Path

import pytest

from portal.errors import InvalidTransition
from portal.jobs.drawing import states_text
from portal.jobs.lifecycle import (
    ATTEMPT_FINAL,
    ATTEMPT_TRANSITIONS,
    JOB_FINAL,
    JOB_TRANSITIONS,
    AttemptState,
    JobAction,
    JobState,
    next_job_state,
)


def test_final_states_are_final() -> None:
    assert not [step for step in JOB_TRANSITIONS if step[0] in JOB_FINAL]
    assert not [step for step in ATTEMPT_TRANSITIONS if step[0] in ATTEMPT_FINAL]


def test_every_state_that_is_not_final_leads_to_an_end() -> None:
    for table, states, final in (
        (JOB_TRANSITIONS, JobState, JOB_FINAL),
        (ATTEMPT_TRANSITIONS, AttemptState, ATTEMPT_FINAL),
    ):
        reaches = set(final)
        while more := {old for (old, _), new in table.items() if new in reaches} - reaches:
            reaches |= more
        assert reaches == set(states)


def test_a_failed_job_is_never_shown_as_succeeded() -> None:
    with pytest.raises(InvalidTransition, match="ended for good"):
        next_job_state(JobState.FAILED, JobAction.SUCCEED)


def test_a_refused_act_names_the_possible_ones() -> None:
    with pytest.raises(InvalidTransition, match="Possible now: cancel, hold"):
        next_job_state(JobState.QUEUED, JobAction.RELEASE)


def test_the_drawing_in_the_docs_is_the_table() -> None:
    assert (Path(__file__).resolve().parents[3] / "docs" / "states.md").read_text() == states_text()
