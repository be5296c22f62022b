"""A real Chromium for tests: what it must never see (errors, content-policy violations), and how one logs in."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WATCH_POLICY = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`content policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


def chromium_is_here() -> bool:
    """Whether Debian's Chromium is installed."""
    return Path(CHROMIUM).exists()


@dataclass
class Browser:
    """One page of a fresh profile, with everything that went wrong in it."""

    page: Page
    base: str
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Collect errors of scripts, of the content policy, and answers of 400 and more."""
        self.page.add_init_script(WATCH_POLICY)
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("console", lambda m: self.faults.append(f"console: {m.text}") if m.type == "error" else None)

    def open(self, path: str) -> Page:
        """The page at the path, loaded."""
        self.page.goto(self.base + path)
        return self.page

    def log_in(self, username: str, password: str) -> None:
        """Through the log-in page."""
        self.open("/accounts/login/")
        self.page.get_by_label("User name").fill(username)
        self.page.get_by_label("Password").fill(password)
        self.page.locator("main button").click()
        self.page.wait_for_url(f"{self.base}/")

    def enter(self, session_key: str) -> None:
        """As somebody whose session exists already."""
        self.page.context.add_cookies([{"name": "sessionid", "value": session_key, "url": self.base}])

    def submit_small_job(self, name: str, **fields: str) -> str:
        """Through the submit page, with these fields filled in; the new job's id."""
        self.open("/submit?template=small")
        self.page.locator("#f-name").fill(name)
        for field_name, text in fields.items():
            control = self.page.locator(f"#f-{field_name}")
            if control.evaluate("e => e.tagName") == "SELECT":
                control.select_option(text)
            else:
                control.fill(text)
        self.page.locator("#submit-button").click()
        self.page.wait_for_url(f"{self.base}/jobs/job_*")
        return self.page.url.rsplit("/", 1)[-1]

    def state(self) -> str:
        """The state that the job page shows now."""
        return self.page.locator("#part-state .state").inner_text()

    def wait_for_state(self, word: str, timeout_s: float = 30) -> None:
        """Until the job page shows the state, without a reload."""
        self.page.locator("#part-state .state", has_text=word).wait_for(timeout=timeout_s * 1000)


@contextmanager
def browser(base: str, *, width: int = 1280, scheme: str = "light") -> Iterator[Browser]:
    """A browser with a fresh profile. ``scheme`` is what the system prefers: light or dark."""
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            found = Browser(context.new_page(), base)
            found.watch()
            yield found
        finally:
            chromium.close()
