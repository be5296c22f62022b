"""Submitting: what is accepted, and what is refused with which sentence."""

import json
from typing import Any

import pytest
from django.test import Client

from portal.accounts.models import Membership
from portal.events.models import Event
from portal.jobs.models import IdempotencyRecord, Job
from portal.quotas.models import Quota
from tests.portal import builders as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    make.nodes(a=2, b=2)
    owner = make.member("ada", make.team(gpus=4))
    return Client(headers={"authorization": f"Bearer {make.token(owner)}"})


def post(client: Client, body: Any, **headers: str) -> Any:
    text = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return client.post("/api/v1/jobs", text, content_type="application/json", headers=headers)


def test_a_submitted_job_is_there_when_the_answer_is(client: Client) -> None:
    answer = post(client, make.spec())
    assert answer.status_code == 201
    assert answer["Location"] == f"/api/v1/jobs/{answer.json()['id']}"
    assert client.get(answer["Location"]).json()["state"] == "queued"
    assert Event.objects.filter(verb="submit").count() == 1


BAD = [
    pytest.param({"gpu_type": "h900"}, 422, "/gpu_type", "Known: cpu-sim", id="unknown-gpu-type"),
    pytest.param({"nodes": 3}, 422, "/nodes", "the cluster has 2 such nodes", id="more-nodes-than-exist"),
    pytest.param({"gpus_per_node": 3}, 422, "/nodes", "has 0 such nodes", id="more-gpus-than-a-node-has"),
    pytest.param({"nodes": -1}, 422, "/nodes", "at least 1", id="negative"),
    pytest.param({"nodes": 10**30}, 422, "/nodes", "at most", id="huge"),
    pytest.param({"nodes": 1.5}, 422, "/nodes", "whole number", id="not-whole"),
    pytest.param({"nodes": True}, 422, "/nodes", "whole number", id="a-truth-value"),
    pytest.param({"gpus": 4}, 422, "/gpus", "not a field", id="unknown-field"),
    pytest.param({"name": ""}, 422, "/name", "at least 1 character", id="empty-name"),
    pytest.param({"team": "nobody"}, 422, "/team", "no team", id="unknown-team"),
    pytest.param({"priority": 10**6}, 422, "/priority", "at most 1000", id="priority-out-of-range"),
    pytest.param({"environment": {"LD_PRELOAD": "x"}}, 422, "/environment", "set by the platform", id="ld-preload"),
    pytest.param({"resume": "ckpt_none"}, 422, "/resume", "no checkpoint", id="unknown-checkpoint"),
    pytest.param({"workload": {"kind": "magic"}}, 422, "/workload", "trainer", id="unknown-workload"),
    pytest.param(
        {"workload": {"kind": "command", "argv": ["python", "absent.py"], "working_dir": "/"}},
        422,
        "/workload/argv/1",
        "does not exist",
        id="entry-point-absent",
    ),
    pytest.param(
        {"workload": {"kind": "command", "argv": ["python"], "working_dir": "/no/such"}},
        422,
        "/workload/working_dir",
        "does not exist",
        id="working-dir-absent",
    ),
    pytest.param(
        {"workload": {"kind": "trainer", "config": {"stepz": 5}}}, 422, "/workload/config/stepz", "step", id="trainer"
    ),
]


@pytest.mark.parametrize(("change", "status", "pointer", "words"), BAD)
def test_a_bad_spec_is_refused_with_its_place_and_nothing_is_written(
    client: Client, change: dict[str, Any], status: int, pointer: str, words: str
) -> None:
    answer = post(client, make.spec(**change))
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    faults = {e["pointer"]: e["detail"] for e in answer.json()["errors"]}
    assert words in faults[pointer]
    assert not Job.objects.exists()
    assert not Event.objects.filter(verb="submit").exists()


def test_a_job_that_could_never_fit_its_quota_is_refused(client: Client) -> None:
    Quota.objects.update(nominal=3)
    answer = post(client, make.spec())
    assert answer.status_code == 422
    assert answer.json()["code"] == "quota-exceeded"
    assert "at most 3" in answer.json()["detail"]


def test_a_job_that_merely_has_to_wait_is_accepted(client: Client) -> None:
    Quota.objects.update(used=4)
    assert post(client, make.spec()).status_code == 201


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param("{", 400, id="not-json"),
        pytest.param("[" * 5000 + "]" * 5000, 400, id="deep"),
        pytest.param('{"nodes": NaN}', 400, id="nan"),
        pytest.param("[]", 422, id="a-list"),
        pytest.param('{"name": "' + "x" * 10_000_000 + '"}', 413, id="ten-megabytes"),
    ],
)
def test_a_body_that_is_no_spec_is_refused(client: Client, body: str, status: int) -> None:
    answer = post(client, body)
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert not Job.objects.exists()


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join('*' + chr(97 + i) for _ in range(9))}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [(BOMB, "aliases"), ("name: [", "line 1"), ("name: a\nname: b", "stands twice"), ("- " * 100 + "x", "deep")],
    ids=["bomb", "broken", "twice", "deep"],
)
def test_yaml_is_read_with_limits(client: Client, text: str, words: str) -> None:
    answer = client.post("/api/v1/jobs", text, content_type="application/yaml")
    assert answer.status_code == 400
    assert words in answer.json()["detail"]


def test_one_key_makes_one_job(client: Client) -> None:
    first = post(client, make.spec(), idempotency_key="k1")
    again = post(client, make.spec(), idempotency_key="k1")
    assert again.json()["id"] == first.json()["id"]
    assert again["Idempotency-Replayed"] == "true"
    other = post(client, make.spec(name="other"), idempotency_key="k1")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")
    assert Job.objects.count() == IdempotencyRecord.objects.count() == 1


def test_a_refused_submission_leaves_its_key_free(client: Client) -> None:
    assert post(client, make.spec(nodes=99), idempotency_key="k").status_code == 422
    assert post(client, make.spec(), idempotency_key="k").status_code == 201


def test_a_viewer_may_not_submit_and_a_stranger_sees_nothing(client: Client) -> None:
    job_id = post(client, make.spec()).json()["id"]
    Membership.objects.update(role="viewer")
    refused = post(client, make.spec())
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    stranger = Client(headers={"authorization": f"Bearer {make.token(make.user('eve'))}"})
    assert stranger.get(f"/api/v1/jobs/{job_id}").status_code == 404
    assert stranger.get("/api/v1/jobs").json()["items"] == []


def test_unknown_parameters_are_refused_not_ignored(client: Client) -> None:
    answer = client.get("/api/v1/jobs?statez=queued")
    assert answer.status_code == 400
    assert "statez" in answer.json()["detail"]


def test_pages_of_a_list_meet_without_gap_or_overlap(client: Client) -> None:
    ids = [post(client, make.spec(name=f"n{i}")).json()["id"] for i in range(7)]
    seen, address = [], "/api/v1/jobs?limit=3"
    while address:
        page = client.get(address).json()
        seen += [row["id"] for row in page["items"]]
        address = f"/api/v1/jobs?limit=3&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert seen == ids[::-1]


def test_without_a_token_the_answer_says_how_to_come_in() -> None:
    answer = Client().get("/api/v1/jobs")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
