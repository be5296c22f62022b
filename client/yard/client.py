"""REST as Python: one method per act, retries with one idempotency key, pages that join."""

import random
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
RETRY_S = 30.0


class Refused(Exception):
    """The portal said no. ``problem`` is its whole answer: code, sentence, faults with their places."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail", "The portal refused.")))
        self.problem = problem

    @property
    def code(self) -> str:
        """The code that never changes."""
        return str(self.problem.get("code", "refused"))


class NotReachable(Exception):
    """Nobody answered. ``idempotency_key`` is safe to use again: at most one job was made with it."""

    def __init__(self, url: str, idempotency_key: str = "") -> None:
        super().__init__(f"The portal at {url} does not answer.")
        self.idempotency_key = idempotency_key


class Client:
    """A portal's address and a token."""

    def __init__(self, url: str, token: str, *, retry_s: float = RETRY_S) -> None:
        self.url, self.retry_s = url.rstrip("/"), retry_s
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=90.0
        )

    def submit(self, spec: Mapping[str, Any], *, key: str | None = None) -> dict[str, Any]:
        """The new job. The key is made once, outside the retries, so that a lost answer makes no second job."""
        return self._call("POST", "/jobs", body=spec, key=key or str(uuid.uuid4()))

    def submit_text(self, text: str, *, key: str | None = None) -> dict[str, Any]:
        """The new job out of a YAML or JSON text."""
        return self._call("POST", "/jobs", text=text, key=key or str(uuid.uuid4()))

    def jobs(self, *, limit: int = 50, **filters: str) -> Iterator[dict[str, Any]]:
        """Jobs, newest first, over as many pages as there are; at most ``limit``."""
        cursor: str | None = None
        left = limit
        while left > 0:
            query = {**filters, "limit": str(min(left, 200))} | ({"cursor": cursor} if cursor else {})
            page = self._call("GET", "/jobs", query=query)
            yield from page["items"][:left]
            left -= len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def job(self, job_id: str) -> dict[str, Any]:
        """One job with its attempts."""
        return self._call("GET", f"/jobs/{job_id}")

    def wait(self, job_id: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The job when it has ended, or as it is when the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = 60.0 if deadline is None else max(0.0, deadline - time.monotonic())
            query = {"wait": str(int(min(60.0, left))), "until": "terminal"}
            job = self._call("GET", f"/jobs/{job_id}", query=query)
            if job["state"] in TERMINAL or (deadline is not None and time.monotonic() >= deadline):
                return job

    def act(self, job_id: str, act: str, **body: Any) -> dict[str, Any]:
        """Cancel, hold, release or resume."""
        return self._call("POST", f"/jobs/{job_id}/{act}", body=body)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Any other reading call."""
        return self._call("GET", path, query=query)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        text: str | None = None,
        query: Mapping[str, str] | None = None,
        key: str = "",
    ) -> dict[str, Any]:
        headers = {"Idempotency-Key": key} if key else {}
        content: dict[str, Any] = {}
        if text is not None:
            content, headers["Content-Type"] = {"content": text.encode()}, "application/yaml"
        elif method == "POST":
            content = {"json": body}
        deadline, pause = time.monotonic() + self.retry_s, 0.2
        while True:
            try:
                answer = self._http.request(method, path, params=query, headers=headers, **content)
                if answer.status_code < 500 or answer.status_code == 501:
                    break
            except httpx.TransportError:
                pass
            # An act without a key is not repeated: nobody knows whether it was done.
            if time.monotonic() + pause > deadline or (method == "POST" and not key):
                raise NotReachable(self.url, key)
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(5.0, 2 * pause)
        data = answer.json()
        if answer.status_code >= 400:
            raise Refused(data)
        return dict(data)
