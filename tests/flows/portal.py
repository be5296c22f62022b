"""The portal's side of docs/protocol.md for one attempt: a real HTTP server with a few plain rules."""

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_S = 20.0


class Refusal(Exception):
    """An answer as ``application/problem+json``."""

    def __init__(self, status: int, code: str, detail: str = "") -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail


class PortalOfOneAttempt:
    """Keeps what was reported, and answers with what should be true."""

    def __init__(self, *, attempt: str, plan: dict[str, Any], max_restarts: int = 5) -> None:
        self.attempt, self.plan, self.max_restarts = attempt, plan, max_restarts
        self.lock = threading.Condition(threading.RLock())
        self.flow_token = secrets.token_hex(8)
        self.epoch, self.holder = 1, ""
        self.nodes = [n["name"] for n in plan["nodes"]]
        self.generation = dict.fromkeys(self.nodes, 0)
        self.tokens: dict[str, tuple[str, int]] = {}
        self.restart, self.max_step_done, self.max_step = 0, 0, 0
        self.ready: dict[str, dict[str, Any]] = {}
        self.phase = "prepare"
        self.stop: dict[str, Any] | None = None
        self.save_id = self.dump_id = 0
        self.state = "live"
        self.reports: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.claims: list[str] = []
        self.num_claims_asked = 0
        self.launches: list[tuple[str, int]] = []
        self.ranks: dict[tuple[int, int], dict[str, Any]] = {}
        self.seen_at_ns: dict[tuple[int, int], int] = {}
        self.records: list[dict[str, Any]] = []
        self.windows: dict[tuple[int, int, int], dict[str, Any]] = {}
        self.points: dict[str, list[list[Any]]] = {}
        self.tails: dict[tuple[int, int], str] = {}
        self.logs: dict[str, dict[str, Any]] = {}
        self.problems: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.last_seq: dict[str, int] = {}
        self.settled: dict[str, Any] | None = None
        self.failing = False
        self.times: dict[str, float] = {}
        self.on_call: Callable[[str], None] = lambda name: None
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    # -- serving ---------------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen; on the same port as before."""
        portal = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers["Authorization"].removeprefix("Bearer ")
                try:
                    with portal.lock:
                        if portal.failing:
                            raise Refusal(503, "unavailable")
                        status, answer = 200, portal.handle(self.path, token, body)
                        portal.lock.notify_all()
                except Refusal as refusal:
                    status, answer = refusal.status, {"code": refusal.code, "detail": refusal.detail}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True
            connections: list[Any] = []

            def get_request(self) -> Any:
                request, address = super().get_request()
                self.connections.append(request)
                return request, address

            def handle_error(self, *_: Any) -> None:
                pass  # a client that was killed in the middle of a request

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Away: nobody listens, and open connections are cut."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in self._server.connections:  # type: ignore[attr-defined]
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self, condition: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
        """The condition's value as soon as it is true; it may change with every call that comes in."""
        deadline = time.monotonic() + timeout_s
        with self.lock:
            while not (value := condition()):
                left = deadline - time.monotonic()
                assert left > 0, f"did not come true in {timeout_s} s; {self.describe()}"
                self.lock.wait(min(left, 0.1))
            return value

    def describe(self) -> str:
        return f"phase {self.phase} restart {self.restart} ranks {self.ranks} problems {self.problems[-1:]}"

    # -- calls -----------------------------------------------------------------------------------------

    def handle(self, path: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/api/v1/agent/report":
            return self.report(token, body)
        prefix = f"/api/v1/flow/attempts/{self.attempt}/"
        if not path.startswith(prefix):
            raise Refusal(404, "not-found")
        if token != self.flow_token:
            raise Refusal(401, "not-authenticated")
        if int(body["epoch"]) != self.epoch:
            raise Refusal(409, "stale-epoch", f"epoch {self.epoch} is live")
        if self.state != "live":
            raise Refusal(410, "attempt-over")
        name = path.rsplit("/", 1)[1]
        self.times.setdefault(name, time.time())
        answer = self.flow_call(path.removeprefix(prefix).split("/"), body)
        self.on_call(name)
        return answer

    def flow_call(self, parts: list[str], body: dict[str, Any]) -> dict[str, Any]:
        match parts:
            case ["claim"]:
                return self.claim(body)
            case ["heartbeat"]:
                return self.heartbeat(body)
            case ["agents", node, "launch"]:
                return self.launch(node)
            case ["settle"]:
                return self.settle(body)
        raise Refusal(404, "not-found")

    def claim(self, body: dict[str, Any]) -> dict[str, Any]:
        self.num_claims_asked += 1
        if self.holder and self.holder != body["holder"]:
            raise Refusal(409, "stale-epoch", "claimed by another flow")
        self.holder = body["holder"]
        self.claims.append(self.holder)
        nodes = [{**n, "generation": self.generation[n["name"]]} for n in self.plan["nodes"]]
        return {**self.plan, "attempt": self.attempt, "epoch": self.epoch, "nodes": nodes}

    def heartbeat(self, body: dict[str, Any]) -> dict[str, Any]:
        self.heartbeats.append(body)
        if body["problem"]:
            self.problems.append(body["problem"])
            self.phase = "exit"
        alive = {(a["node"], a["generation"]) for a in body["agents"] if a["alive"]}
        dead = [n for n in self.nodes if (n, self.generation[n]) not in alive]
        if any(self.generation[n] for n in dead) and self.phase == "run":
            self.again()
        action = "settle" if self.phase == "exit" else "watch"
        return {
            "action": action,
            "launch": dead if action == "watch" else [],
            "stop_agents": action == "settle",
            "heartbeat_s": 0.1,
        }

    def launch(self, node: str) -> dict[str, Any]:
        self.generation[node] += 1
        token = secrets.token_hex(8)
        self.tokens[token] = (node, self.generation[node])
        self.launches.append((node, self.generation[node]))
        return {"generation": self.generation[node], "token": token, "portal_url": self.url}

    def settle(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["gone"] is True
        self.settled, self.state = body, "over"
        return {"state": "succeeded" if self.finished() else "failed"}

    def report(self, token: str, body: dict[str, Any]) -> dict[str, Any]:
        node, generation = self.tokens[token]
        if self.state != "live":
            raise Refusal(410, "attempt-over")
        if generation != self.generation[node]:
            raise Refusal(409, "stale-agent", f"generation {self.generation[node]} is live")
        self.reports.append({**body, "from": node})
        if body["seq"] > self.last_seq.get(node, 0):
            self.last_seq[node] = body["seq"]
            self.store(body)
        if body["ready"] and body["ready"]["restart"] == self.restart:
            self.ready[node] = body["ready"]
        if body["node"]:
            self.samples.append(body["node"])
        if body["problem"]:
            self.problems.append(body["problem"])
            if body["problem"]["restart"] >= self.restart:
                self.again()
        self.decide()
        return {"ack": body["seq"], "desired": self.desired(), "poll_s": 0.1}

    def store(self, body: dict[str, Any]) -> None:
        for row in body["ranks"]:
            key = (row["restart"], row["rank"])
            if row["state"] == "exited" and self.ranks.get(key, {}).get("state") != "exited":
                self.seen_at_ns[key] = time.time_ns()
            self.ranks[key] = row
        for rank, tail in body["tails"].items():
            self.tails[(body["restart"], int(rank))] = tail
        self.records += body.get("records", [])
        for window in body.get("windows", []):
            self.windows.setdefault((window["restart"], window["rank"], window["n"]), window)
            self.max_step = max(self.max_step, window["last_step"] or 0)
        for series in body.get("series", []):
            self.points.setdefault(series["name"], []).extend(series["points"])
        for row in body.get("logs", []):
            self.logs[row["path"]] = row

    # -- deciding --------------------------------------------------------------------------------------

    def decide(self) -> None:
        if self.phase == "prepare" and len(self.ready) == len(self.nodes):
            self.phase = "run"
        rows = [row for (restart, _), row in self.ranks.items() if restart == self.restart]
        if self.finished():
            self.phase = "exit"
        elif self.phase == "run" and any(r["state"] == "exited" and r["exit_code"] != 0 for r in rows):
            self.again()

    def finished(self) -> bool:
        world_size = len(self.nodes) * self.plan["ranks_per_node"]
        rows = [row for (restart, _), row in self.ranks.items() if restart == self.restart]
        return len(rows) == world_size and all(r.get("exit_code") == 0 for r in rows)

    def again(self) -> None:
        """The next restart on the same nodes, or the end."""
        if self.restart >= self.max_restarts:
            self.phase = "exit"
            return
        self.restart, self.ready, self.phase = self.restart + 1, {}, "prepare"
        self.max_step_done = self.max_step

    def next_epoch(self) -> int:
        """The flow is taken for dead: another one may claim."""
        with self.lock:
            self.epoch, self.holder = self.epoch + 1, ""
            return self.epoch

    def desired(self) -> dict[str, Any]:
        rendezvous = None
        if self.phase == "run":
            first = self.ready[self.nodes[0]]
            rendezvous = {"master_addr": first["address"], "master_port": first["port"]}
        return {
            "phase": self.phase,
            "restart": self.restart,
            "rendezvous": rendezvous,
            "world_size": len(self.nodes) * self.plan["ranks_per_node"],
            "resume": "auto",
            "max_step_done": self.max_step_done,
            "save_id": self.save_id,
            "dump_id": self.dump_id,
            "stop": self.stop,
        }

    # -- looking ---------------------------------------------------------------------------------------

    def rank(self, rank: int, restart: int = 0) -> dict[str, Any]:
        """A rank's row; empty when nobody has spoken of it."""
        return self.ranks.get((restart, rank), {})

    def all_running(self, restart: int = 0) -> bool:
        world_size = len(self.nodes) * self.plan["ranks_per_node"]
        rows = [row for (number, _), row in self.ranks.items() if number == restart]
        return len(rows) == world_size and all(r["state"] == "running" and r["pid"] for r in rows)

    def windows_of(self, rank: int, restart: int) -> list[dict[str, Any]]:
        found = [w for (number, who, _), w in self.windows.items() if (number, who) == (restart, rank)]
        return sorted(found, key=lambda w: w["n"])
