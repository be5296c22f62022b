"""Two schedulers at once, as two processes, on a real PostgreSQL: one decides, nothing is given twice."""

import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection

from portal.dispatch.lease import LeaseLost, lease_fence, lease_take
from portal.dispatch.models import LaunchOrder, Lease
from portal.jobs.models import Allocation, Attempt, Job
from portal.jobs.services import attempt_release
from portal.quotas.models import Quota
from tests.portal import builders as make

ROOT = Path(__file__).resolve().parents[3]
LEASE = timedelta(seconds=10)


@pytest.mark.postgres
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer; this is about row locks")
@pytest.mark.django_db(transaction=True)
def test_two_schedulers_start_each_job_once_and_overbook_no_node() -> None:
    make.nodes(**{f"n{i}": 4 for i in range(10)})
    owner = make.member("ada", make.team(gpus=40))
    for index in range(200):
        make.job(owner, name=f"j{index}", nodes=1 + index % 2, gpus_per_node=1 + index % 3)
    settings = connection.settings_dict
    host, port = settings["HOST"], settings["PORT"]
    url = f"postgresql://{settings['USER']}:{settings['PASSWORD']}@:{port}/{settings['NAME']}?host={host}"
    environment = {**os.environ, "TRAINYARD_DATABASE_URL": url, "TRAINYARD_LEASE_S": "2"}
    pair = [subprocess.Popen([sys.executable, "manage.py", "dispatch"], cwd=ROOT, env=environment) for _ in range(2)]
    try:
        deadline = time.monotonic() + 120
        while Attempt.objects.count() < 200 and time.monotonic() < deadline:
            assert all(p.poll() is None for p in pair)
            held = Counter(Allocation.objects.filter(until__isnull=True).values_list("node_id", flat=True))
            assert all(count <= 4 for count in held.values())
            # Whoever has started leaves again, so that the next ones fit; half-way, the decider is killed.
            for attempt in Attempt.objects.filter(ended_at__isnull=True).select_related("job")[:20]:
                attempt_release(attempt=attempt, now=datetime.now(UTC))
                Attempt.objects.filter(pk=attempt.pk).update(state="succeeded", ended_at=datetime.now(UTC))
                Job.objects.filter(pk=attempt.job_id).update(state="succeeded")
            if len(pair) == 2 and Attempt.objects.count() >= 100:
                holder = Lease.objects.get().holder
                decider = next(p for p in pair if f":{p.pid}:" in holder)
                decider.kill()
                decider.wait()
                pair.remove(decider)
            time.sleep(0.05)
    finally:
        for process in pair:
            process.terminate()
            process.wait(20)
    starts = Counter(Attempt.objects.values_list("job_id", flat=True))
    assert len(starts) == 200
    assert set(starts.values()) == {1}, "no job was started twice"
    assert LaunchOrder.objects.count() == 200
    for attempt in Attempt.objects.select_related("job"):
        assert attempt.allocations.count() == attempt.job.num_nodes * attempt.job.gpus_per_node
    assert Quota.objects.get().used == Allocation.objects.filter(until__isnull=True).count()


@pytest.mark.django_db
def test_a_lease_passes_on_when_it_runs_out_and_the_old_holder_is_refused() -> None:
    now = make.NOW
    first = lease_take(holder="one", now=now, length=LEASE)
    assert first == 1
    assert lease_take(holder="two", now=now + timedelta(seconds=5), length=LEASE) is None
    assert lease_take(holder="one", now=now + timedelta(seconds=5), length=LEASE) == 1
    second = lease_take(holder="two", now=now + timedelta(seconds=16), length=LEASE)
    assert second == 2
    with pytest.raises(LeaseLost):
        lease_fence(epoch=first, now=now + timedelta(seconds=17), length=LEASE)
    lease_fence(epoch=second, now=now + timedelta(seconds=17), length=LEASE)
