"""Killing the dispatch loop at random points, again and again, while jobs come and go; and the books after each kill.

The loop runs in a forked child and dies by SIGKILL at a random statement: before it is sent, or after the database
has carried it out. The parent is everybody else: people who submit and cancel, flows that settle what has ended.
"""

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, connections, transaction

from portal.accounts.models import User
from portal.dispatch.invariants import Violation, violations
from portal.dispatch.loop import Dispatcher
from portal.jobs.attempts import attempt_claim, attempt_lock, attempt_settle
from portal.jobs.lifecycle import ATTEMPT_FINAL, JOB_FINAL, AttemptAction, AttemptState
from portal.jobs.models import Attempt, Job
from portal.jobs.services import attempt_move, attempt_stop, job_cancel
from tests.portal import builders as make

# Short, so that the loop that comes after a killed one need not wait long; and often short enough that it
# decides while a slow one still believes itself to be the only one.
LEASE = timedelta(milliseconds=40)
# What a child sends in its ticks, about: most die before they are done.
MAX_STATEMENTS = 200
TICKS = 4


@dataclass
class Tally:
    """What has happened so far."""

    kills: int = 0
    survived: int = 0
    found: list[Violation] = field(default_factory=list)


@dataclass
class World:
    """A small cluster that always has more work than room."""

    owner: User
    source: random.Random
    num_jobs: int = 0

    def submit(self, count: int) -> None:
        """New jobs of mixed size and importance."""
        for _ in range(count):
            self.num_jobs += 1
            make.job(
                self.owner,
                name=f"j{self.num_jobs}",
                nodes=self.source.choice([1, 1, 2, 3]),
                gpus_per_node=self.source.choice([1, 2, 4]),
                priority=self.source.choice([0, 0, 10]),
                now=datetime.now(UTC),
            )

    def live_on(self, *, share: float) -> None:
        """What flows and people do meanwhile: claim, end, settle, cancel."""
        now = datetime.now(UTC)
        for row in Attempt.objects.exclude(state__in=sorted(ATTEMPT_FINAL)).select_related("job"):
            if self.source.random() > share:
                continue
            with transaction.atomic():
                attempt = attempt_lock(row.pk)
                if attempt.state == AttemptState.ALLOCATING:
                    attempt_claim(attempt_id=row.pk, epoch=attempt.epoch, flow_run_id="r", holder="f", now=now)
                    attempt = attempt_lock(row.pk)
                if attempt.state == AttemptState.SAVING:
                    attempt_move(attempt=attempt, action=AttemptAction.STOP, now=now)
                attempt_stop(attempt=attempt, outcome=self._outcome(), cause=dict(CAUSE), now=now, save=False)
                attempt_settle(attempt_id=row.pk, epoch=attempt_lock(row.pk).epoch, gone=True, checkpoint=None, now=now)
        waiting = Job.objects.filter(state="queued").order_by("?").first()
        if waiting is not None and self.source.random() < 0.2:
            job_cancel(job=waiting, user=self.owner, now=now)

    def _outcome(self) -> AttemptState:
        return self.source.choice([AttemptState.SUCCEEDED, AttemptState.SUCCEEDED, AttemptState.PREEMPTED])


CAUSE: dict[str, Any] = {"class": "success", "code": "finished", "action": "none"}


def world_make(source: random.Random) -> World:
    """Six nodes, a queue that may evict its own jobs of lower priority."""
    make.nodes(**{f"n{i}": 4 for i in range(6)})
    # What is imported at the first tick need not be imported by each child.
    _dispatcher("warm").tick()
    return World(make.member("ada", make.team(gpus=20)), source)


def kill_many(world: World, kills: int, report: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """Kill the loop that often; ends at the first contradiction in the books."""
    tally = Tally()
    while tally.kills < kills and not tally.found:
        world.submit(world.source.randint(0, 2))
        # At times two of them at once.
        children = [
            _child(world.source.randint(1, MAX_STATEMENTS), after=world.source.random() < 0.5)
            for _ in range(2 if world.source.random() < 0.2 else 1)
        ]
        for child in children:
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                tally.kills += 1
            else:
                assert os.WEXITSTATUS(status) == 0, "the loop fell over by itself"
                tally.survived += 1
        tally.found = violations()
        world.live_on(share=0.5)
        tally.found += violations()
        report(tally)
    return tally


def finish_all(world: World, rounds: int = 500) -> set[str]:
    """Let a loop that nobody kills run until every job has ended; the jobs that have not."""
    dispatcher = _dispatcher("last")
    for _ in range(rounds):
        dispatcher.tick()
        world.live_on(share=1.0)
        left = Job.objects.exclude(state__in=sorted(JOB_FINAL))
        if not left.exists():
            return set()
    return set(left.values_list("pk", flat=True))


def _dispatcher(holder: str) -> Dispatcher:
    dispatcher = Dispatcher(holder=holder)
    dispatcher.lease = LEASE
    return dispatcher


def _child(statement: int, *, after: bool) -> int:
    """A process that runs the loop and dies at its n-th statement."""
    connections.close_all()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        count = 0

        def execute(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            nonlocal count
            count += 1
            if count >= statement and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = run(sql, params, many, context)
            if count >= statement:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        dispatcher = _dispatcher(str(os.getpid()))
        with connection.execute_wrapper(execute):
            for _ in range(TICKS):
                while dispatcher.tick() is None:
                    pass
        status = 0
    finally:
        os._exit(status)
