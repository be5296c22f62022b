"""The small parts that pages are made of: numbers, bars, live pieces, the drawing of attempts, words."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils.translation import override
from hypothesis import given
from hypothesis import strategies as st

from portal.errors import PortalError
from portal.jobs.log_follow import log_since
from portal.jobs.models import Attempt, Checkpoint, Job, Restart
from portal.jobs.telemetry import LogFile
from portal.jobs.timeline import attempt_phases, timeline
from portal.jobs.words import CLASSES, REASONS, SENTENCES, STATES, cause_sentence, reason_sentence
from portal.usage.models import Cause
from portal.usage.words import CAUSES, EXPLANATIONS
from portal.web.formats import duration, num_bytes, tenths
from portal.web.refusals import told
from portal.web.svg import Share, stacked, tick_step_s
from tests.portal import builders as build

ClientOf = Callable[[str], Client]


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.floats(0, 1e12), max_size=11))
def test_shown_shares_sum_to_exactly_a_hundred(values: dict[str, float]) -> None:
    shown = tenths(values)
    whole = sum(values.values())
    assert round(sum(shown.values()), 6) == (100.0 if whole > 0 else 0.0)
    for key, value in values.items():
        if whole > 0:
            assert abs(shown[key] - 100 * value / whole) <= 0.1 + 1e-6


@given(st.lists(st.floats(0, 1e9), max_size=12))
def test_the_pieces_of_a_bar_meet_and_fill_it(values: list[float]) -> None:
    segments = stacked([Share("used", "", v) for v in values])
    end = 0.0
    for segment in segments:
        assert segment.x == pytest.approx(end, abs=1e-6)
        end = segment.x + segment.width
    assert not segments or end == pytest.approx(100, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (0, "0 s"),
        (9.44, "9.4 s"),
        (59.6, "1 min"),
        (75, "1 min 15 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(("count", "words"), [(None, "–"), (0, "0 B"), (1023, "1023 B"), (41_700_000, "39.8 MiB")])
def test_bytes_are_shown_with_a_fitting_unit(count: int | None, words: str) -> None:
    assert num_bytes(count) == words


@pytest.mark.parametrize("span_s", [1, 59, 3600, 86_400, 10**7, 10**9])
def test_an_axis_never_has_too_many_marks(span_s: int) -> None:
    assert span_s / tick_step_s(span_s, most=6) <= 6


def test_every_code_has_words_in_both_languages() -> None:
    from scheduler.plan import Reason

    tables = [(REASONS, list(Reason)), (SENTENCES, list(Reason)), (CAUSES, list(Cause)), (EXPLANATIONS, list(Cause))]
    for table, codes in tables:
        for code in codes:
            english = str(table[code])
            with override("zh-hans"):
                assert str(table[code]) != english, code
    assert set(CLASSES) >= {"user_code", "oom_gpu", "hang", "unknown", "platform", "preempted"}
    assert set(STATES) >= {
        *map(str, Job._meta.get_field("state").choices and dict(Job._meta.get_field("state").choices))
    }


def test_a_reason_shows_the_numbers_of_the_pass_that_decided_it() -> None:
    detail = {"gpu_type": "h200", "asked": 8, "used": 6, "nominal": 8, "available": 2}
    assert reason_sentence({"code": "team_quota", "detail": detail}) == (
        "Its queue uses 6 of 8 h200 GPUs; 2 are available and the job asks for 8."
    )
    assert "2 running jobs" in reason_sentence({"code": "waiting_for_preemption", "detail": {"victims": ["a", "b"]}})


@pytest.mark.parametrize(
    "reason", [None, {}, {"code": "fragmented"}, {"code": "fragmented", "detail": {"free": 1}}, {"code": "new_code"}]
)
def test_a_reason_without_its_numbers_is_still_words(reason: dict[str, object] | None) -> None:
    sentence = reason_sentence(reason)
    assert sentence
    assert "{" not in sentence


def test_a_cause_names_rank_node_and_signal() -> None:
    cause = {"class": "unknown", "code": "killed", "root_rank": 1, "root_node": "a", "signal": 9, "exit_code": -9}
    assert cause_sentence(cause) == "A process was killed from outside: rank 1 on a, signal 9."
    assert (
        cause_sentence({"class": "user_code", "code": "brand_new", "exit_code": 3})
        == "The program failed, exit status 3."
    )


def test_refusals_are_told_in_the_readers_language_with_their_numbers() -> None:
    sentence = "A job that is succeeded cannot hold. It has ended for good."
    assert told(sentence) == sentence
    with override("zh-hans"):
        assert told(sentence) == "处于 succeeded 状态的作业不能 hold。它已经结束。"
        nested = told("2 things are wrong in the job spec: nodes must be at least 1.")
        assert nested == "作业规格有 2 处错误：nodes 不能小于 1。"
        assert told("A sentence that nobody knows.") == "A sentence that nobody knows."


@pytest.mark.django_db
def test_refusals_of_the_services_are_in_the_table() -> None:
    """What people meet most: each of these must not stay English on a Chinese page."""
    from portal.jobs.services import job_check, job_hold

    ada = build.member("ada", build.team())
    build.nodes(a=2, b=2)
    changes = [{"nodes": 0}, {"nodes": 9}, {"nodes": "x"}, {"gpu_type": "h1"}, {"team": "no"}, {"zzz": 1}, {"name": ""}]
    found = []
    for change in changes:
        with pytest.raises(PortalError) as caught:
            job_check(user=ada, data=build.spec(**change))
        found += [error.detail for error in caught.value.errors]
    job = build.job(ada, hold=True)
    with pytest.raises(PortalError) as caught:
        job_hold(job=job, user=ada, now=build.NOW)
    found.append(caught.value.detail)
    with override("zh-hans"):
        assert [sentence for sentence in found if told(sentence) == sentence] == []


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@pytest.mark.django_db
def test_the_drawing_covers_an_attempt_from_its_decision_to_its_end_without_gaps() -> None:
    workload = {"kind": "trainer", "config": {"global_batch_size": 16}}
    gang = build.Gang(build.job(workload=workload), now=build.NOW + seconds(5)).start().wait(1).run()
    start = gang.now
    Restart.objects.update(first_rank_at=start + seconds(1), first_step_at=start + seconds(2), first_step=1)
    gang.wait(10).exits(1, -9)
    gang.wait(2).report("a", restart=0)
    gang.wait(1).ready()
    attempt = Attempt.objects.select_related("job").get()
    now = gang.now + seconds(4)
    phases = attempt_phases(attempt, list(attempt.restarts.order_by("number")), now)
    assert [p.name for p in phases] == ["starting", "joining", "restoring", "running", "broken", "joining"]
    assert phases[0].begin == attempt.created_at
    assert phases[-1].end == now
    assert all(a.end == b.begin for a, b in zip(phases, phases[1:], strict=False))
    drawing = timeline([attempt], submitted_at=build.NOW, now=now)
    assert drawing is not None
    [row] = drawing.rows
    assert sum(s.width for s in row.segments) == pytest.approx(100, abs=1e-6)
    assert [s.css for s in row.segments][0] == "waiting"
    assert len(row.marks) == 1


@pytest.mark.django_db
def test_a_program_that_reports_no_steps_counts_as_working_while_it_runs() -> None:
    gang = build.Gang(build.job()).start().wait(1).run()
    attempt = Attempt.objects.select_related("job").get()
    phases = attempt_phases(attempt, list(attempt.restarts.all()), gang.now + seconds(60))
    assert phases[-1].name == "running"


@pytest.mark.django_db
class TestLive:
    """The job page asks every second: it gets what has changed, and 304 otherwise."""

    def test_nothing_new_costs_an_empty_answer(self, client_of: ClientOf) -> None:
        job, client = build.job(), client_of("ada")
        first = client.get(f"/jobs/{job.pk}/live")
        assert first.status_code == 200
        again = client.get(f"/jobs/{job.pk}/live", headers={"If-None-Match": first["ETag"]})
        assert (again.status_code, again.content) == (304, b"")

    def test_only_parts_that_differ_are_sent(self, client_of: ClientOf) -> None:
        job, client = build.job(), client_of("ada")
        page = client.get(f"/jobs/{job.pk}").content.decode()
        shown = re.findall(r'data-part="(\w+)" data-digest="(\w+)"', page)
        assert {name for name, _ in shown} == {"state", "acts", "why", "attempts", "checkpoints", "ranks"}
        headers = {"X-Parts": ";".join(f"{name}={value}" for name, value in shown)}
        assert client.get(f"/jobs/{job.pk}/live", headers=headers).content == b""
        reason = {"code": "priority", "detail": {}, "checked_at": "now"}
        Job.objects.filter(pk=job.pk).update(pending_reason=reason)
        answer = client.get(f"/jobs/{job.pk}/live", headers=headers).content.decode()
        assert set(re.findall(r'data-part="(\w+)"', answer)) == {"state", "why"}
        assert "delay a job that goes first" in answer

    def test_the_counting_clock_alone_is_no_change(self, client_of: ClientOf) -> None:
        job, client = build.job(), client_of("ada")
        one, two = (
            re.findall(r'data-digest="(\w+)"', client.get(f"/jobs/{job.pk}").content.decode()) for _ in range(2)
        )
        Job.objects.filter(pk=job.pk).update(submitted_at=job.submitted_at)
        assert one == two

    @pytest.mark.parametrize("what", ["state", "step", "checkpoint", "rank", "restart", "reason"])
    def test_whatever_the_page_shows_changes_the_fingerprint(self, client_of: ClientOf, what: str) -> None:
        gang = build.Gang(build.job()).start().wait(1).run()
        client = client_of("ada")
        before = client.get(f"/jobs/{gang.job.pk}/live")["ETag"]
        if what == "state":
            Job.objects.update(state="recovering")
        elif what == "step":
            Job.objects.update(max_step=7)
        elif what == "checkpoint":
            Checkpoint.objects.create(
                job=gang.job, attempt=gang.attempt, step=1, path="/x", state="durable", written_at=build.NOW
            )
        elif what == "rank":
            gang.exits(0, 1)
        elif what == "restart":
            Restart.objects.update(first_step_at=build.NOW)
        else:
            Job.objects.update(pending_reason={"code": "x", "checked_at": "later"})
        assert client.get(f"/jobs/{gang.job.pk}/live")["ETag"] != before

    def test_the_end_of_a_job_ends_the_asking(self, client_of: ClientOf) -> None:
        job, client = build.job(), client_of("ada")
        client.post(f"/jobs/{job.pk}/cancel")
        answer = client.get(f"/jobs/{job.pk}/live")
        assert answer.status_code == 286
        assert b"state-cancelled" in answer.content
        assert b"/live" not in client.get(f"/jobs/{job.pk}").content


@pytest.mark.django_db
class TestLog:
    """A log is followed without losing or doubling a line."""

    @pytest.fixture
    def gang(self, client_of: ClientOf) -> build.Gang:
        return build.Gang(build.job()).start().wait(1).run()

    def write(self, gang: build.Gang, text: str, stream: str = "stdout") -> LogFile:
        from django.conf import settings

        folder = settings.JOBS_DIR / gang.job.pk / "attempts" / gang.attempt.pk
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{stream}.log").open("a") as file:
            file.write(text)
        return LogFile.objects.get_or_create(
            attempt=gang.attempt, path=f"{stream}.log", defaults={"rank": 0, "restart": 0, "stream": stream}
        )[0]

    def test_lines_come_once_and_a_torn_line_waits_for_its_end(self, gang: build.Gang, client_of: ClientOf) -> None:
        self.write(gang, "one\ntwo\n")
        client, path = client_of("viewer"), f"/jobs/{gang.job.pk}/log"
        answer = client.get(path).json()
        assert answer["lines"] == ["one", "two"]
        seen = []
        for text in ("thr", "ee\nfour\n", "", "five\n"):
            self.write(gang, text)
            answer = client.get(path, {"after": answer["after"], "file": answer["file"]}).json()
            seen += answer["lines"]
        assert seen == ["three", "four", "five"]

    def test_terminal_codes_are_taken_out_and_markup_stays_text(self, gang: build.Gang, client_of: ClientOf) -> None:
        row = self.write(gang, "\x1b[31mred\x1b[0m <b>x</b>\n")
        assert log_since(gang.attempt, row, after=0)[0] == ["red <b>x</b>"]
        answer = client_of("viewer").get(f"/jobs/{gang.job.pk}/log")
        assert answer["Content-Type"] == "application/json"

    def test_only_lines_with_the_wanted_text(self, gang: build.Gang, client_of: ClientOf) -> None:
        self.write(gang, "a 1\nb 2\na 3\n")
        assert client_of("viewer").get(f"/jobs/{gang.job.pk}/log?q=a").json()["lines"] == ["a 1", "a 3"]

    def test_a_rank_that_has_written_nothing_is_no_error(self, gang: build.Gang, client_of: ClientOf) -> None:
        answer = client_of("viewer").get(f"/jobs/{gang.job.pk}/log?rank=3")
        assert (answer.status_code, answer.json()["lines"]) == (200, [])

    def test_the_whole_file_is_for_those_who_see_the_job(self, gang: build.Gang, client_of: ClientOf) -> None:
        self.write(gang, "x\n" * 1000)
        path = f"/jobs/{gang.job.pk}/log/file"
        answer = client_of("viewer").get(path)
        assert b"".join(answer.streaming_content) == b"x\n" * 1000  # type: ignore[attr-defined]
        assert "attachment" in answer["Content-Disposition"]
        assert client_of("stranger").get(path).status_code == 404

    @pytest.mark.parametrize("query", ["rank=-1", "rank=x", "restart=1e9", "after=-5&file=1", "attempt=9" + "9" * 30])
    def test_numbers_that_are_none_are_refused(self, gang: build.Gang, client_of: ClientOf, query: str) -> None:
        row = self.write(gang, "x\n")
        assert (
            client_of("viewer").get(f"/jobs/{gang.job.pk}/log?{query.replace('file=1', f'file={row.pk}')}").status_code
            == 400
        )
