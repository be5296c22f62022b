"""The portal's settings as they stand in the environment: typed, and refused by name when wrong."""

import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class Environment(BaseSettings):
    """Every setting of the portal. The variable's name is the field's with ``TRAINYARD_`` before it."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", extra="ignore")

    secret_key: str = Field(default="", description="signs sessions; at least 32 characters")
    token_key: str = Field(default="", description="keys the digests of API tokens; at least 32 characters")
    debug: bool = False
    allowed_hosts: Annotated[list[str], NoDecode] = ["127.0.0.1", "localhost"]
    database_url: str = "sqlite:///.trainyard/portal.sqlite3"
    broker_url: str = ""
    data_dir: Path = Path(".trainyard")
    portal_url: str = "http://127.0.0.1:8000"
    prefect_api_url: str = ""
    prefect_auth: str = ""
    flow_token_file: Path | None = None
    engine: str = "local"
    secure_cookies: bool = False
    log_level: str = "INFO"

    agent_poll_s: float = Field(default=0.5, gt=0, le=30)
    agent_lost_s: float = Field(default=30.0, gt=1, le=3600)
    flow_silent_s: float = Field(default=10.0, gt=1, le=600)
    heartbeat_s: float = Field(default=2.0, gt=0, le=60)
    rendezvous_timeout_s: float = Field(default=120.0, gt=1, le=3600)
    dispatch_interval_s: float = Field(default=1.0, gt=0, le=60)
    lease_s: float = Field(default=10.0, gt=1, le=120)

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def split_hosts(cls, value: Any) -> Any:
        """A comma-separated list, as in the environment."""
        return [h.strip() for h in value.split(",") if h.strip()] if isinstance(value, str) else value

    @field_validator("engine")
    @classmethod
    def known_engine(cls, value: str) -> str:
        """Only engines that exist."""
        if value != "local":
            raise ValueError(f"must be local, and is {value!r}")
        return value

    @field_validator("database_url")
    @classmethod
    def known_database(cls, value: str) -> str:
        """Only databases that the portal's locking is written for."""
        if urlsplit(value).scheme not in {"sqlite", "postgresql"}:
            raise ValueError("must start with sqlite:/// or postgresql://")
        return value

    @field_validator("secret_key", "token_key")
    @classmethod
    def long_enough(cls, value: str) -> str:
        """A short key can be guessed."""
        if value and len(value) < 32:
            raise ValueError("must have at least 32 characters")
        return value


def read_environment() -> Environment:
    """The settings, or an end of the process with one line for each wrong variable."""
    try:
        return Environment()
    except ValidationError as error:
        for problem in error.errors():
            name = "TRAINYARD_" + "_".join(str(part) for part in problem["loc"]).upper()
            text = problem["msg"].removeprefix("Value error, ")
            print(f"{name} is wrong: {text}. See .env.example.", file=sys.stderr)
        raise SystemExit(2) from None


def database_settings(url: str, *, base_dir: Path) -> dict[str, Any]:
    """Django's ``DATABASES["default"]`` for a database URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        name = unquote(parts.path[1:]) if parts.path.startswith("/") else unquote(parts.path)
        path = Path(name) if name.startswith("/") else base_dir / name
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(path),
            "OPTIONS": {
                # A transaction that will write takes the write lock at once: with DEFERRED, two of them
                # that read first and write later fail with "database is locked" however long they wait.
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                " PRAGMA temp_store=MEMORY; PRAGMA cache_size=-8000;",
            },
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or "") or _socket_dir(parts.query),
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": 10},
    }


def _socket_dir(query: str) -> str:
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "host":
            return unquote(value)
    return ""
