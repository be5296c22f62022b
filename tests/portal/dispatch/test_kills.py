"""The dispatch loop dies at random points; nothing is lost, doubled or miscounted. `make bench` does it 1,000 times."""

import random

import pytest
from django.db import connection

from portal.jobs.models import Attempt, Job
from tests.portal.dispatch.kills import finish_all, kill_many, world_make

KILLS = 60


@pytest.mark.postgres
@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a database that two processes share")
@pytest.mark.django_db(transaction=True)
def test_a_loop_that_is_killed_anywhere_leaves_sound_books_and_no_lost_job() -> None:
    world = world_make(random.Random(7))
    world.submit(12)
    tally = kill_many(world, KILLS)
    assert tally.found == []
    assert tally.kills >= KILLS
    assert finish_all(world) == set()
    assert Job.objects.count() == world.num_jobs
    ended = set(Job.objects.filter(state="succeeded").values_list("pk", flat=True))
    assert ended == set(Attempt.objects.filter(state="succeeded").values_list("job_id", flat=True))
