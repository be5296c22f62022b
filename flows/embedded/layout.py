"""Where the embedded stack keeps what: its data folder, its secrets, its ports."""

import hashlib
import json
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from flows.embedded.ports import free_port, port_holder, port_is_free
from flows.processes import read_json, write_whole

ROOT = Path(__file__).resolve().parent.parent.parent
# A Unix socket's path must fit into 108 bytes, and the broker adds to it while it starts.
MAX_SOCKET_PATH = 100
PREFERRED_PORTS = range(8000, 8020)
SECRETS = ("secret_key", "token_key", "prefect", "broker")


class CannotStart(Exception):
    """Why the stack cannot start, in one sentence."""


@dataclass(frozen=True)
class Layout:
    """A data folder and the addresses that go with it."""

    data: Path
    port: int
    prefect_port: int

    @property
    def portal_url(self) -> str:
        """Where people and programs find the portal."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def prefect_api_url(self) -> str:
        """Prefect's API: for the portal and the flows, never for users."""
        return f"http://127.0.0.1:{self.prefect_port}/api"

    @property
    def prefect_home(self) -> Path:
        """Prefect's own folder."""
        return self.data / "prefect"

    @property
    def flow_token(self) -> Path:
        """The flows' service token."""
        return self.data / "secrets" / "flow_token"

    @property
    def socket_path(self) -> Path:
        """The broker's socket; in a short place when the data folder's path is too long."""
        path = self.data / "run" / "valkey.sock"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        name = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"trainyard-{os.getuid()}-{name}" / "valkey.sock"

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.data / "logs"

    @property
    def registry(self) -> Path:
        """Who was started by whom."""
        return registry_of(self.data)

    def make_folders(self) -> None:
        """The folders and the secrets, readable by their owner only."""
        for name in ("run", "logs", "jobs", "cache", "valkey", "prefect", "static"):
            (self.data / name).mkdir(parents=True, exist_ok=True)
        (self.data / "secrets").mkdir(mode=0o700, exist_ok=True)
        self._make_socket_folder()
        for name in SECRETS:
            if not (self.data / "secrets" / name).exists():
                text = secrets.token_urlsafe(48) + "\n"
                write_whole(self.data / "secrets" / name, text.encode(), mode=0o600, durable=True)

    def _make_socket_folder(self) -> None:
        folder = self.socket_path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # In the shared temporary folder another user may have been first.
        if folder.stat().st_uid != os.getuid():
            raise CannotStart(f"{folder} belongs to another user. Use a data folder with a shorter path.")


def registry_of(data: Path) -> Path:
    """The file that says which processes the supervisor of a data folder has started."""
    return data / "run" / "processes.json"


def layout_open(data: Path, port: int | None) -> Layout:
    """The layout of a data folder whose lock we hold. Ports are remembered: a restarted stack has its old address."""
    before = read_json(data / "ports.json") or {}
    chosen = port if port is not None else _portal_port(before.get("port"))
    if not port_is_free(chosen):
        raise CannotStart(f"Port {chosen} is in use by {port_holder(chosen)}. Stop that, or give another --port.")
    prefect_port = before.get("prefect_port")
    if not isinstance(prefect_port, int) or prefect_port == chosen or not port_is_free(prefect_port):
        prefect_port = free_port()
    write_whole(data / "ports.json", (json.dumps({"port": chosen, "prefect_port": prefect_port}) + "\n").encode())
    return Layout(data, chosen, prefect_port)


def layout_read(data: Path) -> Layout:
    """The layout of a data folder on which a stack has been started before."""
    ports = read_json(data / "ports.json")
    if ports is None or not (data / "secrets").is_dir():
        raise CannotStart(f"No stack has been started on {data} yet. Start one with `make up`, or give its --data-dir.")
    return Layout(data, int(ports["port"]), int(ports["prefect_port"]))


def _portal_port(before: object) -> int:
    candidates = ([before] if isinstance(before, int) else []) + list(PREFERRED_PORTS)
    for port in candidates:
        if port_is_free(port):
            return port
    return free_port()


def secret_of(data: Path, name: str) -> str:
    """A secret of this installation, out of a file that only its owner can read."""
    return (data / "secrets" / name).read_text().strip()
