"""``python -m trainer --config FILE``: one rank of a training run."""

import argparse
import json
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from trainer.records import FAILED, FINISHED, REFUSED, STOPPED, RecordWriter, write_start, writer_from_environment


def main() -> int:
    """The rank's exit status. Its exit record is written before anything is torn down."""
    records = writer_from_environment()
    write_start(records)
    records.phase("import", "begin")
    # Fewer, growing segments: less memory is lost to fragments. Read when the first GPU memory is asked for.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    from trainer.config import ConfigError, TrainerConfig
    from trainer.loop import Run
    from trainer.refusal import Refused

    records.phase("import", "end")
    run: Run | None = None
    try:
        arguments = _arguments()
        config = TrainerConfig.parse(
            _read(arguments.config, Refused),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            nodes=int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        )
        run = Run(config, records)
        code = run.verify_resume(arguments.verify_resume) if arguments.verify_resume else run.run()
    except (Refused, ConfigError) as error:
        print(f"trainer: {error}", file=sys.stderr, flush=True)
        return _exit(records, run, REFUSED, error)
    except Exception as error:  # noqa: BLE001 - the last act of a dying rank: say what killed it
        traceback.print_exc()
        if run is not None:
            run.explain(error)
        sys.stderr.flush()
        return _exit(records, run, FAILED, error)
    _exit(records, run, code, None)
    records.phase("teardown", "begin")
    run.leave()
    records.phase("teardown", "end")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="One rank of a training run.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with the trainer's configuration")
    parser.add_argument(
        "--verify-resume",
        type=int,
        metavar="N",
        help="train N steps, load the checkpoint made half-way, train the second half again, compare every bit",
    )
    return parser.parse_args()


def _read(path: Path, refused: type[Exception]) -> dict[str, object]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        raise refused(f"The configuration {path} cannot be read as JSON.") from None
    if not isinstance(data, dict):
        raise refused(f"The configuration {path} is not an object.")
    return data


def _exit(records: RecordWriter, run: object, code: int, error: BaseException | None) -> int:
    status = {FINISHED: "finished", STOPPED: "stopped"}.get(code, "error")
    fault = None
    if error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        fault = {"type": type(error).__name__, "message": str(error)[:2000], "where": where}
    records.write("exit", status=status, step=getattr(run, "step", 0), code=code, error=fault)
    return code


def run_and_leave() -> NoReturn:
    """Be a rank, and end the process with its status."""
    status = main()
    # A rank that failed has peers that may wait for it in a collective: leave at once, without teardown.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run_and_leave()
