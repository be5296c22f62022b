"""Every page, for every role: who gets it, who is told that there is nothing."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from portal.accounts.models import Token, User
from portal.jobs.models import Job
from portal.quotas.models import Quota
from tests.portal import builders as build

ClientOf = Callable[[str], Client]
pytestmark = pytest.mark.django_db

ROLES = ("viewer", "member", "manager", "owner", "stranger", "admin")
FOR_ALL = (
    "/", "/jobs", "/jobs/table", "/jobs?state=queued,running&team=vision&user=me&q=tiny", "/submit", "/queue", "/cluster",
    "/usage", "/usage?days=7&by=job", "/usage?by=day", "/usage.csv", "/quota", "/teams", "/account",
)  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_everybody_who_is_logged_in_opens_the_common_pages(client_of: ClientOf, role: str) -> None:
    build.job(name="tiny one")
    client = client_of(role)
    assert {path: client.get(path).status_code for path in FOR_ALL} == dict.fromkeys(FOR_ALL, 200)


def test_who_is_not_logged_in_is_led_to_the_log_in_page_and_back(client: Client, db: None) -> None:
    for path in [*FOR_ALL, "/jobs/job_1", "/quota/1"]:
        response = client.get(path)
        assert response.status_code == 302
        assert response["Location"].startswith("/accounts/login/?next=%2F")


def test_a_part_that_refreshes_itself_leads_the_whole_page_to_the_log_in(client: Client, db: None) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/jobs?q=x"}
    response = client.get("/jobs/table?q=x", headers=headers)
    assert response.status_code == 401
    assert response["HX-Redirect"] == "/accounts/login/?next=%2Fjobs%3Fq%3Dx"


PARTS = ("", "/live", "/log", "/ledger")


@pytest.mark.parametrize("part", PARTS)
def test_a_job_of_another_team_does_not_exist(client_of: ClientOf, part: str) -> None:
    job = build.job(name="secret-plan")
    found = {role: client_of(role).get(f"/jobs/{job.pk}{part}") for role in ROLES}
    assert {role: answer.status_code for role, answer in found.items()} == dict.fromkeys(ROLES, 200) | {"stranger": 404}
    assert b"secret-plan" not in found["stranger"].content


MAY_ACT = {"viewer": 403, "member": 403, "manager": 302, "owner": 302, "admin": 302, "ada": 302, "stranger": 404}


@pytest.mark.parametrize("act", ["cancel", "hold"])
def test_only_the_owner_of_a_job_and_managers_act_on_it(client_of: ClientOf, act: str) -> None:
    for role, status in MAY_ACT.items():
        job = build.job()
        assert client_of(role).post(f"/jobs/{job.pk}/{act}").status_code == status
        job.refresh_from_db()
        assert (job.state == "queued") is (status != 302)


@pytest.mark.parametrize(("role", "buttons"), [("viewer", set()), ("ada", {"b-hold", "b-cancel", "b-clone"})])
def test_the_job_page_offers_only_what_its_reader_may_do(client_of: ClientOf, role: str, buttons: set[str]) -> None:
    job = build.job()
    html = client_of(role).get(f"/jobs/{job.pk}").content.decode()
    assert set(re.findall(r'id="(b-[a-z]+)"', html)) == buttons


def test_a_held_job_is_released_by_its_button(client_of: ClientOf) -> None:
    job = build.job(hold=True)
    html = client_of("ada").get(f"/jobs/{job.pk}").content.decode()
    assert 'id="b-release"' in html
    client_of("ada").post(f"/jobs/{job.pk}/release")
    job.refresh_from_db()
    assert job.state == "queued"


@pytest.mark.parametrize("act", ["explode", "admit"])
def test_there_are_no_other_acts(client_of: ClientOf, act: str) -> None:
    job = build.job()
    assert client_of("admin").post(f"/jobs/{job.pk}/{act}").status_code == 404


def test_acts_are_never_done_by_a_link(client_of: ClientOf) -> None:
    job = build.job()
    for path in (f"/jobs/{job.pk}/cancel", f"/jobs/{job.pk}/resume", "/cluster/node", "/theme", "/account/tokens"):
        assert client_of("admin").get(path).status_code == 405


def test_forms_without_their_secret_are_refused_with_a_sentence(people: dict[str, User]) -> None:
    job = build.job()
    client = Client(enforce_csrf_checks=True)
    client.force_login(people["admin"])
    response = client.post(f"/jobs/{job.pk}/cancel")
    assert response.status_code == 403
    assert b"load the page again" in response.content
    job.refresh_from_db()
    assert job.state == "queued"


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/jobs/job_1", 404), ("/jobs?state=asleep", 400)])
def test_a_refusal_is_a_page_with_a_sentence_and_its_status(client_of: ClientOf, path: str, status: int) -> None:
    response = client_of("member").get(path)
    assert response.status_code == status
    assert b"data-refusal-text" in response.content


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "javascript:alert(1)"])
def test_nobody_is_sent_to_another_site(client_of: ClientOf, back: str) -> None:
    job = build.job()
    client = client_of("ada")
    assert client.post(f"/jobs/{job.pk}/cancel", {"back": back})["Location"] == f"/jobs/{job.pk}"
    assert client.post("/theme", {"theme": "dark", "next": back})["Location"] == "/"


def test_the_theme_stays_chosen(client_of: ClientOf) -> None:
    client = client_of("viewer")
    assert b'data-theme="auto"' in client.get("/jobs").content
    client.post("/theme", {"theme": "dark", "next": "/jobs"})
    assert b'data-theme="dark"' in client.get("/jobs").content
    assert client.post("/theme", {"theme": "pink"}).status_code == 400


def test_every_page_forbids_scripts_and_styles_that_are_not_the_portals(client_of: ClientOf) -> None:
    job = build.job(name="<script>alert(1)</script>", labels={"note": '"><img src=x onerror=alert(1)>'})
    client = client_of("admin")
    for path in (*FOR_ALL, f"/jobs/{job.pk}", f"/submit?from={job.pk}", "/nowhere"):
        response = client.get(path)
        policy = response["Content-Security-Policy"]
        assert "unsafe" not in policy
        html = response.content.decode()
        assert "<script>alert" not in html
        assert "<img src=x" not in html
        assert not re.search(r"<[^>]+\s(style|on[a-z]+)=", html), path
        assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", html), path
        assert "<style" not in html


def test_the_list_counts_states_and_keeps_the_other_filters(client_of: ClientOf) -> None:
    for index in range(3):
        build.job(name=f"wide-{index}", hold=index == 0)
    build.job(name="other")
    html = client_of("ada").get("/jobs?q=wide").content.decode()
    assert re.search(r'q=wide&amp;state=held"[^>]*>held <b>1</b>', html)
    assert re.search(r"queued <b>2</b>", html)
    assert "other" not in re.findall(r'<a href="/jobs/job_[0-9a-f]+">([^<]+)</a>', html)


def test_pages_of_the_list_neither_lose_nor_repeat_a_job(client_of: ClientOf) -> None:
    made = {build.job(name=f"n{index}").pk for index in range(120)}
    client, seen, path = client_of("ada"), [], "/jobs"
    for _ in range(3):
        html = client.get(path).content.decode()
        seen += re.findall(r'<a href="/jobs/(job_[0-9a-f]+)"', html)
        following = re.search(r'href="(/jobs\?before=[^"]+)"', html)
        path = following.group(1) if following else ""
    assert path == ""
    assert len(seen) == 120
    assert set(seen) == made


def test_a_label_with_strange_characters_is_data_not_a_look_up(client_of: ClientOf) -> None:
    build.job(name="mine", labels={"project": "a"})
    client = client_of("ada")
    assert b">mine</a>" in client.get("/jobs?label=project=a").content
    for label in ("project=b", "a__b=c", "project__in=a", "=", "'\"--=x", "%25=%25"):
        response = client.get("/jobs", {"label": label})
        assert response.status_code == 200
        assert b">mine</a>" not in response.content


def test_the_table_answers_304_until_something_changes(client_of: ClientOf) -> None:
    job = build.job()
    client = client_of("ada")
    first = client.get("/jobs/table")
    again = client.get("/jobs/table", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304
    assert again.content == b""
    Job.objects.filter(pk=job.pk).update(state="starting")
    changed = client.get("/jobs/table", headers={"If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    assert b"starting" in changed.content


def test_the_home_page_of_somebody_new_says_what_to_do_next(client_of: ClientOf, db: None) -> None:
    assert b"/submit?template=small" in client_of("member").get("/").content
    alone = Client()
    alone.force_login(build.user("alone"))
    assert b"You are in no team yet" in alone.get("/").content


@pytest.mark.parametrize("role", ["viewer", "member", "manager", "owner", "stranger"])
def test_nodes_and_quotas_are_the_administrators(client_of: ClientOf, role: str) -> None:
    client, quota = client_of(role), Quota.objects.get(queue__name="vision")
    assert client.post("/cluster/node", {"name": "a", "act": "drain", "reason": "x"}).status_code == 403
    assert client.get(f"/quota/{quota.pk}").status_code == 403
    assert client.post(f"/quota/{quota.pk}", {"nominal": "99"}).status_code == 403
    assert b"/cluster/node" not in client.get("/cluster").content
    quota.refresh_from_db()
    assert quota.nominal == 8


def test_the_grid_names_jobs_of_others_by_their_team_only(client_of: ClientOf) -> None:
    gang = build.Gang(build.job(name="secret-plan")).start()
    assert gang.attempt.allocations.count() == 4
    mine, theirs = (client_of(role).get("/cluster").content.decode() for role in ("viewer", "stranger"))
    assert mine.count("secret-plan") >= 4
    assert "secret-plan" not in theirs
    assert gang.job.pk not in theirs
    assert theirs.count(">vision</span>") == 4


def test_the_queue_page_counts_the_jobs_of_others_and_hides_them(client_of: ClientOf) -> None:
    build.job(name="secret-plan")
    html = client_of("stranger").get("/queue").content.decode()
    assert "secret-plan" not in html
    assert "1 job waits, for 4 GPUs" in html


def test_a_node_leaves_service_only_with_a_reason(client_of: ClientOf) -> None:
    from portal.cluster.models import Node

    client = client_of("admin")
    client.post("/cluster/node", {"name": "a", "act": "cordon", "reason": " "})
    assert Node.objects.get(pk="a").state == "ready"
    client.post("/cluster/node", {"name": "a", "act": "cordon", "reason": "fan 3"})
    assert (Node.objects.get(pk="a").state, Node.objects.get(pk="a").state_reason) == ("cordoned", "fan 3")
    client.post("/cluster/node", {"name": "a", "act": "uncordon"})
    assert Node.objects.get(pk="a").state == "ready"
    assert client.post("/cluster/node", {"name": "nope", "act": "uncordon"}).status_code == 404
    assert client.post("/cluster/node", {"name": "a", "act": "melt"}).status_code == 400


def test_a_token_is_shown_once_and_works_until_it_is_revoked(client_of: ClientOf) -> None:
    client = client_of("ada")
    html = client.post("/account/tokens", {"name": "ci", "scope": ["jobs:read"], "days": "7"}).content.decode()
    [text] = re.findall(r"yard_[0-9a-f]{16}_[\w-]{20,}", html)
    assert text not in client.get("/account").content.decode()
    bearer = {"Authorization": f"Bearer {text}"}
    assert Client().get("/api/v1/jobs", headers=bearer).status_code == 200
    token = Token.objects.get(name="ci")
    assert client_of("manager").post(f"/account/tokens/{token.pk}/revoke").status_code == 404
    client.post(f"/account/tokens/{token.pk}/revoke")
    assert Client().get("/api/v1/jobs", headers=bearer).status_code == 401


@pytest.mark.parametrize(
    "values",
    [
        {"name": "", "scope": ["jobs:read"], "days": "7"},
        {"name": "x", "days": "7"},
        {"name": "x", "scope": ["flow"], "days": "7"},
        {"name": "x", "scope": ["root"], "days": "7"},
        {"name": "x", "scope": ["jobs:read"], "days": "366"},
        {"name": "x", "scope": ["jobs:read"], "days": "-1"},
    ],
)
def test_a_token_that_makes_no_sense_is_refused_at_its_field(client_of: ClientOf, values: dict[str, object]) -> None:
    response = client_of("ada").post("/account/tokens", values)
    assert response.status_code == 422
    assert b'class="error"' in response.content
    assert not Token.objects.exists()


def test_owners_change_their_team_and_nobody_else_does(client_of: ClientOf, people: dict[str, User]) -> None:
    newcomer = build.user("newcomer")
    values = {"username": "newcomer", "role": "viewer"}
    assert client_of("manager").post("/teams/vision", values).status_code == 403
    assert client_of("stranger").post("/teams/vision", values).status_code == 404
    assert client_of("owner").post("/teams/vision", values).status_code == 302
    assert newcomer.memberships.get().role == "viewer"
    assert client_of("owner").post("/teams/vision", {"username": "nobody", "role": "viewer"}).status_code == 422
    client_of("owner").post("/teams/vision", {"username": "newcomer", "role": "none"})
    assert not newcomer.memberships.exists()


def test_a_team_keeps_at_least_one_owner(client_of: ClientOf, people: dict[str, User]) -> None:
    for role in ("member", "none"):
        response = client_of("owner").post("/teams/vision", {"username": "owner", "role": role})
        assert response.status_code == 422
        assert b"only owner" in response.content
    assert people["owner"].memberships.get().role == "owner"
