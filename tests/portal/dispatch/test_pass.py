"""One pass of the loop: from rows to a decision to rows."""

from datetime import timedelta

import pytest

from portal.dispatch.apply import plan_apply
from portal.dispatch.lease import LeaseLost, lease_take
from portal.dispatch.load import snapshot_load
from portal.dispatch.models import LaunchOrder
from portal.dispatch.sweep import attempt_sweep, flow_replace
from portal.jobs.models import Allocation, Attempt, Job
from portal.quotas.models import Quota
from scheduler import decide
from tests.portal import builders as make

pytestmark = pytest.mark.django_db
LEASE = timedelta(seconds=10)


def run_pass(now: object = make.NOW) -> object:
    epoch = lease_take(holder="test", now=now, length=LEASE)  # type: ignore[arg-type]
    assert epoch is not None
    return plan_apply(plan=decide(snapshot_load(now=now)), epoch=epoch, now=now, lease=LEASE)  # type: ignore[arg-type]


def test_a_gang_starts_whole_and_its_launch_is_ordered_in_the_same_transaction() -> None:
    job = make.job()
    run_pass()
    job.refresh_from_db()
    attempt = Attempt.objects.get()
    assert job.state == "starting"
    assert {(a.node_id, a.gpu_index) for a in attempt.allocations.all()} == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    assert LaunchOrder.objects.get().attempt == attempt
    assert Quota.objects.get().used == 4


def test_a_job_that_does_not_fit_waits_with_a_typed_reason() -> None:
    make.job(name="first")
    second = make.job(name="second")
    run_pass()
    second.refresh_from_db()
    assert second.state == "queued"
    assert second.pending_reason["code"] == "insufficient_gpus"
    assert second.pending_reason["checked_at"]


def test_quota_keeps_a_team_from_the_rest_of_the_cluster() -> None:
    make.nodes(a=2, b=2)
    owner = make.member("ada", make.team(gpus=2))
    first = make.job(owner, nodes=1, gpus_per_node=2)
    second = make.job(owner, nodes=1, gpus_per_node=1)
    run_pass()
    second.refresh_from_db()
    first.refresh_from_db()
    assert (first.state, second.state) == ("starting", "queued")
    assert second.pending_reason["code"] == "team_quota"


def test_the_more_important_job_goes_first() -> None:
    low = make.job(name="low", priority=1)
    high = make.job(name="high", priority=5, now=make.NOW + timedelta(seconds=9))
    run_pass(make.NOW + timedelta(seconds=10))
    low.refresh_from_db()
    high.refresh_from_db()
    assert (low.state, high.state) == ("queued", "starting")


def test_a_lost_lease_writes_nothing() -> None:
    make.job()
    plan = decide(snapshot_load(now=make.NOW))
    epoch = lease_take(holder="one", now=make.NOW, length=LEASE)
    assert epoch is not None
    later = make.NOW + timedelta(seconds=11)
    assert lease_take(holder="two", now=later, length=LEASE) == 2
    with pytest.raises(LeaseLost):
        plan_apply(plan=plan, epoch=epoch, now=later, lease=LEASE)
    assert not Attempt.objects.exists()
    assert not Allocation.objects.exists()
    assert Job.objects.get().state == "queued"


def test_a_start_that_no_longer_holds_is_skipped_alone() -> None:
    gone = make.job(name="gone", nodes=1, gpus_per_node=1)
    stays = make.job(name="stays", nodes=1, gpus_per_node=1)
    plan = decide(snapshot_load(now=make.NOW))
    Job.objects.filter(pk=gone.pk).update(state="cancelled")
    epoch = lease_take(holder="test", now=make.NOW, length=LEASE)
    assert epoch is not None
    applied = plan_apply(plan=plan, epoch=epoch, now=make.NOW, lease=LEASE)
    assert (applied.started, applied.skipped) == ([stays.pk], [gone.pk])


def test_a_silent_flow_is_replaced_under_the_next_epoch_while_training_goes_on() -> None:
    gang = make.Gang(make.job()).start().run()
    assert not attempt_sweep(attempt_id=gang.attempt.pk, now=gang.now + timedelta(seconds=5))
    assert attempt_sweep(attempt_id=gang.attempt.pk, now=gang.now + timedelta(seconds=11))
    attempt = gang.attempt
    assert (attempt.epoch, attempt.state, attempt.flow_holder) == (2, "running", "")
    assert LaunchOrder.objects.get().epoch == 2


def test_a_silent_node_is_given_up_only_after_the_portal_itself_was_there_long_enough() -> None:
    gang = make.Gang(make.job()).start().run()
    flow_replace(attempt=gang.attempt, now=gang.now)
    Attempt.objects.update(flow_holder="flow-2", flow_seen_at=gang.now + timedelta(seconds=29))
    assert not attempt_sweep(attempt_id=gang.attempt.pk, now=gang.now + timedelta(seconds=29))
    late = gang.now + timedelta(seconds=31)
    Attempt.objects.update(flow_seen_at=late)
    assert attempt_sweep(attempt_id=gang.attempt.pk, now=late)
    attempt = gang.attempt
    assert (attempt.state, attempt.outcome) == ("stopping", "lost")
    assert attempt.cause["retry"]


def test_a_job_past_its_time_limit_saves_and_fails_with_that_reason() -> None:
    gang = make.Gang(make.job(time_limit_s=60)).start().run()
    late = gang.now + timedelta(seconds=61)
    Attempt.objects.update(flow_seen_at=late)
    assert attempt_sweep(attempt_id=gang.attempt.pk, now=late)
    attempt = gang.attempt
    assert (attempt.state, attempt.cause["class"]) == ("saving", "time_limit")
