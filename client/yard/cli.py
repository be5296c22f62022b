"""``yard``: submit, look, wait, act. Exit status: 0 ok, 1 job failed, 2 usage, 3 refused, 4 not reachable."""

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from yard.client import Client, NotReachable, Refused

JOB_FAILED, REFUSED, NOT_REACHABLE = 1, 3, 4
CONFIG = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "trainyard" / "yard.json"
console = Console(highlight=False)


def connect() -> Client:
    """The client of the address and token in the environment, or of the last ``yard login``."""
    saved = json.loads(CONFIG.read_text()) if CONFIG.is_file() else {}
    url = os.environ.get("TRAINYARD_URL") or saved.get("url")
    token = os.environ.get("TRAINYARD_TOKEN") or saved.get("token")
    if not url or not token:
        raise click.UsageError("Run 'yard login URL' first, or set TRAINYARD_URL and TRAINYARD_TOKEN.")
    return Client(url, token)


def command(act: Callable[..., int | None]) -> Callable[..., None]:
    """A command whose refusals are one sentence on standard error and an exit status of their own."""

    @wraps(act)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            sys.exit(act(*args, **kwargs) or 0)
        except Refused as error:
            click.echo(f"yard: {error}", err=True)
            for fault in error.problem.get("errors", []):
                click.echo(f"  {fault['pointer'] or '/'}: {fault['detail']}", err=True)
            sys.exit(REFUSED)
        except NotReachable as error:
            click.echo(f"yard: {error}", err=True)
            sys.exit(NOT_REACHABLE)

    return wrapped


def show(data: Any, as_json: bool, text: Callable[[], None]) -> None:
    """The answer as JSON, or as a person reads it."""
    if as_json:
        click.echo(json.dumps(data))
    else:
        text()


json_option = click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")


@click.group()
def main() -> None:
    """Train on shared GPUs."""


@main.command()
@click.argument("url")
@click.option("--token", prompt=True, hide_input=True, help="An API token from your account page.")
@command
def login(url: str, token: str) -> None:
    """Remember a portal's address and a token, in a file that only you can read."""
    Client(url, token, retry_s=2.0).get("/jobs", limit="1")
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(CONFIG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "token": token}, file)
    click.echo(f"Logged in at {url}.")


@main.command()
@click.argument("file", type=click.File("r"))
@click.option("--wait", is_flag=True, help="Wait for the end; the exit status is the job's.")
@json_option
@command
def submit(file: Any, wait: bool, as_json: bool) -> int:
    """Submit the job in FILE (YAML or JSON; - is standard input)."""
    client = connect()
    job = client.submit_text(file.read())
    if wait:
        job = client.wait(job["id"])
    show(job, as_json, lambda: click.echo(f"{job['id']}  {job['state']}"))
    return JOB_FAILED if job["state"] in ("failed", "cancelled") else 0


@main.command()
@click.option("--state", help="For example queued,running.")
@click.option("--team")
@click.option("--mine", is_flag=True, help="Only my own jobs.")
@click.option("--limit", default=30, show_default=True)
@json_option
@command
def ps(state: str | None, team: str | None, mine: bool, limit: int, as_json: bool) -> None:
    """List jobs, newest first."""
    filters = {"state": state, "team": team, "user": "me" if mine else None}
    jobs = list(connect().jobs(limit=limit, **{k: v for k, v in filters.items() if v}))

    def text() -> None:
        table = Table("job", "name", "team", "GPUs", "state", "step", "why it waits", box=None, header_style="bold")
        for job in jobs:
            gpus = f"{job['nodes']}×{job['gpus_per_node']} {job['gpu_type']}"
            reason = (job["pending_reason"] or {}).get("code", "")
            table.add_row(job["id"], job["name"], job["team"], gpus, job["state"], str(job["last_step"] or ""), reason)
        console.print(table if jobs else "No jobs. 'yard submit FILE' makes one.")

    show(jobs, as_json, text)


@main.command("show")
@click.argument("job_id")
@json_option
@command
def show_job(job_id: str, as_json: bool) -> None:
    """One job with its attempts and why each of them ended."""
    job = connect().job(job_id)

    def text() -> None:
        click.echo(f"{job['name']}  {job['id']}\n{job['state']} since {job['state_since']}, step {job['last_step']}")
        for attempt in job["attempts"]:
            cause = attempt["cause"] or {}
            click.echo(
                f"  attempt {attempt['number']}: {attempt['state']}, {len(attempt['restarts'])} starts, "
                f"step {attempt['last_step']}  {cause.get('class', '')} {cause.get('code', '')}"
            )
            for line in cause.get("evidence", []):
                click.echo(f"    {line}")

    show(job, as_json, text)


@main.command()
@click.argument("job_id")
@json_option
@command
def why(job_id: str, as_json: bool) -> None:
    """Why a job waits, or why it ended."""
    job = connect().job(job_id)
    reason = job["pending_reason"] or job["end_cause"] or {}

    def text() -> None:
        click.echo(f"{job['state']}: {reason.get('code', 'nothing to explain')}")
        for key, value in (reason.get("detail") or {}).items():
            click.echo(f"  {key}: {value}")
        for line in reason.get("evidence", []):
            click.echo(f"  {line}")

    show(reason, as_json, text)


@main.command()
@click.argument("job_id")
@click.option("--rank", default=0, show_default=True)
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), default="stdout", show_default=True)
@click.option("--tail", default=200, show_default=True)
@click.option("--grep", default="", help="Only lines that hold this text.")
@json_option
@command
def logs(job_id: str, rank: int, stream: str, tail: int, grep: str, as_json: bool) -> None:
    """The last lines of one rank."""
    query = {"rank": str(rank), "stream": stream, "tail": str(tail)} | ({"q": grep} if grep else {})
    answer = connect().get(f"/jobs/{job_id}/logs", **query)
    show(answer, as_json, lambda: click.echo("\n".join(answer["lines"])))


@main.command()
@click.argument("job_id")
@click.option("--timeout", type=float, help="Seconds; without it, as long as it takes.")
@json_option
@command
def wait(job_id: str, timeout: float | None, as_json: bool) -> int:
    """Wait until a job has ended; the exit status is 0 only when it succeeded."""
    job = connect().wait(job_id, timeout_s=timeout)
    show(job, as_json, lambda: click.echo(job["state"]))
    return 0 if job["state"] == "succeeded" else JOB_FAILED


def _act(name: str, help_text: str) -> None:
    @main.command(name, help=help_text)
    @click.argument("job_id")
    @json_option
    @command
    def act(job_id: str, as_json: bool) -> None:
        job = connect().act(job_id, name)
        show(job, as_json, lambda: click.echo(f"{job['id']}  {job['state']}"))


_act("cancel", "Stop a job: it saves first, within its grace.")
_act("hold", "Keep a waiting job from starting.")
_act("release", "Let a held job start.")


@main.command()
@click.option("--group-by", default="team", show_default=True)
@json_option
@command
def usage(group_by: str, as_json: bool) -> None:
    """GPU-hours and what they were used for."""
    answer = connect().get("/usage", group_by=group_by)

    def text() -> None:
        table = Table(group_by, "GPU-hours", "goodput", "mostly", box=None, header_style="bold")
        for row in answer["items"]:
            largest = sorted(row["shares_percent"].items(), key=lambda item: -item[1])[:3]
            mostly = ", ".join(f"{name.replace('_', ' ')} {share:.1f} %" for name, share in largest if share > 0)
            table.add_row(row["key"], row["gpu_hours"], f"{100 * row['goodput']:.1f} %", mostly)
        console.print(table)

    show(answer, as_json, text)


@main.command()
@json_option
@command
def nodes(as_json: bool) -> None:
    """The cluster's nodes."""
    answer = connect().get("/nodes")

    def text() -> None:
        table = Table("node", "GPUs", "state", "why", box=None, header_style="bold")
        for node in answer["items"]:
            table.add_row(node["name"], f"{node['gpus']} {node['gpu_type']}", node["state"], node["state_reason"])
        console.print(table)

    show(answer, as_json, text)


if __name__ == "__main__":
    main()
