"""The thread that talks to the portal: sends batches in order, brings answers back, outlasts outages."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from flows.agent.spool import Spool

TIMEOUT_S = 10.0
MAX_BACK_OFF_S = 2.0
FIRST_POLL_S = 0.1
# The only refusals after which an agent has nothing left to do. Anything else may be a portal in trouble.
FENCED = ("stale-agent", "attempt-over")
UNREADABLE = (400, 413, 422)


class Uplink(threading.Thread):
    """Posts reports. ``current`` gives what is true now; the spool holds what must not be lost."""

    def __init__(
        self,
        *,
        url: str,
        token: str,
        spool: Spool,
        current: Callable[[], dict[str, Any]],
        on_answer: Callable[[dict[str, Any]], None],
        on_fenced: Callable[[str, str], None],
    ) -> None:
        super().__init__(name="uplink", daemon=True)
        self.address, self.token, self.spool = urlsplit(url), token, spool
        self.current, self.on_answer, self.on_fenced = current, on_answer, on_fenced
        self.acknowledged = 0
        self._kick = threading.Event()
        self._stop = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def kick(self) -> None:
        """Something happened: report now."""
        self._kick.set()

    def stop(self) -> None:
        """No more reports after the one under way."""
        self._stop.set()
        self._kick.set()

    def run(self) -> None:
        """Until stopped or fenced."""
        failures, poll_s = 0, FIRST_POLL_S
        while not self._stop.is_set():
            self._kick.clear()
            status, answer = self._report()
            if status == 200 and isinstance(answer.get("desired"), dict):
                failures = 0
                poll_s = float(answer.get("poll_s") or poll_s)
                self.on_answer(answer)
                if not len(self.spool):
                    self._kick.wait(poll_s)
            elif answer.get("code") in FENCED:
                self.on_fenced(str(answer["code"]), str(answer.get("detail", "")))
                return
            else:
                failures += 1
                self.spool.sync()
                self._stop.wait(min(MAX_BACK_OFF_S, 0.05 * 2**failures) * random.uniform(0.5, 1.0))

    def _report(self) -> tuple[int, dict[str, Any]]:
        first = self.spool.first()
        body = self.current()
        # A bare heartbeat repeats a number that was acknowledged: it stores nothing.
        seq = self.acknowledged
        if first is not None:
            seq, batch = first
            body |= batch
        body |= {"seq": seq, "now_ns": time.time_ns()}
        status, answer = self._post(body)
        if status == 200:
            self.acknowledged = max(self.acknowledged, seq)
            if first is not None:
                self.spool.remove(seq)
        elif status in UNREADABLE and first is not None:
            # It would be refused for ever: it must not hold up those behind it.
            print(f"the portal cannot read batch {seq} ({status}): {answer.get('detail', '')}", flush=True)
            self.spool.remove(seq, lost=True)
        return status, answer

    def _post(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the answer's object; status 0 when the portal did not answer."""
        data = json.dumps(body, separators=(",", ":")).encode()
        reused = self._connection is not None
        try:
            return self._exchange(data)
        except (http.client.RemoteDisconnected, ConnectionError):
            self._close()
            if not reused:
                return 0, {}
        except (OSError, http.client.HTTPException):
            self._close()
            return 0, {}
        try:
            # The portal closes connections that were idle: that is no absence.
            return self._exchange(data)
        except (OSError, http.client.HTTPException):
            self._close()
            return 0, {}

    def _exchange(self, data: bytes) -> tuple[int, dict[str, Any]]:
        if self._connection is None:
            secure = self.address.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            self._connection = kind(self.address.hostname or "", self.address.port, timeout=TIMEOUT_S)
        path = f"{self.address.path.rstrip('/')}/api/v1/agent/report"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        self._connection.request("POST", path, data, headers)
        response = self._connection.getresponse()
        text = response.read()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        return response.status, answer if isinstance(answer, dict) else {}

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
