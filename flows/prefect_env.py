"""How Prefect's own processes are started: argument lists and environment, and nothing leaves the machine."""

import sys
from pathlib import Path

from flows.deploy import POOL

UNUSED_SERVICES = (
    *("SCHEDULER", "LATE_RUNS", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "CLEANUP_RECONCILER"),
    *("EVENT_PERSISTER", "EVENT_LOGGER", "TRIGGERS", "TASK_RUN_RECORDER", "FOREMAN", "REPOSSESSOR"),
)


def prefect_environment(*, api_url: str, auth: str, home: Path) -> dict[str, str]:
    """The environment of Prefect's server, worker and flows."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_API_URL": api_url,
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.sqlite3",
        "PREFECT_API_DATABASE_MIGRATE_ON_START": "false",
        # Nothing is told to anybody outside.
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
        # A run waits for at most one poll.
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
        "PREFECT_WORKER_PREFETCH_SECONDS": "10",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        # Flow runs of long ago are removed; the portal keeps what happened.
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "flow_runs",
        # On a busy machine a statement waits for the lock, and is not given up after seconds.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
        # Services that the portal does itself, or that nobody here asks for.
        **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in UNUSED_SERVICES},
    }


def server_argv(port: int) -> list[str]:
    """Prefect's server, on loopback only."""
    return [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]


def migrate_argv() -> list[str]:
    """Bring Prefect's database to its version; run before any server starts."""
    return [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]


def worker_argv(limit: int) -> list[str]:
    """A worker that starts flows as processes of its own."""
    return [
        sys.executable,
        "-m",
        "prefect",
        "worker",
        "start",
        "--pool",
        POOL,
        "--type",
        "process",
        "--limit",
        str(limit),
        "--name",
        "trainyard",
    ]
