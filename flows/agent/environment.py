"""The environment of a rank: torchrun's variables, ours, the job's; never a secret of the platform's."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.agent.plan import AgentPlan

# What a program needs from the machine. Everything else of the agent's own environment stays behind.
FROM_MACHINE = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "SSL_CERT_FILE", "CUDA_HOME"),
)
# A process of a rank, or of the agent's own warm start, carries this and its agent does not.
RANK_MARK = "TRAINYARD_FENCE"


def machine_environment(source: Mapping[str, str]) -> dict[str, str]:
    """The harmless part of an environment."""
    kept = {name: source[name] for name in FROM_MACHINE if name in source}
    # `python` in a job's command is the interpreter that has the trainer and its SDK.
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return kept


def rank_environment(
    plan: AgentPlan, *, rank: int, restart: int, rendezvous: Mapping[str, Any], resume: str
) -> dict[str, str]:
    """The whole environment of one rank. The job may set thread counts, not who the rank is."""
    threads = str(plan.threads_per_rank)
    folder = plan.rank_folder(restart, rank)
    values = machine_environment(os.environ)
    values |= {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    values |= plan.environment
    values |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - plan.ranks.start),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(plan.ranks_per_node),
        "GROUP_RANK": str(plan.node_rank),
        "GROUP_WORLD_SIZE": str(plan.num_nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "MASTER_ADDR": str(rendezvous["master_addr"]),
        "MASTER_PORT": str(rendezvous["master_port"]),
        "TORCHELASTIC_RUN_ID": f"{plan.attempt}-{restart}",
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        # A user's command that is itself torchrun recovers in place only with this (gloo, torch 2.13).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TRAINYARD_ATTEMPT": plan.attempt,
        "TRAINYARD_JOB": plan.job,
        "TRAINYARD_NODE": plan.node,
        "TRAINYARD_RANK": str(rank),
        "TRAINYARD_RECORDS": str(folder / "records.jsonl"),
        "TRAINYARD_CONTROL": str(plan.control_path(restart)),
        "TRAINYARD_CHECKPOINT_DIR": str(plan.checkpoint_dir),
        "TRAINYARD_CACHE": str(plan.cache_dir),
        "TRAINYARD_RESUME": resume,
        RANK_MARK: f"{plan.attempt}:{restart}",
    }
    # Also when it is empty: a rank sees the GPUs that it was given and no others.
    values["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, plan.gpu_indices))
    return values
