"""What a person deploys with: every setting is listed, and docker-compose.yml hangs together.

No container engine runs in the tests: the file is read and checked, not started.
"""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.settings import FlowSettings
from portal.environment import Environment

ROOT = Path(__file__).resolve().parent.parent
SETTING = re.compile(r"^([A-Z][A-Z0-9_]*)=(.*)$", re.M)
PORTAL_SECRETS = {"TRAINYARD_SECRET_KEY", "TRAINYARD_TOKEN_KEY", "TRAINYARD_DATABASE_URL", "TRAINYARD_BROKER_URL"}
OURS = (
    "migrate",
    "flow-token",
    "web",
    "scheduler",
    "celery",
    "deploy",
    "worker",
    "prefect",
    "prefect-migrate",
    "manage",
)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    return dict(SETTING.findall((ROOT / ".env.example").read_text()))


def test_every_setting_is_in_the_example_with_its_default(listed: dict[str, str]) -> None:
    for model in (Environment, FlowSettings):
        for name, field in model.model_fields.items():
            variable = f"TRAINYARD_{name.upper()}"
            assert variable in listed, f"{variable} is not in .env.example"
            text, default = listed[variable], field.default
            if isinstance(default, bool):
                assert text == str(default).lower(), variable
            elif isinstance(default, (int, float)):
                assert float(text) == default, variable
            elif isinstance(default, list):
                assert text.split(",") == default, variable
            elif default is not None and default != "":
                assert text == str(default).rstrip("/") or text == str(default), variable


def test_the_example_is_accepted_as_it_stands(listed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in listed.items():
        monkeypatch.setenv(name, text)
    assert Environment().engine == "local"
    assert FlowSettings().flow_limit == 32


def variables(node: Any) -> Iterator[str]:
    """Names of the variables that compose puts in."""
    if isinstance(node, dict):
        for value in node.values():
            yield from variables(value)
    elif isinstance(node, list):
        for value in node:
            yield from variables(value)
    elif isinstance(node, str):
        yield from re.findall(r"(?<!\$)\$\{([A-Z_]+)", node)


def test_what_compose_asks_for_is_in_the_example(compose: dict[str, Any], listed: dict[str, str]) -> None:
    asked = set(variables(compose)) - {"TRAINYARD_IMAGE"}
    assert asked
    assert asked <= set(listed)


def test_services_wait_for_services_that_can_say_when_they_are_ready(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, condition in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}"
            else:
                assert condition["condition"] == "service_completed_successfully"
                assert services[other]["restart"] == "no", f"{other} never completes"
    order: list[str] = []
    while len(order) < len(services):
        found = [n for n, s in services.items() if n not in order and set(s.get("depends_on", {})) <= set(order)]
        assert found, "services wait for each other in a circle"
        order += found


def test_only_the_portal_is_published_and_only_on_the_loopback_by_default(compose: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert published == {"web": ["${TRAINYARD_PUBLISH:-127.0.0.1:8000}:8000"]}


def test_flows_and_their_agents_know_none_of_the_portals_secrets(compose: dict[str, Any]) -> None:
    for name in ("worker", "deploy", "prefect"):
        assert PORTAL_SECRETS.isdisjoint(compose["services"][name]["environment"]), name


def test_settings_in_compose_are_settings_that_exist(compose: dict[str, Any]) -> None:
    known = {f"TRAINYARD_{n.upper()}" for model in (Environment, FlowSettings) for n in model.model_fields}
    for name in OURS:
        ours = {v for v in compose["services"][name]["environment"] if v.startswith("TRAINYARD_")}
        assert ours <= known, name
    web = compose["services"]["web"]["environment"]
    assert set(web) >= PORTAL_SECRETS


def test_programs_in_compose_exist(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        words = [*service.get("entrypoint", []), *service["command"]]
        if words[0] == "python" and words[1] == "manage.py":
            commands = {p.stem for p in (ROOT / "portal").glob("*/management/commands/*.py")} | {"migrate", "help"}
            assert words[2] in commands, name
        elif words[0] == "python":
            assert importlib.util.find_spec(words[2]), name
        else:
            assert importlib.util.find_spec(words[0]), name


def test_volumes_are_declared(compose: dict[str, Any]) -> None:
    used = {v.split(":")[0] for service in compose["services"].values() for v in service.get("volumes", ())}
    assert used == set(compose["volumes"])
