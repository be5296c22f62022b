"""Where the embedded stack keeps what: its data folder, its secrets, its ports."""

import hashlib
import os
import secrets
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from flows.processes import read_json, write_whole

ROOT = Path(__file__).resolve().parent.parent.parent
# A Unix socket's path must fit into 108 bytes, and the broker adds to it while it starts.
MAX_SOCKET_PATH = 100
PREFERRED_PORTS = range(8000, 8020)
SECRETS = ("secret_key", "token_key", "prefect")


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
        if len(str(path)) <= MAX_SOCKET_PATH:
            return path
        name = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"trainyard-{os.getuid()}-{name}" / "valkey.sock"

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.data / "logs"

    @property
    def registry(self) -> Path:
        """Who was started by whom."""
        return self.data / "run" / "processes.json"

    def make_folders(self) -> None:
        """The folders and the secrets, readable by their owner only."""
        for name in ("run", "logs", "jobs", "cache", "valkey", "prefect", "static"):
            (self.data / name).mkdir(parents=True, exist_ok=True)
        (self.data / "secrets").mkdir(mode=0o700, exist_ok=True)
        self.socket_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in SECRETS:
            if not (self.data / "secrets" / name).exists():
                text = secrets.token_urlsafe(48) + "\n"
                write_whole(self.data / "secrets" / name, text.encode(), mode=0o600, durable=True)


def layout_open(data: Path, port: int | None) -> Layout:
    """The layout of a data folder. Ports are remembered, so that a restarted stack has its old address."""
    data = data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    before = read_json(data / "ports.json") or {}
    chosen = port if port is not None else _portal_port(before.get("port"))
    if not port_is_free(chosen):
        raise CannotStart(f"Port {chosen} is in use by {port_holder(chosen)}. Stop that, or choose another one with --port.")
    prefect_port = before.get("prefect_port")
    if not isinstance(prefect_port, int) or not port_is_free(prefect_port):
        prefect_port = free_port()
    write_whole(data / "ports.json", f'{{"port": {chosen}, "prefect_port": {prefect_port}}}\n'.encode())
    return Layout(data, chosen, prefect_port)


def _portal_port(before: object) -> int:
    candidates = ([before] if isinstance(before, int) else []) + list(PREFERRED_PORTS)
    for port in candidates:
        if port_is_free(port):
            return port
    return free_port()


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_holder(port: int) -> str:
    """The process that listens on the port, in words."""
    inodes = _listening_inodes(port)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            for link in os.scandir(f"/proc/{entry.name}/fd"):
                target = os.readlink(link.path)
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    name = Path(f"/proc/{entry.name}/comm").read_text().strip()
                    return f"{name} (pid {entry.name})"
        except OSError:
            continue
    return "another program"


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rsplit(":", 1)[1], 16) == port and fields[3] == "0A":
                found.add(fields[9])
    return found


def secret_of(data: Path, name: str) -> str:
    """A secret of this installation, out of a file that only its owner can read."""
    return (data / "secrets" / name).read_text().strip()
