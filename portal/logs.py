"""Log lines: one JSON object each, with the request, job, attempt and rank that they are about."""

import logging.config
from typing import Any

import structlog

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def logging_settings(level: str) -> dict[str, Any]:
    """Django's ``LOGGING``: JSON lines on standard error."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _SHARED,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    structlog.processors.JSONRenderer(),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"level": "WARNING", "propagate": True, "handlers": []},
            "uvicorn.access": {"level": "WARNING"},
            "celery": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
        },
    }


def configure(settings: dict[str, Any]) -> None:
    """Apply ``LOGGING`` and route structlog through the standard library."""
    logging.config.dictConfig(settings)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
