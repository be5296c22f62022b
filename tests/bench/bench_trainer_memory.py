"""The memory estimate against the measured peak on six configurations of two CPU ranks, and the table for large models.

python -m tests.bench.bench_trainer_memory
"""

import json
import sys
import tempfile
from typing import Any

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "full_shard": {},
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "ddp": {"strategy": "ddp"},
    "full_shard, recomputed": {"activation_checkpointing": "full"},
    "full_shard, bf16": {"precision": "bf16"},
    "full_shard, 4 passes": {"global_batch_size": 32, "accumulation": 4},
}


def main() -> int:
    """0 when every estimate is within a tenth of its peak."""
    from tests.trainer.test_memory import SMALL, measured
    from trainer.config import TrainerConfig
    from trainer.memory import estimate, table

    errors = {}
    print(f"{'configuration':>24} {'estimate MiB':>13} {'measured MiB':>13} {'error':>7}")
    with tempfile.TemporaryDirectory() as cache:
        for name, changes in CONFIGURATIONS.items():
            config = SMALL | changes
            found = estimate(TrainerConfig.parse(config, world_size=2), world_size=2, device="cpu").peak
            peak = measured(config, cache, found)
            errors[name] = found / peak - 1
            print(f"{name:>24} {found / 2**20:>13.1f} {peak / 2**20:>13.1f} {errors[name]:>+7.1%}", flush=True)
    print("\nbf16, full_shard, one sequence of 4,096 a GPU of 80 GB: GiB of one rank, and what makes it fit")
    for row in table():
        change = "" if row["fits"] else f"  → {row['cheapest_change'] or 'no setting does'}"
        print(f"{row['model']:>5} {row['gpus']:>4} GPUs {row['activation_checkpointing']:>10} {row['gib']:>8}{change}")
    worst = max(abs(error) for error in errors.values())
    print(json.dumps({"errors": errors, "worst": worst}))
    return 0 if worst <= 0.10 else 1


if __name__ == "__main__":
    sys.exit(main())
