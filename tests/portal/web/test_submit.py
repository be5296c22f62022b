"""The submit page: form and YAML say the same, faults stand at their fields, one click makes one job."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from portal.jobs.forms import FIELDS, duration_read, duration_text, field_of, form_of, spec_of, yaml_of
from portal.jobs.models import Job
from portal.jobs.spec import spec_parse
from portal.quotas.models import Quota
from tests.portal import builders as build

ClientOf = Callable[[str], Client]
TRAINER: dict[str, Any] = {
    "name": "gpt",
    "team": "vision",
    "gpu_type": "cpu-sim",
    "nodes": 2,
    "gpus_per_node": 2,
    "time_limit_s": 5400,
    "labels": {"project": "a"},
    "environment": {"OMP_NUM_THREADS": "1", "EMPTY": ""},
    "workload": {
        "kind": "trainer",
        "config": {
            "steps": 50,
            "global_batch_size": 16,
            "model": {"preset": "nano", "dropout": 0.1},
            "optimizer": {"lr": 0.01},
        },
    },
}
COMMAND: dict[str, Any] = {
    "name": "mine",
    "team": "vision",
    "gpu_type": "cpu-sim",
    "workload": {"kind": "command", "argv": ["python", "-c", "print('a b')"], "working_dir": "/"},
}


def key_of(page: str) -> str:
    """The form's idempotency key."""
    found = re.search(r'name="key" value="([^"]+)"', page)
    assert found
    return found.group(1)


def yaml_shown(page: str) -> Any:
    """The YAML text area, read."""
    found = re.search(r'<textarea id="yaml"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL)
    assert found
    return yaml.safe_load(html.unescape(found.group(1)))


def errors_shown(page: str) -> dict[str, str]:
    """Field → its sentence."""
    found = re.findall(r'<p class="error" id="e-(\w+)"[^>]*>([^<]+)</p>', page)
    return {name: html.unescape(text) for name, text in found}


def posted(spec: dict[str, Any], **changes: str) -> dict[str, str]:
    """What the browser sends after fields of the form were changed."""
    return form_of(spec) | {"yaml": yaml_of(spec), "edited": "form", "key": "k"} | changes


@pytest.mark.parametrize("spec", [TRAINER, COMMAND], ids=["trainer", "command"])
def test_form_and_yaml_say_the_same_both_ways(spec: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_of(spec)) == spec
    again, faults = spec_of(form_of(spec), spec)
    assert faults == []
    assert spec_parse(again)[1] == spec_parse(spec)[1]
    # What the form has no field for is kept.
    assert again["workload"] == {**spec["workload"], **again["workload"]}
    if spec is TRAINER:
        assert again["workload"]["config"]["optimizer"] == {"lr": 0.01}
        assert again["workload"]["config"]["model"]["dropout"] == 0.1


words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs")), min_size=1, max_size=12
)


@given(
    name=words,
    nodes=st.integers(1, 10**6),
    limit=st.none() | st.integers(1, 31_536_000),
    argv=st.lists(words, min_size=1, max_size=5),
    labels=st.dictionaries(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), words, max_size=3),
)
def test_any_spec_comes_back_from_the_form_as_it_went_in(
    name: str, nodes: int, limit: int | None, argv: list[str], labels: dict[str, str]
) -> None:
    spec: dict[str, Any] = {
        "name": name,
        "team": "vision",
        "gpu_type": "cpu-sim",
        "nodes": nodes,
        "labels": labels,
        "workload": {"kind": "command", "argv": argv, "working_dir": "/srv"},
    }
    if limit:
        spec["time_limit_s"] = limit
    assert yaml.safe_load(yaml_of(spec)) == spec
    again, faults = spec_of(form_of(spec), spec)
    assert faults == []
    for part in ("name", "nodes", "workload"):
        assert again[part] == spec[part]
    assert again.get("labels", {}) == labels
    assert again.get("time_limit_s") == limit


@given(st.integers(0, 10**8))
def test_a_duration_is_read_back(seconds: int) -> None:
    assert duration_read(duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h30m", 9000), ("1d", 86400), ("1:30:00", 5400), ("3600", 3600), ("2 h", 7200), ("5min", 300)],
)
def test_durations_are_written_as_people_write_them(text: str, seconds: int) -> None:
    assert duration_read(text) == seconds


@pytest.mark.parametrize("text", ["soon", "-1h", "1h-2m", "h", "1.5h", "9" * 12, "1h x"])
def test_what_is_no_duration_is_not_guessed(text: str) -> None:
    assert duration_read(text) is None


def test_every_field_is_found_by_the_pointer_of_its_faults() -> None:
    for field in FIELDS:
        assert field_of("/" + "/".join(field.path)) == field.name
    assert field_of("/workload/argv/0") == "argv"
    assert field_of("/workload/config/optimizer/lr") is None
    assert field_of("/environment/PATH") == "environment"


def test_an_edit_of_the_form_changes_the_yaml_and_the_preview(client_of: ClientOf) -> None:
    page = client_of("ada").post("/submit/sync", posted(TRAINER, nodes="1", time_limit="2h")).content.decode()
    shown = yaml_shown(page)
    assert (shown["nodes"], shown["time_limit_s"]) == (1, 7200)
    assert shown["workload"]["config"]["optimizer"] == {"lr": 0.01}
    assert "0 → 2 of 8 GPUs" in page
    assert "4.00" in page
    assert "form-side" not in page


def test_an_edit_of_the_yaml_changes_the_form(client_of: ClientOf) -> None:
    text = yaml_of({**TRAINER, "nodes": 1, "name": "other <name>"})
    page = client_of("ada").post("/submit/sync", posted(TRAINER, yaml=text, edited="yaml")).content.decode()
    assert 'name="name" value="other &lt;name&gt;"' in page
    assert 'name="nodes" value="1"' in page
    assert '<textarea id="yaml"' not in page


def test_yaml_that_cannot_be_read_is_said_with_its_line_and_nothing_is_lost(client_of: ClientOf) -> None:
    broken = "name: a\n  team: b: c\n"
    page = client_of("ada").post("/submit/sync", posted(TRAINER, yaml=broken, edited="yaml")).content.decode()
    assert "in line 2" in page
    assert "form-side" not in page
    response = client_of("ada").post("/submit", posted(TRAINER, yaml=broken, edited="yaml"))
    assert response.status_code == 422
    assert "team: b: c" in response.content.decode()
    assert not Job.objects.exists()


def test_the_preview_adds_the_asked_to_the_used_and_tells_what_would_be_borrowed(client_of: ClientOf) -> None:
    page = client_of("ada").get("/submit?template=gang").content.decode()
    assert "It should start at once" in page
    Quota.objects.filter(queue__name="vision").update(used=6)
    page = client_of("ada").get("/submit?template=gang").content.decode()
    assert "6 → 10 of 8 GPUs" in page
    assert "2 borrowed" in page
    assert "It would wait for quota" in page


def test_the_preview_counts_free_gpus_of_nodes_that_take_work(client_of: ClientOf) -> None:
    build.Gang(build.job(nodes=1, gpus_per_node=1)).start({"a": 1})
    page = client_of("ada").post("/submit/sync", posted(TRAINER)).content.decode()
    assert "1 of 2 nodes have 2 free GPUs now (3 free in all)" in page


WRONG = [
    ({"nodes": "1000000"}, "nodes", "at most"),
    ({"nodes": "5", "batch": "20"}, "nodes", "the cluster has 2 such nodes"),
    ({"nodes": "-1"}, "nodes", "at least 1"),
    ({"nodes": "two"}, "nodes", "whole number"),
    ({"nodes": "9" * 18}, "nodes", "at most"),
    ({"nodes": "9" * 400}, "nodes", "whole number"),
    ({"gpu_type": "h900"}, "gpu_type", "There is no GPU type"),
    ({"team": "nobody"}, "team", "There is no team"),
    ({"name": ""}, "name", "missing"),
    ({"name": "x" * 101}, "name", "at most 100"),
    ({"priority": "5000"}, "priority", "at most 1000"),
    ({"time_limit": "soon"}, "time_limit", "not a duration"),
    ({"environment": "PATH=/tmp"}, "environment", "set by the platform"),
    ({"environment": "NAME"}, "environment", "Line 1"),
    ({"labels": "Big=1"}, "labels", "small letters"),
    ({"preset": "huge"}, "preset", "huge"),
    ({"steps": "0"}, "steps", "steps"),
    ({"batch": "17"}, "batch", "17"),
    ({"kind": "command", "argv": "", "working_dir": "/"}, "argv", "missing"),
    ({"kind": "command", "argv": "python\nnope.py", "working_dir": "/"}, "argv", "nope.py"),
    ({"kind": "command", "argv": "true", "working_dir": "here"}, "working_dir", "absolute path"),
    ({"kind": "command", "argv": "true", "working_dir": "/no/such/folder"}, "working_dir", "does not exist"),
]


@pytest.mark.parametrize(("change", "field", "words"), WRONG)
def test_a_fault_stands_at_its_field_and_nothing_is_made(
    client_of: ClientOf, change: dict[str, str], field: str, words: str
) -> None:
    client = client_of("ada")
    synced = client.post("/submit/sync", posted(TRAINER, **change))
    assert synced.status_code == 200
    assert words in errors_shown(synced.content.decode())[field]
    response = client.post("/submit", posted(TRAINER, **change))
    assert response.status_code == 422
    page = response.content.decode()
    assert words in errors_shown(page)[field]
    # What was typed is still there.
    typed = html.escape(change[field])
    assert typed.replace("&#x27;", "&#39;") in page
    assert not Job.objects.exists()


def test_a_quota_that_can_never_fit_is_refused_at_the_field(client_of: ClientOf) -> None:
    Quota.objects.filter(queue__name="vision").update(nominal=3)
    response = client_of("ada").post("/submit", posted(TRAINER))
    assert response.status_code == 422
    assert "can use at most 3" in errors_shown(response.content.decode())["nodes"]
    assert not Job.objects.exists()


def test_unknown_fields_of_the_yaml_are_named(client_of: ClientOf) -> None:
    text = yaml_of({**TRAINER, "gpuss": 3})
    response = client_of("ada").post("/submit", posted(TRAINER, yaml=text, edited="yaml"))
    assert response.status_code == 422
    assert "gpuss is not a field of a job spec" in response.content.decode()


def test_a_yaml_bomb_and_a_huge_text_are_refused_unread(client_of: ClientOf) -> None:
    bomb = "a: &a [x,x]\nb: [*a,*a]\n"
    page = client_of("ada").post("/submit", posted(TRAINER, yaml=bomb, edited="yaml"))
    assert page.status_code == 422
    assert "anchors and aliases" in page.content.decode()
    huge = client_of("ada").post("/submit", posted(TRAINER, yaml="x" * 400_000, edited="yaml"))
    assert huge.status_code == 422
    assert "larger than 256 kB" in huge.content.decode()
    # Django itself stops reading at its limit.
    assert client_of("ada").post("/submit", posted(TRAINER, yaml="x" * 2_000_000)).status_code == 400
    assert not Job.objects.exists()


def test_two_clicks_make_one_job(client_of: ClientOf) -> None:
    client = client_of("ada")
    key = key_of(client.get("/submit").content.decode())
    first, second = (client.post("/submit", posted(TRAINER, key=key)) for _ in range(2))
    assert first.status_code == second.status_code == 302
    assert first["Location"] == second["Location"]
    assert Job.objects.count() == 1


def test_a_form_that_was_sent_before_can_be_sent_again_with_other_content(client_of: ClientOf) -> None:
    client = client_of("ada")
    client.post("/submit", posted(TRAINER, key="k1"))
    refused = client.post("/submit", posted(TRAINER, key="k1", name="another"))
    assert refused.status_code == 409
    page = refused.content.decode()
    assert "sent before" in page
    fresh = key_of(page)
    assert fresh != "k1"
    assert client.post("/submit", posted(TRAINER, key=fresh, name="another")).status_code == 302
    assert Job.objects.count() == 2


def test_a_refused_form_keeps_its_key_for_the_next_try(client_of: ClientOf) -> None:
    page = client_of("ada").post("/submit", posted(TRAINER, key="k7", nodes="0")).content.decode()
    assert key_of(page) == "k7"


def test_the_job_is_what_the_form_said(client_of: ClientOf) -> None:
    client_of("ada").post("/submit", posted(TRAINER, name="größer 中", priority="7", labels="a=b=c"))
    job = Job.objects.get()
    assert (job.name, job.priority, job.labels, job.user.username) == ("größer 中", 7, {"a": "b=c"}, "ada")
    assert job.spec["workload"]["config"]["optimizer"] == {"lr": 0.01}


def test_a_viewer_is_told_whom_to_ask_and_cannot_submit(client_of: ClientOf) -> None:
    client = client_of("viewer")
    page = client.get("/submit").content.decode()
    assert "You are in no team in which you may submit jobs" in page
    assert client.post("/submit", posted(TRAINER)).status_code == 403
    assert not Job.objects.exists()


def test_a_clone_starts_from_the_spec_and_not_from_the_checkpoint(client_of: ClientOf) -> None:
    job = build.job(name="first", labels={"a": "b"}, priority=3)
    Job.objects.filter(pk=job.pk).update(spec={**job.spec, "resume": "ckpt_1"})
    client = client_of("ada")
    shown = yaml_shown(client.get(f"/submit?from={job.pk}").content.decode())
    assert (shown["name"], shown["labels"], shown["priority"]) == ("first", {"a": "b"}, 3)
    assert "resume" not in shown
    assert client_of("stranger").get(f"/submit?from={job.pk}").status_code == 404


@pytest.mark.parametrize("template", ["small", "gang"])
def test_the_templates_are_accepted_as_they_are(client_of: ClientOf, template: str) -> None:
    client = client_of("ada")
    page = client.get(f"/submit?template={template}").content.decode()
    shown = yaml_shown(page)
    assert client.post("/submit", posted(shown, key=key_of(page))).status_code == 302


def test_the_shell_line_says_the_same_as_the_form(client_of: ClientOf) -> None:
    page = client_of("ada").get("/submit?template=gang").content.decode()
    found = re.search(r'id="curl"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert found
    text = html.unescape(found.group(1))
    assert yaml.safe_load(text.split("<<'YAML'\n")[1].removesuffix("YAML").rsplit("YAML", 1)[0]) == yaml_shown(page)
