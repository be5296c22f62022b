"""Prefect's settings: every name is one that Prefect knows, and nothing leaves the machine."""

from pathlib import Path

from prefect.settings import Settings
from prefect.settings.legacy import _get_settings_fields

from flows.prefect_env import prefect_environment, server_argv

HOME = Path("/home/prefect")
MADE = prefect_environment(api_url="http://127.0.0.1:4200/api", auth="name:word", home=HOME)


def test_every_setting_is_one_that_this_prefect_has() -> None:
    known = _get_settings_fields(Settings)
    assert [name for name in MADE if name not in known and name != "DO_NOT_TRACK"] == []


def test_nothing_is_told_outside_and_the_server_listens_on_loopback_only() -> None:
    for name in ("PREFECT_SERVER_ANALYTICS_ENABLED", "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY"):
        assert MADE[name] == "false"
    assert MADE["DO_NOT_TRACK"] == "1"
    argv = server_argv(4200)
    assert argv[argv.index("--host") + 1] == "127.0.0.1"


def test_the_api_asks_for_the_word_that_its_callers_send() -> None:
    assert MADE["PREFECT_SERVER_API_AUTH_STRING"] == MADE["PREFECT_API_AUTH_STRING"] == "name:word"
    assert MADE["PREFECT_HOME"] == str(HOME)
