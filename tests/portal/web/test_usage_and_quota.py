"""The usage page shows the ledger's sums; a quota changes in two steps, seen before it is saved."""

import csv
import io
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.events.models import Event
from portal.jobs.telemetry import RankWindow
from portal.quotas.models import Cohort, Queue, Quota
from portal.usage.models import Cause, UsageEntry
from portal.usage.services import ledger_roll
from tests.portal import builders as build

ClientOf = Callable[[str], Client]
pytestmark = pytest.mark.django_db


@pytest.fixture
def used(people: dict[str, User]) -> None:
    """A job of vision that held 4 GPUs for 10 minutes, most of it training."""
    now = timezone.now() - timedelta(hours=1)
    gang = build.Gang(build.job(people["ada"], name="held", now=now), now=now).start().wait(7).run()
    begin = gang.now
    gang.wait(593)
    for rank in range(4):
        window = {"productive": 500.3, "data_wait": 33.3, "straggler": 11.1}
        RankWindow.objects.create(
            attempt=gang.attempt,
            rank=rank,
            restart=0,
            n=0,
            from_ns=build.ns(begin),
            to_ns=build.ns(gang.now),
            seconds=window,
        )
    ledger_roll(now=gang.now)


def rows_of(page: str) -> list[list[str]]:
    """The cells of the page's last table, row by row."""
    table = page[page.rindex("<table>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [
        [unescape(re.sub(r"<svg.*?</svg>|<[^>]+>", "", cell, flags=re.DOTALL)).strip() for cell in row] for row in cells
    ]


@pytest.mark.parametrize(
    "query", ["", "?by=user", "?by=job", "?by=day", "?by=gpu_type", "?team=vision", "?team=vision&user=ada"]
)
def test_the_causes_of_each_row_sum_to_a_hundred(client_of: ClientOf, used: None, query: str) -> None:
    rows = rows_of(client_of("viewer").get(f"/usage{query}").content.decode())
    assert len(rows) == 3
    for row in rows[1:]:
        shares = [float(cell) for cell in row[5:-1]]
        assert round(sum(shares), 1) == 100.0
        assert row[-1] == "100.0"
        assert float(row[1]) == pytest.approx(4 * 600 / 3600, abs=0.01)


def test_page_csv_and_rest_show_the_same_sums(client_of: ClientOf, used: None) -> None:
    client = client_of("ada")
    page = rows_of(client.get("/usage?team=vision").content.decode())
    [from_csv] = list(csv.DictReader(io.StringIO(client.get("/usage.csv?team=vision").content.decode())))
    [from_rest] = client.get("/api/v1/usage?group_by=user").json()["items"]
    assert from_csv["user"] == from_rest["key"] == page[1][0] == "ada"
    assert float(from_csv["gpu_s"]) == pytest.approx(from_rest["gpu_s"], abs=1e-6)
    assert float(from_csv["gpu_s"]) == pytest.approx(sum(float(from_csv[c.value]) for c in Cause), abs=1e-4)
    assert f"{from_rest['gpu_s'] / 3600:.4f}" == page[1][1]


def test_teams_lead_to_people_and_people_to_jobs(client_of: ClientOf, used: None) -> None:
    client = client_of("viewer")
    assert 'href="/usage?team=vision"' in client.get("/usage").content.decode()
    assert 'href="/usage?team=vision&amp;user=ada"' in client.get("/usage?team=vision").content.decode()
    assert ">held</a>" in client.get("/usage?team=vision&user=ada").content.decode()


def test_nobody_reads_the_usage_of_a_team_that_is_not_his(client_of: ClientOf, used: None) -> None:
    for path in ("/usage?team=vision", "/usage?by=job", "/usage.csv?by=user"):
        assert "ada" not in client_of("stranger").get(path).content.decode()


def test_days_outside_the_filter_do_not_count(client_of: ClientOf, used: None) -> None:
    UsageEntry.objects.update(day=timezone.now().date() - timedelta(days=8))
    assert "No GPU was held" in client_of("ada").get("/usage?days=7").content.decode()
    assert "No GPU was held" not in client_of("ada").get("/usage?days=30").content.decode()


@pytest.mark.parametrize(
    "query", ["days=0", "days=x", "days=99999", "by=moon", "from=yesterday", "from=2026-12-02&to=2026-12-01"]
)
def test_a_filter_that_makes_no_sense_is_refused(client_of: ClientOf, query: str) -> None:
    response = client_of("ada").get(f"/usage?{query}")
    assert response.status_code == 400
    assert b"data-refusal-text" in response.content


def test_the_job_page_has_its_own_ledger(client_of: ClientOf, used: None) -> None:
    job = UsageEntry.objects.values_list("job", flat=True).first()
    client = client_of("viewer")
    first = client.get(f"/jobs/{job}/ledger")
    assert "100.0" in first.content.decode()
    assert client.get(f"/jobs/{job}/ledger", headers={"If-None-Match": first["ETag"]}).status_code == 304


@pytest.fixture
def quota(people: dict[str, User]) -> Quota:
    """Vision's quota of 8; with speech it is in one cohort."""
    Cohort.objects.create(name="research")
    Queue.objects.update(cohort="research")
    return Quota.objects.get(queue__name="vision")


def numbers(quota: Quota, **changes: str) -> dict[str, str]:
    return {
        "nominal": "8",
        "borrow_limit": "",
        "lend_limit": "",
        "reason": "a new node",
        "version": str(quota.version),
    } | changes


def test_before_and_after_are_shown_before_anything_is_changed(client_of: ClientOf, quota: Quota) -> None:
    build.job(name="too-wide")
    page = client_of("admin").post(f"/quota/{quota.pk}", numbers(quota, nominal="2", borrow_limit="1")).content.decode()
    assert re.search(r"Nominal</th><td[^>]*>8</td><td[^>]*><b>2</b>", page)
    affected = {row[0]: row[1:6] for row in rows_of(page)[1:]}
    assert affected == {"vision": ["0", "16", "3", "0", "1"], "speech": ["0", "16", "10", "0", "0"]}
    assert "too-wide" in page
    quota.refresh_from_db()
    assert quota.nominal == 8
    assert not Event.objects.filter(verb="change").exists()


def test_the_confirmed_change_is_saved_with_its_event(client_of: ClientOf, quota: Quota) -> None:
    response = client_of("admin").post(f"/quota/{quota.pk}", numbers(quota, nominal="12", confirmed="1"))
    assert response.status_code == 302
    quota.refresh_from_db()
    assert (quota.nominal, quota.borrow_limit, quota.version) == (12, None, 2)
    event = Event.objects.get(verb="change")
    assert (event.actor, event.reason, event.before["nominal"], event.after["nominal"]) == ("root", "a new node", 8, 12)


@pytest.mark.parametrize("confirmed", [{}, {"confirmed": "1"}])
def test_of_two_administrators_the_second_sees_what_the_first_has_done(
    client_of: ClientOf, quota: Quota, confirmed: dict[str, str]
) -> None:
    client = client_of("admin")
    mine = numbers(quota, nominal="20", **confirmed)
    client.post(f"/quota/{quota.pk}", numbers(quota, nominal="12", confirmed="1"))
    response = client.post(f"/quota/{quota.pk}", mine)
    assert response.status_code == 412
    page = response.content.decode()
    assert "Somebody else changed this quota" in page
    assert "nominal 12" in page
    assert 'value="20"' in page
    quota.refresh_from_db()
    assert quota.nominal == 12


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nominal": ""}, "nominal"),
        ({"nominal": "-1"}, "nominal"),
        ({"nominal": "many"}, "nominal"),
        ({"nominal": "2000000"}, "nominal"),
        ({"borrow_limit": "1.5"}, "borrow_limit"),
        ({"lend_limit": "9" * 30}, "lend_limit"),
        ({"reason": " "}, "reason"),
    ],
)
@pytest.mark.parametrize("confirmed", [{}, {"confirmed": "1"}])
def test_numbers_that_are_no_limits_are_refused_at_their_field(
    client_of: ClientOf, quota: Quota, change: dict[str, str], field: str, confirmed: dict[str, str]
) -> None:
    response = client_of("admin").post(f"/quota/{quota.pk}", numbers(quota, **change, **confirmed))
    assert response.status_code == 422
    assert re.search(rf'id="e-{field}">[^<]', response.content.decode())
    quota.refresh_from_db()
    assert quota.version == 1


def admin_form(page: str) -> dict[str, str]:
    """The hidden and text inputs of Django's change form."""
    pairs = re.findall(r'<input type="(?:hidden|number|text)" name="(\w+)"(?: value="([^"]*)")?', page)
    return {name: value for name, value in pairs if name != "csrfmiddlewaretoken"}


def test_djangos_admin_changes_a_quota_through_the_service(client_of: ClientOf, quota: Quota) -> None:
    client, path = client_of("admin"), f"/admin/quotas/quota/{quota.pk}/change/"
    values = admin_form(client.get(path).content.decode()) | {"nominal": "11", "reason": "from the admin"}
    assert client.post(path, values).status_code == 302
    quota.refresh_from_db()
    assert (quota.nominal, quota.version) == (11, 2)
    event = Event.objects.get(verb="change", subject_kind="quota")
    assert (event.actor, event.reason, event.before["nominal"], event.after["nominal"]) == (
        "root",
        "from the admin",
        8,
        11,
    )
    # The same form again is one of an older version.
    stale = client.post(path, values | {"nominal": "13"})
    assert "Somebody else changed this" in stale.content.decode()
    quota.refresh_from_db()
    assert quota.nominal == 11


def test_djangos_admin_never_changes_what_is_used_or_deletes_a_quota(client_of: ClientOf, quota: Quota) -> None:
    client, path = client_of("admin"), f"/admin/quotas/quota/{quota.pk}/change/"
    values = admin_form(client.get(path).content.decode()) | {"used": "5", "gpu_type": "h1", "reason": "x"}
    client.post(path, values)
    quota.refresh_from_db()
    assert (quota.used, quota.gpu_type) == (0, "cpu-sim")
    assert client.post(f"/admin/quotas/quota/{quota.pk}/delete/", {"post": "yes"}).status_code == 403


def test_a_queue_moved_in_djangos_admin_writes_an_event(client_of: ClientOf, quota: Quota) -> None:
    Cohort.objects.create(name="other")
    queue = Queue.objects.get(name="vision")
    client, path = client_of("admin"), f"/admin/quotas/queue/{queue.pk}/change/"
    values = {
        "cohort": "other",
        "weight": "3",
        "within_queue": "never",
        "reclaim_within_cohort": "any",
        "borrow_within_cohort": "never",
        "version": "1",
        "reason": "reorganised",
    }
    assert client.post(path, values).status_code == 302
    queue.refresh_from_db()
    assert (queue.cohort_id, queue.weight, queue.version) == ("other", 3, 2)
    event = Event.objects.get(verb="change", subject_kind="queue")
    assert (event.before["cohort"], event.after["cohort"], event.reason) == ("research", "other", "reorganised")


def test_cohorts_cannot_be_put_into_a_ring(client_of: ClientOf, quota: Quota) -> None:
    Cohort.objects.create(name="below", parent_id="research")
    path = "/admin/quotas/cohort/research/change/"
    response = client_of("admin").post(path, {"parent": "below", "weight": "1", "version": "1", "reason": "x"})
    assert "cannot be below itself" in response.content.decode()
    assert Cohort.objects.get(pk="research").parent_id is None


@pytest.mark.parametrize(
    "model", ["jobs/job", "jobs/attempt", "jobs/allocation", "events/event", "usage/usageentry", "cluster/node"]
)
def test_rows_that_services_count_on_are_only_to_look_at(client_of: ClientOf, model: str) -> None:
    build.Gang(build.job()).start()
    client = client_of("admin")
    assert client.get(f"/admin/{model}/").status_code == 200
    assert client.get(f"/admin/{model}/add/").status_code == 403


def test_djangos_admin_is_for_administrators(client_of: ClientOf) -> None:
    assert client_of("owner").get("/admin/").status_code == 302
    assert client_of("admin").get("/admin/").status_code == 200
