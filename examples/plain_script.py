"""A linear fit without any framework. The five lines marked below make it a job that can be stopped and resumed."""

import json
import random
import sys
import time

import trainer.sdk

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
pause_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
weights = [0.0, 0.0]


def save(folder):
    (folder / "weights.json").write_text(json.dumps(weights))


def load(folder):
    weights[:] = json.loads((folder / "weights.json").read_text())


run = trainer.sdk.init()  # 1
start = run.resume(load)  # 2
for step in range(start + 1, steps + 1):
    x = random.Random(step).uniform(-1, 1)
    error = weights[0] + weights[1] * x - (2.0 + 3.0 * x)
    weights[0] -= 0.1 * error
    weights[1] -= 0.1 * error * x
    time.sleep(pause_s)
    run.report(step, loss=error * error, slope=weights[1])  # 3
    if run.should_save(step, every=50):  # 4
        run.checkpoint(step, save)
    if run.should_stop():  # 5
        break
if run.rank == 0:
    print(f"step {run.step}: y = {weights[0]:.3f} + {weights[1]:.3f} x")
