"""People in every role, a job of each state, and clients that are logged in."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client

from portal.accounts.models import Team, User
from tests.portal import builders as build

if connection.vendor == "sqlite":
    # The live server answers in several threads. An in-memory database would be one connection for all of
    # them, with locks that wait for nothing; a file is what the portal runs on. Read at collection: in time.
    connection.settings_dict["TEST"]["NAME"] = str(
        Path(str(connection.settings_dict["NAME"])).with_name("test.sqlite3")
    )


@pytest.fixture
def people(db: None) -> dict[str, User]:
    """One person for each role in team vision; a stranger is in another team."""
    vision, other = build.team("vision"), build.team("speech")
    build.nodes(a=2, b=2)
    found = {role: build.member(role, vision, role) for role in ("viewer", "member", "manager", "owner")}
    found["stranger"] = build.member("stranger", other, "owner")
    found["admin"] = build.admin()
    found["ada"] = build.member("ada", vision, "member")
    return found


@pytest.fixture
def client_of(people: dict[str, User]) -> Callable[[str], Client]:
    """A client that is logged in as the person of a role."""

    def make(role: str) -> Client:
        client = Client()
        client.force_login(people[role])
        return client

    return make


@pytest.fixture
def vision(people: dict[str, User]) -> Team:
    """The team that most jobs are of."""
    return Team.objects.get(name="vision")
