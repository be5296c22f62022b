"""The flows' settings, read from the environment; a wrong value is refused with its variable's name."""

import sys
from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class FlowSettings(BaseSettings):
    """Where the portal is, and how a flow proves itself."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", extra="ignore")

    portal_url: str = "http://127.0.0.1:8000"
    flow_token_file: Path = Field(default=Path(".trainyard/secrets/flow_token"))
    # How long a flow goes on without the portal before it leaves; the portal then starts another one.
    portal_patience_s: float = Field(default=120.0, gt=0, le=3600)

    def token(self) -> str:
        """The flows' service token."""
        return self.flow_token_file.read_text().strip()


@lru_cache
def settings() -> FlowSettings:
    """The settings, or an end of the process with one line for each wrong variable."""
    try:
        return FlowSettings()
    except ValidationError as error:
        for problem in error.errors():
            name = "TRAINYARD_" + "_".join(str(part) for part in problem["loc"]).upper()
            print(f"{name} is wrong: {problem['msg']}. See .env.example.", file=sys.stderr)
        raise SystemExit(2) from None
