"""Run every bench of this folder, one after the other, and show their figures in one table.

    python -m tests.bench.run [--gpu] [--only NAME …] [--out FILE.json]

A bench is a module ``bench_<name>.py`` that runs with ``python -m`` and prints one JSON object on its last line. With
``--gpu`` only modules that define ``GPU = True`` run. The exit status is 1 when one of them failed.
"""

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 1800.0


def bench_files(*, gpu: bool, only: list[str]) -> list[Path]:
    """The modules to run, by name. Refuses a name that is none."""
    every = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
    unknown = [name for name in only if name not in every]
    if unknown:
        raise SystemExit(f"There is no bench {unknown[0]!r}. There are: {', '.join(every)}.")
    return [path for name, path in every.items() if (not only or name in only) and (not gpu or _wants_gpu(path))]


def _wants_gpu(path: Path) -> bool:
    """Whether the module says ``GPU = True``; read, not imported: a bench may import torch."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "GPU" for t in node.targets):
            return isinstance(node.value, ast.Constant) and node.value.value is True
    return False


def run_bench(path: Path) -> dict[str, Any]:
    """Name, seconds, and its figures or why there are none. What it prints is shown as it comes."""
    name = path.stem.removeprefix("bench_")
    print(f"\n── {name} " + "─" * max(4, 74 - len(name)), flush=True)
    begin, last = time.monotonic(), ""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.{path.stem}"], cwd=HERE.parent.parent, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if last:
                print(last, end="", flush=True)
            last = line
        code = process.wait(TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    result: dict[str, Any] = {"bench": name, "seconds": round(time.monotonic() - begin, 1)}
    if code != 0:
        print(last, end="")
        return result | {"error": f"exit status {code}"}
    try:
        figures = json.loads(last)
    except ValueError:
        print(last, end="")
        return result | {"error": "its last line is no JSON"}
    return result | {"figures": figures}


def flat(figures: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested figures with dotted names."""
    if isinstance(figures, dict):
        for key, value in figures.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif not isinstance(figures, list):
        yield prefix, figures


def table(results: list[dict[str, Any]]) -> str:
    """One line per figure."""
    lines = []
    for result in results:
        lines.append(
            f"{result['bench']}  ({result['seconds']} s)"
            + (f"  FAILED: {result['error']}" if "error" in result else "")
        )
        for name, value in flat(result.get("figures", {})):
            lines.append(f"    {name:<48} {f'{value:,.4g}' if isinstance(value, float) else value}")
    return "\n".join(lines)


def main() -> int:
    """0 when every bench gave its figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.run")
    parser.add_argument("--gpu", action="store_true", help="only the benches of a GPU")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, help="write all figures to this file as JSON")
    options = parser.parse_args()
    files = bench_files(gpu=options.gpu, only=options.only)
    if not files:
        print("No bench asks for a GPU yet." if options.gpu else "There is no bench.")
        return 0
    results = [run_bench(path) for path in files]
    machine = {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    print("\n── all figures " + "─" * 62)
    print(table(results))
    print(f"on {machine['cores']} cores, Python {machine['python']}, load {machine['load']:.1f} at the end")
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": machine, "benches": results}, indent=1) + "\n")
    return 1 if any("error" in result for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
