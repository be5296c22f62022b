"""``python -m flows.embedded up|demo|status``."""

import argparse
import json
import sys
import time
from pathlib import Path

from flows.embedded.layout import CannotStart, layout_open


def main() -> int:
    """The exit status: 0, or 1 with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m flows.embedded", description="The whole platform on one machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the stack and keep it running")
    up.add_argument("--data-dir", type=Path, default=Path(".trainyard/up"))
    up.add_argument("--port", type=int, help="the portal's port; default: the first free one from 8000 on")
    up.add_argument("--inventory", type=Path, help="YAML or JSON file with the nodes")
    demo = commands.add_parser("demo", help="start the stack, train on it with a fault, and report")
    demo.add_argument("--data-dir", type=Path, default=Path(".trainyard/demo"))
    demo.add_argument("--port", type=int)
    demo.add_argument("--exit", action="store_true", help="end after the report")
    demo.add_argument("--json", type=Path, help="write the report's figures to this file")
    status = commands.add_parser("status", help="what runs, and how much memory it takes")
    status.add_argument("--data-dir", type=Path, default=Path(".trainyard/up"))
    status.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        if options.command == "status":
            return show_status(options.data_dir, options.json)
        if options.command == "demo":
            from flows.embedded.demo import run_demo

            return run_demo(options.data_dir, port=options.port, leave=options.exit, json_path=options.json)
        return run_up(options.data_dir, options.port, options.inventory)
    except CannotStart as error:
        print(f"trainyard: {error}", file=sys.stderr)
        return 1


def say(text: str) -> None:
    """A line of progress with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def run_up(data: Path, port: int | None, inventory: Path | None) -> int:
    """Start, watch, stop."""
    from flows.embedded.supervisor import Supervisor, stop_on_signals

    layout = layout_open(data, port)
    supervisor = Supervisor(layout, say=say, inventory=inventory)
    stop_on_signals(supervisor)
    try:
        supervisor.start()
        say(f"the portal is at {layout.portal_url}; Ctrl-C stops everything")
        supervisor.watch()
    finally:
        supervisor.stop()
    return 0


def show_status(data: Path, as_json: bool) -> int:
    """The stack's processes with their memory."""
    from flows.embedded.memory import stack_memory

    rows = stack_memory(data.resolve())
    if as_json:
        print(json.dumps(rows))
    elif not rows:
        print(f"Nothing runs on {data}.")
    else:
        for row in rows:
            print(f"{row['name']:16} pid {row['pid']:<8} {row['rss_mb']:7.1f} MB resident  {row['pss_mb']:7.1f} MB share")
        print(f"{'all':16} {'':12} {sum(r['rss_mb'] for r in rows):7.1f} MB resident")
    return 0


if __name__ == "__main__":
    sys.exit(main())
