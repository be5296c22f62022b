"""Each rule of the books, broken on purpose, is told with the row that breaks it."""

from collections.abc import Callable

import pytest
from django.core.management import call_command

from portal.dispatch.invariants import violations
from portal.dispatch.models import LaunchOrder
from portal.jobs.models import Allocation, Attempt, Job, Restart
from portal.quotas.models import Quota
from portal.usage.models import UsageEntry
from portal.usage.services import ledger_book
from tests.portal import builders as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def gang() -> make.Gang:
    gang = make.Gang(make.job())
    gang.start()
    attempt = gang.attempt
    LaunchOrder.objects.create(attempt=attempt, epoch=1, created_at=gang.now, next_try_at=gang.now)
    return gang


def settled(gang: make.Gang) -> None:
    from portal.jobs.attempts import attempt_settle

    gang.run().wait(5).finish().wait(1)
    attempt_settle(attempt_id=gang.attempt.pk, epoch=1, gone=True, checkpoint=None, now=gang.now)
    ledger_book(attempt_id=gang.attempt.pk, now=gang.now)


def test_a_life_from_start_to_end_keeps_every_rule(gang: make.Gang) -> None:
    assert violations() == []
    settled(gang)
    assert gang.attempt.ledger_closed
    assert violations() == []
    call_command("check_invariants")


BREAKS: list[tuple[str, Callable[[make.Gang], object]]] = [
    (
        "nodes_hold_no_more_than_they_have",
        lambda g: Allocation.objects.filter(node="a", gpu_index=1).update(gpu_index=7),
    ),
    ("live_attempts_hold_their_gang", lambda g: Allocation.objects.filter(node="a", gpu_index=1).delete()),
    ("ended_attempts_hold_nothing", lambda g: Attempt.objects.update(state="failed", ended_at=g.now)),
    ("jobs_agree_with_their_attempts", lambda g: Job.objects.update(state="queued")),
    ("attempt_numbers_have_no_gap", lambda g: Attempt.objects.update(number=2)),
    ("every_live_attempt_has_its_restart_and_order", lambda g: LaunchOrder.objects.all().delete()),
    ("every_live_attempt_has_its_restart_and_order", lambda g: Restart.objects.all().delete()),
    ("quota_in_use_is_what_is_held", lambda g: Quota.objects.update(used=3)),
]


@pytest.mark.parametrize(("rule", "spoil"), BREAKS, ids=[rule for rule, _ in BREAKS])
def test_a_broken_rule_is_told(gang: make.Gang, rule: str, spoil: Callable[[make.Gang], object]) -> None:
    spoil(gang)
    assert rule in {row.rule for row in violations()}
    with pytest.raises(SystemExit):
        call_command("check_invariants", "--json")


def test_books_that_lost_a_second_are_told(gang: make.Gang) -> None:
    settled(gang)
    entry = UsageEntry.objects.first()
    assert entry is not None
    entry.gpu_ns += 1
    entry.save()
    assert [row.rule for row in violations()] == ["closed_books_sum_to_the_time_held"]
