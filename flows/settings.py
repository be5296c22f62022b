"""The flows' settings, read from the environment; a wrong value is refused with its variable's name."""

import sys
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from pydantic import AnyHttpUrl, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class FlowSettings(BaseSettings):
    """Where the portal is, and how a flow proves itself."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", extra="ignore")

    data_dir: Path = Path(".trainyard")
    portal_url: AnyHttpUrl = AnyHttpUrl("http://127.0.0.1:8000")
    flow_token_file: Path | None = None
    # How long a flow goes on without the portal before it leaves; the portal then starts another one.
    portal_patience_s: float = Field(default=120.0, gt=0, le=3600)
    # Flows that run at once: each is a process of about 90 MB that mostly waits.
    flow_limit: int = Field(default=32, ge=1, le=1000)

    def token(self) -> str:
        """The flows' service token."""
        path = self.flow_token_file or self.data_dir / "secrets" / "flow_token"
        try:
            token = path.read_text().strip()
        except OSError as error:
            _refuse("FLOW_TOKEN_FILE", f"{path} cannot be read ({error.strerror})")
        if not token:
            _refuse("FLOW_TOKEN_FILE", f"{path} is empty")
        return token


@lru_cache
def settings() -> FlowSettings:
    """The settings, or an end of the process with one line for each wrong variable."""
    try:
        return FlowSettings()
    except ValidationError as error:
        lines = [f"{'_'.join(map(str, e['loc'])).upper()} is wrong: {e['msg']}" for e in error.errors()]
        print("\n".join(f"TRAINYARD_{line}. See .env.example." for line in lines), file=sys.stderr)
        raise SystemExit(2) from None


def _refuse(name: str, reason: str) -> NoReturn:
    print(f"TRAINYARD_{name} is wrong: {reason}. See .env.example.", file=sys.stderr)
    raise SystemExit(2)
