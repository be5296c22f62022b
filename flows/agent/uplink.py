"""The thread that talks to the portal: sends batches in order, brings answers back, waits while it is away."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from flows.agent.spool import Spool

TIMEOUT_S = 15.0
MAX_BACK_OFF_S = 2.0


class Uplink(threading.Thread):
    """Posts reports. ``current`` gives the fields that are true now; the spool holds what must not be lost."""

    def __init__(
        self,
        *,
        url: str,
        token: str,
        spool: Spool,
        current: Callable[[], dict[str, Any]],
        on_answer: Callable[[dict[str, Any]], None],
        on_fenced: Callable[[int, str], None],
    ) -> None:
        super().__init__(name="uplink", daemon=True)
        self.address, self.token, self.spool = urlsplit(url), token, spool
        self.current, self.on_answer, self.on_fenced = current, on_answer, on_fenced
        self.poll_s = 0.1
        self.acknowledged = -1
        self._kick = threading.Event()
        self._stop = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self.lock = threading.Lock()

    def kick(self) -> None:
        """Something happened: report now."""
        self._kick.set()

    def stop(self) -> None:
        """No more reports after the one under way."""
        self._stop.set()
        self._kick.set()

    def run(self) -> None:
        """Until stopped or fenced."""
        failures = 0
        while not self._stop.is_set():
            status, answer = self._report()
            if status == 200 and answer is not None:
                failures = 0
                self.on_answer(answer)
                with self.lock:
                    more = len(self.spool) > 0
                if more:
                    continue
                self._kick.wait(self.poll_s)
                self._kick.clear()
            elif status in (401, 404, 409, 410):
                self.on_fenced(status, str((answer or {}).get("detail", "")))
                return
            else:
                if status in (400, 413) and answer is not None:
                    self._drop_refused()
                failures += 1
                self._stop.wait(min(MAX_BACK_OFF_S, 0.05 * 2**failures) * random.uniform(0.5, 1.0))

    def _report(self) -> tuple[int, dict[str, Any] | None]:
        with self.lock:
            first = self.spool.first()
        body = self.current()
        # A bare heartbeat repeats a number that was acknowledged: it stores nothing.
        seq = max(0, self.acknowledged)
        if first is not None:
            seq, batch = first
            body |= batch
        body |= {"seq": seq, "now_ns": time.time_ns()}
        status, answer = self._post(body)
        if status == 200:
            self.acknowledged = max(self.acknowledged, seq)
            if first is not None:
                with self.lock:
                    self.spool.remove(seq)
        return status, answer

    def _drop_refused(self) -> None:
        """A batch that the portal cannot read would be refused for ever: it must not hold up those behind it."""
        with self.lock:
            first = self.spool.first()
            if first is not None:
                self.spool.remove(first[0])
                self.spool.num_lost += 1

    def _post(self, body: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        """The status and the answer's object; status 0 when the portal did not answer."""
        try:
            if self._connection is None:
                kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
                self._connection = kind(self.address.hostname or "", self.address.port, timeout=TIMEOUT_S)
            self._connection.request(
                "POST",
                "/api/v1/agent/report",
                json.dumps(body, separators=(",", ":")).encode(),
                {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
            )
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            return 0, None
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        return response.status, answer if isinstance(answer, dict) else None
