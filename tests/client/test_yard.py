"""The yard command against a real portal (Django's live server)."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from portal.jobs.models import Job
from tests.portal import builders as make

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client"))
from yard.cli import main  # noqa: E402
from yard.client import Client, NotReachable  # noqa: E402


@pytest.fixture
def yard(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    make.nodes(a=2, b=2)
    owner = make.member("ada", make.team(gpus=4))
    monkeypatch.setenv("TRAINYARD_URL", live_server.url)
    monkeypatch.setenv("TRAINYARD_TOKEN", make.token(owner))
    return lambda *arguments, text=None: CliRunner().invoke(main, list(arguments), input=text)


@pytest.mark.django_db(transaction=True)
def test_submit_list_show_and_cancel(yard: Any) -> None:
    done = yard("submit", "-", "--json", text=json.dumps(make.spec()))
    assert done.exit_code == 0, done.output
    job_id = json.loads(done.output)["id"]
    assert job_id in yard("ps", "--json").output
    assert "queued" in yard("show", job_id).output
    assert yard("cancel", job_id).output.strip() == f"{job_id}  cancelled"
    assert yard("wait", job_id).exit_code == 1, "a cancelled job is no success"


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_a_sentence_with_its_places_and_exit_status_3(yard: Any) -> None:
    done = yard("submit", "-", text=json.dumps(make.spec(nodes=-1, gpus=1)))
    assert done.exit_code == 3
    assert "/nodes: nodes must be at least 1." in done.stderr
    assert "/gpus:" in done.stderr
    assert not Job.objects.exists()


def test_nobody_there_is_exit_status_4() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{unused.getsockname()[1]}", "x", retry_s=0.5)
        with pytest.raises(NotReachable) as caught:
            client.submit({})
    assert caught.value.idempotency_key, "safe to use again"
