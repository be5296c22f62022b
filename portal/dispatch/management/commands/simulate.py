"""Replay a trace under a rule."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.sim.replay import Outcome, Stuck, replay
from scheduler.sim.results import by_team, job_rows, summary
from scheduler.sim.rules import RULES, Setting, rule_build
from scheduler.sim.trace import BadTrace, TraceJob, too_large, trace_read

COLUMNS = ("job_id", "submit_s", "first_start_s", "end_s", "gpus", "preemptions")


class Command(BaseCommand):
    """``manage.py simulate --trace CSV.gz --nodes N --gpus-per-node G --policy NAME``."""

    help = "Replay a trace of jobs in virtual time and print the figures as one JSON object."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """The trace, the cluster, the rule, and where more than the figures goes."""
        parser.add_argument("--trace", type=Path, required=True, metavar="CSV", help="jobs; may be gzipped")
        parser.add_argument("--nodes", type=int, required=True, metavar="N")
        parser.add_argument("--gpus-per-node", type=int, required=True, metavar="G")
        names = "; ".join(f"{name}: {rule.about}" for name, rule in RULES.items())
        parser.add_argument("--policy", required=True, metavar="NAME", help=names)
        parser.add_argument(
            "--count-only", action="store_true", help="any free GPUs serve any job; nodes are left aside"
        )
        parser.add_argument(
            "--restart-s", type=float, default=0, metavar="S", help="how much longer a job runs after each preemption"
        )
        parser.add_argument(
            "--quota", action="append", default=[], metavar="TEAM=GPUS", help="a team's own GPUs; may be given often"
        )
        parser.add_argument("--jobs-out", type=Path, metavar="CSV", help="each job's times")
        parser.add_argument("--plot", type=Path, metavar="SVG", help="who held which nodes, and utilisation")
        parser.add_argument("--quiet", action="store_true", help="no progress on stderr")

    def handle(self, *args: Any, **options: Any) -> None:
        """Replay, write the files that were asked for, print the figures."""
        setting = Setting(
            num_nodes=_count(options["nodes"], "--nodes"),
            gpus_per_node=_count(options["gpus_per_node"], "--gpus-per-node"),
            count_only=options["count_only"],
            quotas=_quotas(options["quota"]),
        )
        if options["policy"] not in RULES:
            raise CommandError(f"There is no policy {options['policy']!r}. There are: {', '.join(RULES)}.")
        if not 0 <= options["restart_s"] < 10**9:
            raise CommandError(f"--restart-s is {options['restart_s']}: it must be 0 s or more.")
        jobs = _jobs(options["trace"], setting)
        outcome = self._replay(jobs, options, setting)
        figures = {"policy": options["policy"], **summary(outcome, setting.gpus_per_node)}
        if any(job.team for job in jobs):
            figures["teams"] = by_team(outcome)
        try:
            if options["jobs_out"]:
                with options["jobs_out"].open("w", newline="", encoding="utf-8") as file:
                    table = csv.writer(file)
                    table.writerow(COLUMNS)
                    table.writerows(job_rows(outcome.jobs))
            if options["plot"]:
                from scheduler.sim.plot import svg

                title = f"{options['trace'].name} under {options['policy']}, {setting.num_nodes} × {setting.gpus_per_node} GPUs"
                options["plot"].write_text(svg(outcome, title), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{error.filename} cannot be written: {error.strerror}.") from error
        self.stdout.write(json.dumps(figures))

    def _replay(self, jobs: list[TraceJob], options: dict[str, Any], setting: Setting) -> Outcome:
        bar = _Bar(len(jobs)) if not options["quiet"] else None
        try:
            return replay(
                jobs,
                rule_build(options["policy"], setting),
                setting.num_nodes * setting.gpus_per_node,
                restart_s=options["restart_s"],
                keep_spans=options["plot"] is not None,
                progress=bar,
            )
        except Stuck as error:
            raise CommandError(f"The replay cannot go on: {error}") from error
        finally:
            if bar is not None:
                bar.close()


class _Bar:
    """Progress on stderr: a bar on a terminal, a line for each tenth elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.shown = total, -1
        self.steps = 100 if sys.stderr.isatty() else 10

    def __call__(self, done: int, now_s: float) -> None:
        step = done * self.steps // self.total
        if step == self.shown:
            return
        self.shown = step
        days = f"day {now_s / 86_400:.1f}"
        if sys.stderr.isatty():
            filled = 40 * done // self.total
            sys.stderr.write(f"\r{'█' * filled}{'·' * (40 - filled)} {done:,} of {self.total:,} jobs, {days} ")
        else:
            sys.stderr.write(f"{done:,} of {self.total:,} jobs done, {days}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def _count(value: int, name: str) -> int:
    if not 1 <= value <= 100_000:
        raise CommandError(f"{name} is {value}: it must be 1 to 100,000.")
    return value


def _quotas(texts: list[str]) -> dict[str, int] | None:
    quotas: dict[str, int] = {}
    for text in texts:
        team, _, gpus = text.partition("=")
        if not team or not gpus.isdecimal() or team in quotas:
            raise CommandError(f"--quota {text!r}: write TEAM=GPUS, with a whole number, once for each team.")
        quotas[team] = int(gpus)
    return quotas or None


def _jobs(path: Path, setting: Setting) -> list[TraceJob]:
    """The trace's jobs, if the cluster and the quotas can hold every one."""
    try:
        jobs = trace_read(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from error
    except BadTrace as error:
        raise CommandError(f"{path} is no trace. {error}") from error
    if setting.quotas is not None:
        strangers = sorted({job.team for job in jobs} - setting.quotas.keys())
        if strangers:
            raise CommandError(f"Team {strangers[0]!r} of the trace has no --quota; give each team one.")
        total = setting.num_nodes * setting.gpus_per_node
        if sum(setting.quotas.values()) > total:
            raise CommandError(f"The quotas add up to more than the {total} GPUs of the cluster.")
    misfits = too_large(jobs, setting.num_nodes, setting.gpus_per_node)
    if misfits:
        raise CommandError(
            f"Job {misfits[0].id} asks for {misfits[0].num_gpus} GPUs, and {len(misfits) - 1} more ask for too many: "
            f"{setting.num_nodes} nodes with {setting.gpus_per_node} GPUs can never hold it."
        )
    return jobs
