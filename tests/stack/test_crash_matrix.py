"""While a job trains, one box of the platform is killed with SIGKILL. The job must not care."""

import os
import signal
from collections.abc import Callable

import pytest

from flows.processes import kill_process
from tests.stack.stack import Stack, wait_for

pytestmark = pytest.mark.stack


def kill_child(name: str) -> Callable[[Stack, str], None]:
    def kill(stack: Stack, job_id: str) -> None:
        old = stack.pids()[name]
        kill_process(old)
        wait_for(f"{name} to be started again", lambda: stack.pids().get(name) not in (None, old), 20.0)

    return kill


def kill_flow(stack: Stack, job_id: str) -> None:
    kill_process(stack.flow())


def kill_agent(stack: Stack, job_id: str) -> None:
    kill_process(next(stack.agents(job_id)))


def kill_rank(stack: Stack, job_id: str) -> None:
    ranks = stack.call(f"/attempts/{stack.attempt(job_id)['id']}/ranks")["items"]
    os.kill(ranks[-1]["pid"], signal.SIGKILL)


VICTIMS = [
    pytest.param(kill_child("web"), 0, id="web"),
    pytest.param(kill_child("scheduler"), 0, id="scheduler"),
    pytest.param(kill_child("celery"), 0, id="celery-worker"),
    pytest.param(kill_child("prefect-server"), 0, id="prefect-server"),
    pytest.param(kill_child("prefect-worker"), 0, id="prefect-worker"),
    pytest.param(kill_flow, 0, id="flow"),
    pytest.param(kill_agent, 1, id="node-agent"),
    pytest.param(kill_rank, 1, id="rank"),
]


@pytest.mark.parametrize(("kill", "restarts"), VICTIMS)
def test_a_job_survives_the_death_of_any_box(stack: Stack, kill: Callable[[Stack, str], None], restarts: int) -> None:
    job_id = stack.submit()
    stack.wait_checkpoint(job_id)
    kill(stack, job_id)
    job = stack.wait_end(job_id)
    assert job["state"] == "succeeded", job
    [attempt] = job["attempts"]
    assert len(attempt["restarts"]) == 1 + restarts
    assert job["last_step"] == 40
    stack.check_books(job_id)


def test_a_platform_that_was_killed_whole_goes_on_where_it_was(stack: Stack) -> None:
    job_id = stack.submit(steps=80)
    stack.wait_checkpoint(job_id)
    agents = list(stack.agents(job_id))
    children = stack.pids().values()
    assert stack.process is not None
    stack.process.kill()
    stack.process.wait()
    wait_for("the children to die with their supervisor", lambda: not any(c.alive() for c in children), 15.0)
    assert all(a.alive() for a in agents), "agents live in sessions of their own"
    stack.start()
    assert not any(a.alive() for a in agents), "the next start clears them away"
    job = stack.wait_end(job_id)
    assert job["state"] == "succeeded"
    assert job["attempts"][-1]["restarts"][-1]["resumed_step"] >= 10, "it went on from a checkpoint"
    stack.check_books(job_id)
