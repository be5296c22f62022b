"""What every request gets, and what happens when the database does not answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from portal.jobs.models import Job
from tests.portal import builders as make

pytestmark = pytest.mark.django_db


@contextmanager
def database_refusing(words: str) -> Iterator[None]:
    """Writes fail as they do when the database is locked or away."""

    def refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(words):
            raise OperationalError("database is locked")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield


def test_a_locked_database_is_said_in_a_sentence_and_nothing_is_half_written() -> None:
    make.nodes(a=2, b=2)
    owner = make.member("ada", make.team())
    client = Client(headers={"authorization": f"Bearer {make.token(owner)}"}, raise_request_exception=False)
    with database_refusing("INSERT"):
        answer = client.post("/api/v1/jobs", make.spec(), content_type="application/json")
    assert answer.status_code == 503
    assert answer["Retry-After"]
    assert answer.json()["code"] == "database-away"
    assert "Nothing was changed" in answer.json()["detail"]
    assert not Job.objects.exists()


def test_a_request_id_is_kept_when_it_is_harmless_and_made_when_not() -> None:
    client = Client()
    assert client.get("/healthz", headers={"x-request-id": "abc-1"})["X-Request-ID"] == "abc-1"
    assert client.get("/healthz", headers={"x-request-id": "a\nb"})["X-Request-ID"] != "a\nb"


def test_readiness_needs_the_database() -> None:
    assert Client().get("/readyz").json() == {"status": "ready"}
