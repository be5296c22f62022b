"""From a report to a decision: what the portal makes of what agents and flows say."""

from datetime import timedelta

import pytest

from portal.errors import PortalError
from portal.jobs.attempt_tokens import AgentIdentity
from portal.jobs.attempts import (
    AgentView,
    AttemptOver,
    StaleEpoch,
    attempt_claim,
    attempt_heartbeat,
    attempt_settle,
)
from portal.jobs.models import Allocation, Attempt, Checkpoint, Rank, Restart
from portal.jobs.report_schema import read_report
from portal.jobs.reports import StaleAgent, agent_report
from portal.jobs.services import job_cancel
from portal.jobs.telemetry import RankWindow
from portal.quotas.models import Quota
from portal.usage.services import ledger_book
from tests.portal import builders as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def gang() -> make.Gang:
    return make.Gang(make.job())


def beat(gang: make.Gang, **alive: bool) -> dict[str, object]:
    attempt = gang.attempt
    views = [AgentView(n, g, alive.get(n, True)) for n, g in gang.generations.items()]
    return attempt_heartbeat(attempt_id=attempt.pk, epoch=attempt.epoch, agents=views, problem=None, now=gang.now)


def settle(gang: make.Gang) -> str:
    attempt = gang.attempt
    return attempt_settle(attempt_id=attempt.pk, epoch=attempt.epoch, gone=True, checkpoint=None, now=gang.now)


def test_a_gang_meets_runs_and_succeeds(gang: make.Gang) -> None:
    gang.start()
    answer = gang.report("a", state="ready", restart=0, ready={"restart": 0, "address": "10.0.0.1", "port": 4000})
    assert answer["desired"]["phase"] == "prepare"
    answer = gang.report("b", state="ready", restart=0, ready={"restart": 0, "address": "10.0.0.2", "port": None})
    assert answer["desired"]["phase"] == "run"
    assert answer["desired"]["rendezvous"] == {"master_addr": "10.0.0.1", "master_port": 4000}
    gang.run()
    gang.job.refresh_from_db()
    assert (gang.job.state, gang.attempt.state) == ("running", "running")
    gang.wait(10).finish()
    assert gang.attempt.state == "stopping"
    assert beat(gang)["action"] == "settle"
    assert settle(gang) == "succeeded"
    gang.job.refresh_from_db()
    assert gang.job.state == "succeeded"
    assert not Allocation.objects.filter(until__isnull=True).exists()
    assert Quota.objects.get().used == 0


def test_a_killed_rank_restarts_the_gang_in_place(gang: make.Gang) -> None:
    gang.start().run()
    gang.wait(5).exits(3, -9)
    assert gang.attempt.state == "running", "the peers' own ends are waited for"
    gang.wait(0.1)
    for rank in (0, 1, 2):
        gang.exits(rank, 1, "error")
    attempt = gang.attempt
    assert (attempt.state, attempt.restart) == ("rendezvous", 1)
    broken = Restart.objects.get(attempt=attempt, number=0)
    assert broken.cause["root_rank"] == 3
    assert broken.broke_at == make.NOW + timedelta(seconds=5)
    assert gang.report("a", restart=0)["desired"] | {} == gang.report("a", restart=0)["desired"]
    assert gang.report("b", restart=0)["desired"]["restart"] == 1


def test_a_problem_that_was_decided_about_already_changes_nothing(gang: make.Gang) -> None:
    gang.start()
    problem = {"code": "port_in_use", "message": "Port 4000 was taken.", "restart": 0}
    gang.report("a", problem=problem)
    assert gang.attempt.restart == 1
    gang.report("a", problem=problem)
    assert gang.attempt.restart == 1, "the agent had not heard of the decision"
    gang.report("a", problem={**problem, "restart": 1})
    assert gang.attempt.restart == 2


def test_peers_that_hang_do_not_hold_up_the_restart(gang: make.Gang) -> None:
    gang.start().run()
    gang.exits(3, -9)
    gang.wait(1.6).report("a", restart=0)
    assert gang.attempt.restart == 1


def test_an_exit_record_outranks_an_abort_in_teardown(gang: make.Gang) -> None:
    gang.start().run()
    for rank in range(4):
        gang.exits(rank, -6 if rank == 2 else 0, "finished")
    assert gang.attempt.outcome == "succeeded"


def test_a_refused_run_fails_the_job_at_once(gang: make.Gang) -> None:
    gang.start().run()
    for rank in range(4):
        gang.exits(rank, 93, "error")
    assert settle(gang) == "failed"
    gang.job.refresh_from_db()
    assert gang.job.state == "failed"
    assert Attempt.objects.count() == 1


def test_the_same_failure_without_progress_ends_the_job(gang: make.Gang) -> None:
    gang.start()
    for _ in range(4):
        gang.run().wait(5)
        for rank in range(4):
            gang.exits(rank, -9 if rank == 1 else 1)
    assert gang.attempt.outcome == "failed"
    assert "without a new step" in gang.attempt.cause["why"]


def test_progress_resets_the_count(gang: make.Gang) -> None:
    gang.start()
    for round_ in range(6):
        gang.run().wait(5)
        window = {"rank": 0, "restart": gang.attempt.restart, "n": 0, "from_ns": 1, "to_ns": 2}
        steps = {"first_step": 1, "last_step": 10 * (round_ + 1), "num_steps": 10, "seconds": {}}
        gang.report("a", restart=gang.attempt.restart, windows=[window | steps])
        for rank in range(4):
            gang.exits(rank, -9)
    assert gang.attempt.restart == 6


def test_a_report_sent_twice_changes_nothing(gang: make.Gang) -> None:
    gang.start().run()
    window = {"rank": 0, "restart": 0, "n": 0, "from_ns": 1, "to_ns": 10**9, "num_steps": 1, "seconds": {}}
    body = {
        "incarnation": f"a-{gang.generations['a']}",
        "seq": 50,
        "state": "running",
        "restart": 0,
        "windows": [window],
        "series": [{"name": "loss", "rank": 0, "restart": 0, "points": [[1, 5, 2.5]]}],
    }
    identity = AgentIdentity(gang.attempt.pk, "a", gang.generations["a"])
    for _ in range(2):
        agent_report(identity=identity, report=read_report(body), now=gang.now)
    assert RankWindow.objects.count() == 1
    assert gang.job.metric_chunks.count() == 1


def test_an_agent_that_was_replaced_is_refused(gang: make.Gang) -> None:
    gang.start().run()
    old = gang.generations["a"]
    gang.launch("a")
    gang.generations["a"] = old
    with pytest.raises(StaleAgent):
        gang.report("a", restart=0)


def test_ranks_of_a_dead_agent_count_as_dead(gang: make.Gang) -> None:
    gang.start().run()
    answer = beat(gang, a=False)
    assert answer["launch"] == ["a"]
    assert gang.attempt.restart == 1
    gang.launch("a")
    gang.run()
    assert gang.attempt.state == "running"


def test_an_old_flow_is_refused_and_touches_nothing(gang: make.Gang) -> None:
    gang.start()
    Attempt.objects.update(epoch=2, flow_holder="")
    with pytest.raises(StaleEpoch):
        attempt_claim(attempt_id=gang.attempt.pk, epoch=1, flow_run_id="x", holder="flow-1", now=gang.now)
    assert attempt_claim(attempt_id=gang.attempt.pk, epoch=2, flow_run_id="x", holder="flow-2", now=gang.now)
    assert gang.attempt.flow_holder == "flow-2"


def test_two_flows_of_one_epoch_make_one_gang(gang: make.Gang) -> None:
    gang.start()
    with pytest.raises(StaleEpoch, match="claimed by flow-1"):
        attempt_claim(attempt_id=gang.attempt.pk, epoch=1, flow_run_id="x", holder="flow-2", now=gang.now)


def test_a_cancelled_job_saves_first_and_gives_its_gpus_back(gang: make.Gang) -> None:
    gang.start().run()
    job_cancel(job=gang.job, user=make.user("ada"), now=gang.now)
    answer = gang.report("a", restart=0)
    assert answer["desired"]["phase"] == "stop"
    assert answer["desired"]["stop"]["grace_s"] == 30
    for rank in range(4):
        gang.exits(rank, 90, "stopped")
    assert settle(gang) == "cancelled"
    gang.job.refresh_from_db()
    assert gang.job.state == "cancelled"
    with pytest.raises(AttemptOver):
        gang.report("a", restart=0)


def test_a_job_that_finished_while_being_cancelled_has_succeeded(gang: make.Gang) -> None:
    gang.start().run()
    job_cancel(job=gang.job, user=make.user("ada"), now=gang.now)
    gang.finish()
    assert settle(gang) == "succeeded"
    gang.job.refresh_from_db()
    assert gang.job.state == "succeeded"


def test_nothing_is_settled_while_a_process_is_left(gang: make.Gang) -> None:
    gang.start().run().finish()
    attempt = gang.attempt
    with pytest.raises(PortalError, match="none of its processes"):
        attempt_settle(attempt_id=attempt.pk, epoch=1, gone=False, checkpoint=None, now=gang.now)


def test_checkpoints_follow_their_records(gang: make.Gang) -> None:
    gang.start().run()
    base = {"k": "ckpt", "rank": 0, "restart": 0, "step": 10, "path": "/c/step_10", "t_ns": make.ns(gang.now)}
    gang.report("a", restart=0, records=[base | {"event": "begin"}])
    assert Checkpoint.objects.get().state == "writing"
    gang.report("a", restart=0, records=[base | {"event": "durable", "bytes": 100, "stall_ns": 2_000_000}])
    row = Checkpoint.objects.get()
    assert (row.state, row.num_bytes, row.stall_s) == ("durable", 100, 0.002)
    gang.report("a", restart=0, records=[base | {"event": "begin"}])
    assert Checkpoint.objects.get().state == "durable", "a late record must not reopen it"


def test_the_ledger_of_an_attempt_equals_what_it_held(gang: make.Gang) -> None:
    gang.start().wait(4).run().wait(20)
    start = make.ns(make.NOW + timedelta(seconds=5))
    window = {"restart": 0, "n": 0, "from_ns": start, "to_ns": start + 15 * 10**9, "num_steps": 9}
    seconds = {"productive": 12.0, "data_wait": 3.0}
    gang.report("a", restart=0, windows=[window | {"rank": r, "seconds": seconds} for r in (0, 1)])
    gang.finish().wait(1)
    settle(gang)
    assert ledger_book(attempt_id=gang.attempt.pk, now=gang.now)
    entries = {e.cause: e.gpu_ns / 1e9 for e in gang.attempt.usage.all()}
    assert sum(entries.values()) == 4 * 25.0
    assert entries["productive"] == 24.0
    assert entries["data_wait"] == 6.0
    assert entries["teardown"] == 4.0


def test_a_rank_that_quietly_leaves_early_is_not_a_success(gang: make.Gang) -> None:
    gang.start().run()
    gang.exits(2, 0)
    assert gang.attempt.outcome == ""
    for rank in (0, 1, 3):
        gang.exits(rank, 1, "error")
    assert gang.attempt.outcome != "succeeded"
    assert Rank.objects.filter(restart=0, state="exited").count() == 4


def test_a_chosen_checkpoint_is_used_until_the_job_has_one_of_its_own(gang: make.Gang) -> None:
    gang.job.resume = "/other/step_00000050"
    gang.job.save()
    gang.start().run()
    for rank in range(4):
        gang.exits(rank, -9)
    assert gang.report("a", restart=0)["desired"]["resume"] == "/other/step_00000050"
    durable = {"k": "ckpt", "rank": 0, "restart": 1, "step": 60, "path": "/c/step_60", "t_ns": make.ns(gang.now)}
    answer = gang.report("a", restart=0, records=[durable | {"event": "durable", "bytes": 1}])
    assert answer["desired"]["resume"] == "auto"
