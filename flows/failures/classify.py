"""From an ended gang to its cause: find the rank that failed first, then what its own evidence says."""

from flows.failures.case import Case, Cause, RankExit
from flows.failures.signatures import CASCADE, SIGNATURES

STOPPED, REFUSED = 90, 93
# Deaths by these signals need no second witness: nobody dies of SIGKILL because a peer has died.
OUTSIDE = {-9: ("unknown", "killed", "retry_same"), -15: ("unknown", "terminated", "retry_same")}
NATIVE = {
    -11: ("user_code", "segfault"),
    -6: ("unknown", "abort"),
    -7: ("oom_host", "bus_error"),
    -8: ("user_code", "fpe"),
    -4: ("environment", "illegal_instruction"),
}


def classify(case: Case) -> Cause:
    """The cause. Uncertain ends get the action that costs least when wrong: one more try."""
    ended = [r for r in case.ranks if _failed(r)]
    if not ended:
        early = [r for r in case.ranks if r.exit_code == 0]
        if early and len(early) < case.num_nodes * case.ranks_per_node:
            return _cause(
                early[0], "user_code", "early_exit", "stop_unknown_then_retry_once", "it left before the others"
            )
        if case.ranks and all(_status(r) == "stopped" or r.exit_code == STOPPED for r in case.ranks):
            return _cause(case.ranks[0], "cancelled", "stopped", "requeue", "all ranks saved and left as asked")
        return Cause("unknown", "no_evidence", "stop_unknown_then_retry_once")
    root = min(ended, key=_suspicion)
    return _explain(root, alone=len(ended) == 1)


def _failed(rank: RankExit) -> bool:
    if _status(rank) in ("finished", "stopped"):
        return False
    return rank.exit_code not in (0, STOPPED, None)


def _status(rank: RankExit) -> str:
    return str((rank.record or {}).get("status", ""))


def _message(rank: RankExit) -> str:
    error = (rank.record or {}).get("error") or {}
    return f"{error.get('type', '')}: {error.get('message', '')}" if error else ""


def _is_victim(rank: RankExit) -> bool:
    text = _message(rank) or rank.log_tail[-2000:]
    return bool(CASCADE.search(text))


def _suspicion(rank: RankExit) -> tuple[int, float, int]:
    """Smaller is more likely the first: killed from outside, then refused or raising for its own reason, then victims."""
    code = rank.exit_code or 0
    order = 3 if _is_victim(rank) else 2
    if code == -9 or code in NATIVE:
        order = 0 if rank.record is None else 1
    elif code == REFUSED:
        order = 1
    elif code == -15:
        order = 4
    return order, rank.t_s if rank.t_s is not None else float("inf"), rank.rank


def _explain(root: RankExit, *, alone: bool) -> Cause:
    code = root.exit_code or 0
    text = _message(root)
    if code == REFUSED:
        return _cause(root, "user_config", "refused", "fail_config", text or _last_line(root.log_tail))
    if text:
        for signature in SIGNATURES:
            if signature.pattern.search(text):
                return _cause(root, signature.class_, signature.code, signature.action, text)
    if code in OUTSIDE:
        class_, name, action = OUTSIDE[code]
        return _cause(root, class_, name, action, f"rank {root.rank} ended by signal {-code} without an exit record")
    for line in reversed(root.log_tail.splitlines()):
        for signature in SIGNATURES:
            if signature.pattern.search(line):
                return _cause(root, signature.class_, signature.code, signature.action, line.strip())
    if code in NATIVE:
        class_, name = NATIVE[code]
        return _cause(root, class_, name, "stop_unknown_then_retry_once", f"rank {root.rank} ended by signal {-code}")
    if code in (2, 126, 127):
        return _cause(root, "user_config", "bad_command", "fail_config", f"exit status {code}")
    if _is_victim(root):
        return _cause(root, "nccl_network", "peer_lost", "retry_same", text or _last_line(root.log_tail))
    action = "stop_unknown_then_retry_once"
    return _cause(root, "unknown", "exit_status", action, text or _last_line(root.log_tail) or f"exit status {code}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _cause(root: RankExit, class_: str, code: str, action: str, evidence: str) -> Cause:
    return Cause(class_, code, action, root.rank, root.node, root.exit_code, (evidence[:500],) if evidence else ())
