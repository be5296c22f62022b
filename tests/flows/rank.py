"""A rank without torch: writes the records of a training run, and misbehaves as it is told.

``python rank.py KEY=VALUE…``; a key with ``@RANK`` holds for that rank only, in restart 0 only.
"""

import json
import os
import signal
import subprocess
import sys
import time

from trainer.records import write_start, writer_from_environment


def main() -> int:
    rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    options: dict[str, str] = {}
    for text in sorted(sys.argv[1:], key=lambda text: "@" in text.partition("=")[0]):
        key, _, value = text.partition("=")
        name, _, only = key.partition("@")
        if not only or (only == rank and restart == "0"):
            options[name] = value
    if "silent" in options:
        time.sleep(float(options["silent"]))
        return int(options.get("exit", "0"))
    records = writer_from_environment()
    write_start(records)
    stop = [False]
    if "ignore_term" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stop.__setitem__(0, True))
    if "dump" in options:
        import faulthandler

        faulthandler.register(signal.SIGUSR2)
    if "show_environment" in options:
        print(json.dumps(dict(os.environ)), flush=True)
    if "child" in options:
        # Leaves the group and the session, as torchrun's own workers do.
        subprocess.Popen(["sleep", options["child"]], start_new_session=True)
    if "orphan" in options:
        subprocess.Popen(["sh", "-c", f"setsid sleep {options['orphan']} &"])
    if "flood" in options:
        block = ("x" * 1023 + "\n") * 1024
        for _ in range(int(options["flood"])):
            sys.stdout.write(block)
        sys.stdout.flush()
    if "stderr" in options:
        print(options["stderr"].replace("PORT", os.environ["MASTER_PORT"]), file=sys.stderr, flush=True)
    records.phase("train", "begin")
    step_s = float(options.get("step_s", "0.02"))
    for step in range(1, int(options.get("steps", "10")) + 1):
        begin = time.perf_counter_ns()
        time.sleep(step_s)
        length = time.perf_counter_ns() - begin
        records.write(
            "step",
            step=step,
            dur_ns=length,
            seg={"data_wait": length // 10, "comm_wait": length // 5, "forward": length // 2},
            tokens=100,
            loss=10.0 / step,
            lr=0.1,
            grad_norm=1.0,
        )
        if stop[0]:
            records.write("exit", status="stopped", step=step, code=90, error=None)
            return 90
        if str(step) == options.get("fail_at"):
            error = {"type": "ValueError", "message": "told to", "where": "rank.py:1"}
            records.write("exit", status="error", step=step, code=1, error=error)
            return 1
    records.phase("train", "end")
    records.write("exit", status="finished", step=step, code=0, error=None)
    return int(options.get("exit", "0"))


if __name__ == "__main__":
    sys.exit(main())
