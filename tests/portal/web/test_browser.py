"""The pages in a real Chromium, on Django's live server: what scripts do, and that nothing breaks the content policy."""

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import expect

from portal.accounts.models import User
from portal.jobs.models import Job
from portal.jobs.services import job_cancel
from portal.jobs.telemetry import LogFile, MetricChunk
from portal.quotas.models import Quota
from portal.usage.services import ledger_roll
from tests.portal import builders as build
from tests.portal.web.browser import Browser, browser, chromium_is_here

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not chromium_is_here(), reason="no Chromium on this machine"),
]
PASSWORD = "a-long-test-password"
TRAINER = {"kind": "trainer", "config": {"steps": 100, "global_batch_size": 16}}


def in_thread(work: Any) -> Any:
    """Do it outside Playwright's event loop, in which Django refuses to touch the database."""
    answer: list[Any] = []

    def run() -> None:
        from django.db import connections

        try:
            answer.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert answer, "the work in the thread failed"
    return answer[0]


@pytest.fixture
def ada(transactional_db: None) -> User:
    """A member of a team with quota and nodes."""
    build.nodes(a=2, b=2)
    return build.member("ada", build.team("vision"))


def session_of(user: User) -> str:
    """The key of a new session of the user."""
    client = Client()
    client.force_login(user)
    return str(client.session.session_key)


@pytest.fixture
def chromium(ada: User, live_server: Any) -> Iterator[Browser]:
    """A browser in which ada is logged in; at the end nothing may have gone wrong in it."""
    session = session_of(ada)
    with browser(live_server.url) as found:
        found.enter(session)
        yield found
        assert found.faults == []


def log_write(gang: build.Gang, text: str) -> None:
    """The gang's rank 0 writes to its log."""
    folder = settings.JOBS_DIR / gang.job.pk / "attempts" / gang.attempt.pk
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout.log").open("a") as file:
        file.write(text)
    LogFile.objects.get_or_create(
        attempt=gang.attempt, path="stdout.log", defaults={"rank": 0, "restart": 0, "stream": "stdout"}
    )


def numbers_write(gang: build.Gang, first: int, last: int) -> None:
    """The gang reports losses of these steps."""
    points = [[step, build.ns(gang.now), 5.0 / step + 1] for step in range(first, last + 1)]
    for name in ("loss", "tokens_per_s"):
        MetricChunk.objects.create(
            job=gang.job,
            attempt=gang.attempt,
            restart=0,
            name=name,
            rank=0,
            first_step=first,
            last_step=last,
            points=points,
        )
    Job.objects.filter(pk=gang.job.pk).update(max_step=last)


def test_from_log_in_to_the_usage_page_without_a_reload(chromium: Browser, ada: User) -> None:
    ada.set_password(PASSWORD)
    in_thread(lambda: ada.save() or True)
    page = chromium.page
    page.context.clear_cookies()
    chromium.log_in("ada", PASSWORD)
    job_id = chromium.submit_small_job("from-the-form", nodes="2", time_limit="30m", steps="100")
    assert chromium.state() == "queued"
    page.evaluate("window.notReloaded = true")
    expect(page.locator("#part-why")).to_contain_text("The scheduler has not looked at this job yet")

    def start() -> build.Gang:
        gang = build.Gang(Job.objects.get(pk=job_id), now=Job.objects.get(pk=job_id).submitted_at).wait(1).start()
        return gang.wait(2).run()

    gang = in_thread(start)
    chromium.wait_for_state("running")
    assert page.locator("#part-attempts svg.bar").count() == 1
    expect(page.locator("#part-ranks")).to_contain_text("running")

    in_thread(lambda: log_write(gang, "step 1 loss 6.0\nstep 2 loss 3.5\n") or True)
    in_thread(lambda: numbers_write(gang, 1, 50) or True)
    expect(page.locator("#log")).to_contain_text("step 2 loss 3.5", timeout=10_000)
    expect(page.locator("#part-state")).to_contain_text("50 / 100", timeout=10_000)
    expect(page.locator("#plot-loss canvas")).to_be_visible(timeout=10_000)
    in_thread(lambda: log_write(gang, "step 3 loss 2.7 <b>plain</b>\n") or True)
    expect(page.locator("#log")).to_contain_text("step 3 loss 2.7 <b>plain</b>", timeout=10_000)
    assert page.locator("#log").inner_text().count("step 2 loss") == 1

    def finish() -> bool:
        from portal.jobs.attempts import attempt_settle

        gang.wait(60).finish()
        gang.wait(1)
        attempt_settle(attempt_id=gang.attempt.pk, epoch=1, gone=True, checkpoint=None, now=gang.now)
        ledger_roll(now=gang.now)
        return True

    in_thread(finish)
    chromium.wait_for_state("succeeded")
    expect(page.locator("main")).to_contain_text("GPU-hours held", timeout=15_000)
    assert page.evaluate("window.notReloaded"), "the state changed without a reload"
    assert page.locator("#announce").inner_text() == "Job from-the-form is succeeded."

    chromium.open("/usage")
    expect(page.locator("tbody tr").first).to_contain_text("vision")
    expect(page.locator("tbody tr").first.locator("td").last).to_have_text("100.0")


def test_form_and_yaml_follow_each_other_while_one_types(chromium: Browser) -> None:
    page = chromium.open("/submit?template=small")
    page.locator("#f-nodes").fill("2")
    expect(page.locator("#yaml")).to_have_value(re.compile(r"nodes: 2"))
    expect(page.locator("#preview")).to_contain_text("2 × 2 cpu-sim")
    text = page.locator("#yaml").input_value()
    page.locator("#yaml").fill(text.replace("nodes: 2", "nodes: 1").replace("small-run", "typed-in-yaml"))
    expect(page.locator("#f-name")).to_have_value("typed-in-yaml")
    expect(page.locator("#f-nodes")).to_have_value("1")
    page.locator("#f-nodes").fill("8")
    expect(page.locator("#e-nodes")).to_contain_text("the cluster has 2 such nodes")
    expect(page.locator("#preview")).to_contain_text("It would be refused")
    page.locator("#f-nodes").fill("1")
    expect(page.locator("#e-nodes")).to_be_empty()
    page.locator("#yaml").fill("name: [")
    expect(page.locator("#yaml-error")).to_contain_text("not readable as YAML")
    expect(page.locator("#f-name")).to_have_value("typed-in-yaml")


def test_the_last_side_that_was_edited_is_what_is_submitted(chromium: Browser) -> None:
    page = chromium.open("/submit?template=small")
    text = page.locator("#yaml").input_value()
    page.locator("#yaml").fill(text.replace("small-run", "from-yaml"))
    # At once, before the two sides were brought together.
    page.locator("#submit-button").click()
    page.wait_for_url("**/jobs/job_*")
    expect(page.locator("h1")).to_have_text("from-yaml")


def test_a_double_click_submits_once(chromium: Browser) -> None:
    page = chromium.open("/submit?template=small")
    page.locator("#submit-button").dblclick()
    page.wait_for_url("**/jobs/job_*")
    assert in_thread(lambda: Job.objects.count()) == 1


def test_the_kind_of_work_shows_its_own_fields(chromium: Browser) -> None:
    page = chromium.open("/submit?template=small")
    expect(page.locator("#f-steps")).to_be_visible()
    expect(page.locator("#f-argv")).to_be_hidden()
    page.get_by_text("A program of mine").click()
    expect(page.locator("#f-argv")).to_be_visible()
    expect(page.locator("#f-steps")).to_be_hidden()
    page.locator("#f-argv").fill("python\n-c\npass")
    page.locator("#f-working_dir").fill("/")
    expect(page.locator("#yaml")).to_have_value(re.compile(r"kind: command"))
    expect(page.locator("#preview")).to_contain_text("GPU-hours")


def test_cancelling_asks_first_and_keyboards_can_answer(chromium: Browser, ada: User) -> None:
    job = in_thread(lambda: build.job(ada))
    page = chromium.open(f"/jobs/{job.pk}")
    page.locator("#b-cancel").click()
    expect(page.locator("#confirm")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#confirm")).to_be_hidden()
    assert chromium.state() == "queued"
    page.locator("#b-cancel").click()
    page.locator("#confirm-yes").click()
    chromium.wait_for_state("cancelled")


def test_the_list_renews_itself_and_keeps_its_filters(chromium: Browser, ada: User) -> None:
    job = in_thread(lambda: build.job(ada, name="watched"))
    in_thread(lambda: build.job(ada, name="unseen"))
    page = chromium.open("/jobs?q=watched")
    page.evaluate("window.notReloaded = true")
    expect(page.locator("tbody .state")).to_have_text("queued")
    in_thread(lambda: job_cancel(job=job, user=ada, now=datetime.now(UTC)))
    expect(page.locator("tbody .state")).to_have_text("cancelled", timeout=10_000)
    assert page.evaluate("window.notReloaded")
    assert page.locator("tbody tr").count() == 1
    page.locator(".chip", has_text="queued").wait_for(state="detached")


def test_polling_rests_while_nobody_looks(chromium: Browser, ada: User) -> None:
    job = in_thread(lambda: build.job(ada))
    page = chromium.open(f"/jobs/{job.pk}")
    page.wait_for_timeout(500)
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.wait_for_timeout(1500)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert asked == []
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(1500)
    assert any("/live" in url for url in asked)


def test_an_unchanged_page_is_asked_about_with_empty_answers(chromium: Browser, ada: User) -> None:
    job = in_thread(lambda: build.job(ada))
    page = chromium.open(f"/jobs/{job.pk}")
    statuses: list[int] = []
    page.on("response", lambda r: statuses.append(r.status) if r.url.endswith("/live") else None)
    page.wait_for_timeout(3500)
    assert statuses.count(304) >= 1
    assert set(statuses[1:]) == {304}


def test_the_slash_key_goes_to_the_search(chromium: Browser, ada: User) -> None:
    in_thread(lambda: build.job(ada, name="needle"))
    page = chromium.open("/usage")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?q=needle")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_language_and_theme_are_switched_where_one_is(chromium: Browser) -> None:
    page = chromium.open("/usage?days=7")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("h1")).to_have_text("用量")
    assert page.url.endswith("/usage?days=7")
    page.get_by_role("button", name="主题：跟随系统。切换为浅色。").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="English").click()
    expect(page.locator("h1")).to_have_text("Usage")


def test_an_administrator_changes_a_quota_after_seeing_before_and_after(ada: User, live_server: Any) -> None:
    quota, session = Quota.objects.get(queue__name="vision"), session_of(build.admin())
    with browser(live_server.url) as found:
        found.enter(session)
        page = found.open("/quota")
        page.get_by_role("link", name="Change").click()
        page.locator("#f-nominal").fill("4")
        page.locator("#f-reason").fill("two nodes less")
        page.get_by_role("button", name="Show before and after").click()
        expect(page.locator("main")).to_contain_text("It reaches less far")
        page.get_by_role("button", name="Save the change").click()
        expect(page.locator("main")).to_contain_text("The quota of vision is changed")
        assert found.faults == []
    quota.refresh_from_db()
    assert quota.nominal == 4


ALL = ("/", "/jobs", "/submit", "/queue", "/cluster", "/usage", "/quota", "/teams", "/teams/vision", "/account")
ADMIN = ("/admin/", "/admin/quotas/quota/add/", "/admin/events/event/", "/api/v1/docs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_breaks_the_content_policy_or_is_wider_than_a_phone(ada: User, live_server: Any, scheme: str) -> None:
    gang = (
        build.Gang(build.job(ada, name="a-job-with-a-rather-long-name-" + "x" * 60, workload=TRAINER))
        .start()
        .wait(1)
        .run()
    )
    numbers_write(gang, 1, 20)
    log_write(gang, "a line\n" * 50)
    session = session_of(build.admin())
    with browser(live_server.url, width=390, scheme=scheme) as found:
        found.enter(session)
        for path in (*ALL, f"/jobs/{gang.job.pk}", f"/submit?from={gang.job.pk}"):
            page = found.open(path)
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        for path in ADMIN:
            found.open(path).wait_for_timeout(300)
        assert found.faults == []
