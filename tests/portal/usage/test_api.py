"""The ledger through REST."""

from datetime import timedelta

import pytest
from django.test import Client

from portal.jobs.models import Attempt
from portal.jobs.services import attempt_release
from portal.usage.services import ledger_roll
from tests.portal import builders as make

pytestmark = pytest.mark.django_db


def test_the_sum_over_teams_is_what_was_held_to_the_last_digit() -> None:
    make.nodes(a=2, b=2, c=2)
    for index, name in enumerate(("vision", "language", "speech")):
        owner = make.member("ada", make.team(name))
        job = make.job(owner, team=name, nodes=1, gpus_per_node=2)
        gang = make.Gang(job).start({"abc"[index]: 2})
        end = gang.now + timedelta(seconds=0.1 + index / 3)
        attempt_release(attempt=gang.attempt, now=end)
        Attempt.objects.filter(pk=gang.attempt.pk).update(state="succeeded", ended_at=end)
    ledger_roll(now=make.NOW + timedelta(seconds=5))
    client = Client(headers={"authorization": f"Bearer {make.token(make.user('ada'))}"})
    usage = client.get("/api/v1/usage?group_by=team").json()
    assert len(usage["items"]) == 3
    assert usage["booked_gpu_s"] == usage["held_gpu_s"] > 0
    for row in usage["items"]:
        assert sum(row["shares_percent"].values()) == pytest.approx(100, abs=1e-3)
