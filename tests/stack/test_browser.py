"""A person's way through the portal, in a real Chromium, on the real stack."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.stack.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.browser]
CHROMIUM = "/usr/bin/chromium"
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture
def page(stack: Stack) -> Iterator[Page]:
    if not Path(CHROMIUM).exists():
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        opened = browser.new_page()
        faults: list[str] = []
        opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        yield opened
        browser.close()
        assert faults == [], "no script error, no Content-Security-Policy report"


def test_a_person_logs_in_submits_watches_and_reads_what_it_used(stack: Stack, page: Page) -> None:
    url = stack.layout.portal_url
    page.goto(f"{url}/jobs")
    assert "/accounts/login/" in page.url, "nothing is shown to strangers"
    page.fill("input[name=login]", "ada")
    page.fill("input[name=password]", stack.password)
    page.press("input[name=password]", "Enter")
    page.wait_for_url(f"{url}/jobs")

    page.goto(f"{url}/submit")
    page.fill("input[name=name]", "from-the-form")
    page.fill("input[name=nodes]", "1")
    page.fill("input[name=steps]", "40")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url(re.compile(r"/jobs/job_[0-9a-f]{32}$"))
    job_id = page.url.rsplit("/", 1)[1]
    page.evaluate("window.notReloaded = true")

    main = page.locator("main")
    expect(main).to_contain_text("running", timeout=60_000)
    expect(main).to_contain_text("succeeded", timeout=90_000)
    assert page.evaluate("window.notReloaded"), "the state changed without a reload"
    expect(main).to_contain_text("validation loss", timeout=15_000)
    expect(main).to_contain_text("step 40/40", timeout=15_000)

    assert stack.wait_end(job_id)["state"] == "succeeded"
    stack.check_books(job_id)
    page.goto(f"{url}/usage")
    expect(page.locator("main")).to_contain_text("vision")
    expect(page.locator("main")).to_contain_text("100.0")
