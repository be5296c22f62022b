"""``python -m flows.embedded up|demo|status|manage|probe``."""

import argparse
import base64
import json
import os
import sys
import time
from pathlib import Path

from flows.ask import ask
from flows.embedded.layout import CannotStart, layout_read
from flows.embedded.supervisor import Interrupted


def main() -> int:
    """The exit status: 0; 1 with one sentence on standard error; 130 when stopped before it was done."""
    options = _arguments()
    try:
        if options.command == "status":
            return show_status(options.data_dir.resolve(), options.json)
        if options.command == "manage":
            return run_manage(options.data_dir.resolve(), options.arguments)
        if options.command == "probe":
            return probe(options.url, os.environ.get(options.auth_env or "", ""))
        if options.command == "demo":
            from flows.embedded.demo import run_demo

            return run_demo(
                options.data_dir,
                port=options.port,
                leave=options.exit,
                keep=options.keep,
                json_path=options.json,
                say=say,
            )
        from flows.embedded.up import run_up

        return run_up(options.data_dir, port=options.port, inventory=options.inventory, say=say)
    except CannotStart as error:
        print(f"trainyard: {error}", file=sys.stderr)
        return 1
    except (Interrupted, KeyboardInterrupt):
        print("trainyard: stopped before it was done.", file=sys.stderr)
        return 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flows.embedded", description="The whole platform on one machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the stack and keep it running")
    up.add_argument("--data-dir", type=Path, default=Path(".trainyard/up"))
    up.add_argument(
        "--port", type=_port, help="the portal's port; default: the one it had, or the first free from 8000 on"
    )
    named = os.environ.get("TRAINYARD_INVENTORY")
    up.add_argument(
        "--inventory", type=Path, default=Path(named) if named else None, help="YAML or JSON file with the nodes"
    )
    demo = commands.add_parser("demo", help="start the stack, train on it with a fault, and report")
    demo.add_argument("--data-dir", type=Path, default=Path(".trainyard/demo"))
    demo.add_argument("--port", type=_port)
    demo.add_argument("--exit", action="store_true", help="end after the report")
    demo.add_argument("--keep", action="store_true", help="keep what an earlier demo left in the data folder")
    demo.add_argument("--json", type=Path, help="write the report's figures to this file")
    status = commands.add_parser("status", help="what runs, and how much memory it takes")
    status.add_argument("--data-dir", type=Path, default=Path(".trainyard/up"))
    status.add_argument("--json", action="store_true")
    manage_ = commands.add_parser("manage", help="a command of manage.py on a stack's data folder: manage COMMAND …")
    manage_.add_argument("--data-dir", type=Path, default=Path(".trainyard/up"))
    manage_.add_argument("arguments", nargs=argparse.REMAINDER, metavar="COMMAND …")
    probe_ = commands.add_parser("probe", help="whether a server of ours serves: for the health checks of containers")
    probe_.add_argument("url")
    probe_.add_argument("--auth-env", help="environment variable with user:password")
    return parser.parse_args()


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 1 to 65535")
    return int(text)


def say(text: str) -> None:
    """A line of progress with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def run_manage(data: Path, arguments: list[str]) -> int:
    """Become ``manage.py`` with the environment of the stack: its database, its keys."""
    from flows.embedded.children import manage, portal_environment

    layout = layout_read(data)
    # Passwords for --password-env and the like come from the person's own environment.
    os.execve(sys.executable, manage(*arguments), {**os.environ, **portal_environment(layout)})  # noqa: S606 - no shell is what we want


def probe(url: str, auth: str) -> int:
    """0 when the address answers 200."""
    headers = {"Authorization": "Basic " + base64.b64encode(auth.encode()).decode()} if auth else {}
    try:
        return 0 if ask(url, headers=headers)[0] == 200 else 1
    except OSError:
        return 1


def show_status(data: Path, as_json: bool) -> int:
    """The stack's processes with their memory and ports."""
    from flows.embedded.memory import stack_memory

    rows = stack_memory(data)
    if as_json:
        print(json.dumps(rows))
    elif not rows:
        print(f"Nothing runs on {data}.")
    else:
        for row in rows:
            ports = " ".join(f"port {port}" for port in row["ports"])
            print(
                f"{row['name']:16} pid {row['pid']:<8} {row['rss_mb']:7.1f} MB resident "
                f"{row['pss_mb']:7.1f} MB share  {ports}".rstrip()
            )
        rss, pss = sum(r["rss_mb"] for r in rows), sum(r["pss_mb"] for r in rows)
        print(f"{'all':16} {'':12} {rss:7.1f} MB resident {pss:7.1f} MB share")
    return 0


if __name__ == "__main__":
    sys.exit(main())
