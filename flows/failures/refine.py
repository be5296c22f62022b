"""What the rest of a case says about a finding: a code told more exactly, another action. Pure."""

import re
from collections.abc import Sequence

from flows.failures.case import Case
from flows.failures.exits import is_failure
from flows.failures.findings import Finding, Found
from flows.failures.signatures.signature import CONFIG, EXCLUDE, RETRY


def refine(case: Case, found: Found, finding: Finding, same: Sequence[Finding]) -> tuple[str, str]:
    """Code and action, with what the rest of the case says about them."""
    code, action = finding.signature.code, finding.signature.action
    text = finding.line.text
    if code == "cuda_oom":
        return _memory(found, text)
    if code in DRIFT and one_node_only(case, finding, same):
        return DRIFT[code], EXCLUDE
    if code in ("eio", "mount_missing") and len({w.node for w in same if w.node}) > 1:
        return code, RETRY
    if code == "slurm_time_limit" and not found.num_progress and found.last_step == 0:
        return code, CONFIG
    if code == "nan_loss":
        ranks = {w.rank for w in same}
        if case.world_size > 1 and len(ranks) == 1 and None not in ranks and NAN_ONE_RANK.search(text):
            return "nan_single_rank", EXCLUDE
    return code, action


# What should be alike on all nodes, and fails on one: the node differs from the others.
DRIFT = {
    "module_not_found": "image_drift",
    "import_error": "image_drift",
    "undefined_symbol": "image_drift",
    "shared_library": "image_drift",
    "glibc": "image_drift",
    "missing_file": "mount_missing",
}
# Megatron-like checks look at a rank's own values before they are reduced over all ranks.
NAN_ONE_RANK = re.compile(
    r"\blocal (forward|loss|grad)|device: \d+, node|only (on )?rank|on rank \d+ only"
    r"|other ranks.*(finite|ok)|rank \d+.*(others|peers)",
    re.IGNORECASE,
)
GIB = r"([\d.]+) ?(GiB|MiB|GB|MB)"
UNALLOCATED = re.compile(rf"{GIB} is reserved by PyTorch but unallocated", re.IGNORECASE)
ALLOCATED = re.compile(rf"{GIB} (?:is |already )?allocated", re.IGNORECASE)
RESERVED = re.compile(rf"{GIB} reserved in total", re.IGNORECASE)
OTHER_PROCESS = re.compile(rf"Process \d+ has {GIB} memory in use", re.IGNORECASE)
THIS_PROCESS = re.compile(r"this process has", re.IGNORECASE)
TRIED = re.compile(rf"Tried to allocate {GIB}", re.IGNORECASE)
MANY_STEPS = 100


def _memory(found: Found, text: str) -> tuple[str, str]:
    """Too big, in pieces, or taken by somebody else: the allocator's message tells."""
    tried, unallocated = _gib(TRIED, text), _gib(UNALLOCATED, text)
    allocated, reserved = _gib(ALLOCATED, text), _gib(RESERVED, text)
    if unallocated is None and allocated is not None and reserved is not None:
        unallocated = max(0.0, reserved - allocated)
    others = _gib(OTHER_PROCESS, text)
    own = (allocated or 0.0) + (unallocated or 0.0)
    # In a container the process that is listed is this one: what matters is memory that is not its own.
    if others is not None and allocated is not None and (THIS_PROCESS.search(text) or others > own + 4):
        return "gpu_busy_leftover", EXCLUDE
    late = found.last_step >= MANY_STEPS or found.num_progress >= MANY_STEPS
    if unallocated is not None and tried is not None and unallocated > tried and unallocated > 2 and late:
        return "cuda_oom_fragmentation", RETRY
    return ("cuda_oom" if late else "cuda_oom_first_steps"), CONFIG


def _gib(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if not found:
        return None
    number, unit = [g for g in found.groups() if g][:2]
    return float(number) / (1024 if unit.upper().startswith("M") else 1)


def one_node_only(case: Case, finding: Finding, same: Sequence[Finding]) -> bool:
    """The same program ran on several nodes, and one of them alone has failed with this."""
    if case.num_nodes < 2:
        return False
    own = {r.node for r in case.ranks if is_failure(r) and r.exit_code not in (-15, 143, -9)}
    nodes = {w.node for w in same if w.node}
    return len(own) == 1 and nodes <= own
