"""Weighing what was found: which line is the cause, at which rank it began, and what follows. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flows.failures.case import Case, Cause, RankExit
from flows.failures.collectives import Stuck, who_is_stuck
from flows.failures.exits import (
    EXIT_CODES,
    REFUSED,
    SKEW_S,
    STOPPED,
    early_exit,
    first_death,
    is_failure,
    signal_of,
    status_of,
)
from flows.failures.findings import Finding, Found
from flows.failures.refine import refine
from flows.failures.signatures.signature import (
    CAUSE,
    CONFIG,
    ELSEWHERE,
    EXCLUDE,
    FATAL,
    HINT,
    NONE,
    ONCE,
    PLAIN,
    REQUEUE,
    RETRY,
    USER,
    VICTIM,
)

MAX_EVIDENCE = 4

# What the engine's own last word means, when no line says it better.
ENGINE_WORDS: dict[str, tuple[str, str, str]] = {
    "PREEMPTED": ("preempted", "slurm_preempt", REQUEUE),
    "TIMEOUT": ("time_limit", "slurm_time_limit", REQUEUE),
    "NODE_FAIL": ("node_lost", "slurm_node_fail", ELSEWHERE),
    "NODELOST": ("node_lost", "k8s_node_lost", ELSEWHERE),
    "OUT_OF_MEMORY": ("oom_host", "cgroup_oom_kill", CONFIG),
    "OOMKILLED": ("oom_host", "cgroup_oom_kill", CONFIG),
    "DEADLINEEXCEEDED": ("time_limit", "k8s_deadline", CONFIG),
    "DEADLINE": ("time_limit", "slurm_time_limit", REQUEUE),
    "CANCELLED": ("cancelled", "scancel", NONE),
    "IMAGEPULLBACKOFF": ("environment", "image_not_found", CONFIG),
    "ERRIMAGEPULL": ("environment", "image_not_found", CONFIG),
    "STARTERROR": ("user_config", "entrypoint_not_found", CONFIG),
    "CONTAINERCANNOTRUN": ("user_config", "entrypoint_not_found", CONFIG),
    "CONTAINERCREATING": ("platform", "volume_mount", EXCLUDE),
    "CREATECONTAINERCONFIGERROR": ("user_config", "container_config", CONFIG),
    "BOOT_FAIL": ("platform", "launch_failed", EXCLUDE),
    "CRASHED": ("platform", "orchestrator_lost", REQUEUE),
    "EVICTED": ("preempted", "k8s_evicted", REQUEUE),
    "SHUTDOWN": ("preempted", "k8s_node_shutdown", REQUEUE),
}
ENGINE_WEIGHT = FATAL - 12
FAILURES = ("FAILED", "ERROR", *ENGINE_WORDS)


@dataclass(frozen=True)
class Weighed:
    """A finding with all that speaks for and against it."""

    finding: Finding
    weight: float
    exit_s: float


def conclude(case: Case, found: Found) -> Cause:
    """The cause that the evidence supports best."""
    exits = {r.rank: r for r in case.ranks}
    failed = [r for r in case.ranks if is_failure(r)]
    if _succeeded(case, found, failed):
        evidence = (found.end_marker.raw,) if found.end_marker else ()
        sources = (found.end_marker.source,) if found.end_marker else ()
        return Cause("success", "success", NONE, evidence=evidence, sources=sources)
    stopped = [r for r in case.ranks if status_of(r) == "stopped" or r.exit_code == STOPPED]
    if stopped and len(stopped) == len(case.ranks):
        return Cause(
            "cancelled",
            "stopped",
            REQUEUE,
            evidence=("all ranks saved and left as asked",),
            sources=("engine",),
        )
    ranked = weigh(case, found, exits)
    best = ranked[0] if ranked else None
    stuck = who_is_stuck(case, found.notes)
    died = first_death(case, exits)
    early = early_exit(case, failed)
    refused = next((r for r in failed if r.exit_code == REFUSED), None)
    if refused is not None and (best is None or best.weight < FATAL):
        text = str(((refused.record or {}).get("error") or {}).get("message", "")) or _last_line(refused.log_tail)
        return _of_rank(refused, ("user_config", "refused", CONFIG), text)
    engine = ENGINE_WORDS.get(case.engine_state.replace(" ", "").upper())
    if engine and (best is None or best.weight < ENGINE_WEIGHT):
        return _of_engine(case, engine, ranked, found)
    if best is not None and best.weight > PLAIN and best.finding.signature.code != "collective_timeout":
        return _of_finding(case, found, best, ranked, exits)
    if early is not None and (died is None or signal_of(died.exit_code or 0) == 6):
        text = f"rank {early.rank} left with status 0 while others still worked"
        lines = [w for w in ranked if w.finding.signature.code == "early_exit_zero"][:1]
        said = lines[0].finding.line if lines else None
        return _of_rank(early, ("user_code", "early_exit_zero", USER), said.raw if said else text)
    if died is not None and (best is None or best.weight <= HINT + 10):
        return _of_death(case, died, ranked)
    stalled = next((w for w in ranked if w.finding.signature.code == "storage_stall"), None)
    if stalled is not None and (stuck is not None or (best and best.finding.signature.code == "collective_timeout")):
        return _of_finding(case, found, stalled, ranked, exits)
    if stuck is not None:
        return _of_stuck(case, stuck)
    if best is not None and best.weight > VICTIM:
        return _of_finding(case, found, best, ranked, exits)
    return _of_exits(case, found, failed, ranked, exits)


def _succeeded(case: Case, found: Found, failed: Sequence[RankExit]) -> bool:
    """All did their work; what breaks after the end marker is only an ugly way to leave."""
    ended = [r for r in case.ranks if r.exit_code is not None or status_of(r)]
    if ended and not failed and len(ended) >= case.world_size:
        if case.engine_state.upper() in FAILURES and found.end_marker is None:
            return False
        return all(status_of(r) != "stopped" and r.exit_code != STOPPED for r in ended)
    if found.end_marker is None:
        return False
    after = [
        f
        for f in found.findings
        if f.weight >= CAUSE and f.line.source == found.end_marker.source and f.line.place > found.end_marker.place
    ]
    return not after and not any(f.weight >= FATAL for f in found.findings)


def weigh(case: Case, found: Found, exits: dict[int, RankExit]) -> list[Weighed]:
    """All findings, the one that is most likely the cause first."""
    times = [r.t_s for r in case.ranks if r.t_s is not None and is_failure(r) and r.exit_code != -15]
    first_s = min(times, default=0.0)
    codes = Counter(f.signature.code for f in found.findings if f.weight > VICTIM)
    weighed = []
    for finding in found.findings:
        rank = exits.get(finding.rank) if finding.rank is not None else None
        weight = float(finding.weight)
        exit_s = rank.t_s if rank is not None and rank.t_s is not None else first_s
        if weight > VICTIM and rank is not None and finding.signature.weight < FATAL:
            if rank.exit_code == 0:
                weight -= 15
            elif rank.exit_code in (-15, 143):
                weight -= 6
            elif rank.t_s is not None and rank.t_s > first_s + SKEW_S:
                weight -= 4
            if found.launcher_root == finding.rank:
                weight += 2
        if codes[finding.signature.code] > 1:
            weight += 0.5
        weighed.append(Weighed(finding, weight, exit_s))
    order = {id(f): place for place, f in enumerate(found.findings)}
    return sorted(weighed, key=lambda w: (-w.weight, w.exit_s, order[id(w.finding)]))


def _of_finding(
    case: Case, found: Found, best: Weighed, ranked: Sequence[Weighed], exits: dict[int, RankExit]
) -> Cause:
    finding = best.finding
    signature = finding.signature
    same = [w for w in ranked if w.finding.signature.code == signature.code and w.weight >= best.weight - 12]
    class_ = signature.class_
    if signature.code in ("decode_error", "corrupt_file", "missing_file") and CONFIG_FRAMES.search(finding.context):
        class_, signature = "user_config", replace(signature, code="bad_config_file", action=CONFIG)
        finding = replace(finding, signature=signature)
    rank, node = _where(case, found, finding, same, exits)
    code, action = refine(case, found, finding, [w.finding for w in same])
    evidence = _evidence(best, ranked)
    exit_code = exits[rank].exit_code if rank in exits else None
    return Cause(
        class_,
        code,
        action,
        rank,
        node,
        exit_code,
        tuple(w.finding.line.raw for w in evidence),
        tuple(w.finding.line.source for w in evidence),
    )


CONFIG_FRAMES = re.compile(
    r"\b(load|read|parse|get|from)_?\w*(config|cfg|args|conf)\b|\b\w*config\w*\.(json|ya?ml|toml)|(args|cfg|conf)\.\w*config",
    re.I,
)
NOBODY = ("preempted", "time_limit", "cancelled")


def _where(
    case: Case, found: Found, finding: Finding, same: Sequence[Weighed], exits: dict[int, RankExit]
) -> tuple[int | None, str | None]:
    """The rank and node at which it began; none when the engine did it to all."""
    if finding.signature.class_ in NOBODY:
        taken = finding.signature.code in ("spot_reclaim", "k8s_node_shutdown", "k8s_preempt")
        return None, blamed_node(case, found) if taken else None
    if finding.signature.class_ == "node_lost":
        return None, blamed_node(case, found) or finding.node
    rank, node = finding.rank, finding.node
    if rank is None:
        ranks = sorted((w.exit_s, w.finding.rank) for w in same if w.finding.rank is not None)
        rank = ranks[0][1] if ranks else None
    if rank is None:
        rank = _suspect(case, node)
    return rank, node or case.node_of(rank)


def blamed_node(case: Case, found: Found) -> str | None:
    """The node that others speak of as gone, or the only one whose ranks left no exit record."""
    silent = {r.node for r in case.ranks if r.exit_code is None}
    if len(silent) == 1 and case.num_nodes > 1:
        return silent.pop()
    votes = found.blamed_nodes.most_common(2)
    if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]):
        return votes[0][0]
    return case.node_names[0] if case.num_nodes == 1 and votes else None


def _suspect(case: Case, node: str | None) -> int | None:
    """The rank that failed first, on this node if one is known."""
    found = [r for r in case.ranks if is_failure(r) and r.exit_code not in (-15, 143)]
    if node is not None:
        found = [r for r in found if r.node == node] or [
            r for r in case.ranks if r.node == node and r.exit_code is None
        ]
    if not found:
        return None
    return min(found, key=lambda r: (r.t_s if r.t_s is not None else float("inf"), r.rank)).rank


def _evidence(best: Weighed, ranked: Sequence[Weighed]) -> list[Weighed]:
    """The line that decides, then others that say the same or nearly as much."""
    chosen, texts = [best], {best.finding.line.text}
    alike = [w for w in ranked if w.finding.signature.class_ == best.finding.signature.class_]
    for weighed in [*alike, *ranked]:
        if len(chosen) >= MAX_EVIDENCE:
            break
        if weighed.weight > VICTIM and weighed.finding.line.text not in texts:
            chosen.append(weighed)
            texts.add(weighed.finding.line.text)
    return chosen


def _of_engine(case: Case, word: tuple[str, str, str], ranked: Sequence[Weighed], found: Found) -> Cause:
    class_, code, action = word
    lines = [w for w in ranked if w.finding.line.source in ("engine", "launcher")][:MAX_EVIDENCE]
    if code == "slurm_time_limit" and not found.num_progress:
        action = CONFIG
    node = None
    if class_ in ("node_lost", "oom_host", "platform"):
        node = blamed_node(case, found) or next((w.finding.node for w in lines if w.finding.node), None)
    rank = None
    if class_ == "oom_host":
        killed = [r for r in case.ranks if r.exit_code in (-9, 137)]
        first = min(killed, key=lambda r: r.t_s if r.t_s is not None else float("inf"), default=None)
        rank, node = (first.rank, first.node) if first else (_suspect(case, node), node)
    evidence = tuple(w.finding.line.raw for w in lines) or (f"engine state {case.engine_state}",)
    sources = tuple(w.finding.line.source for w in lines) or ("engine",)
    return Cause(class_, code, action, rank, node, None, evidence, sources)


def _of_death(case: Case, rank: RankExit, ranked: Sequence[Weighed]) -> Cause:
    number = signal_of(rank.exit_code or 0)
    class_, code, action = EXIT_CODES.get(-number, ("unknown", f"signal_{number}", ONCE))
    own = [w for w in ranked if w.finding.rank == rank.rank and w.weight > VICTIM][:MAX_EVIDENCE]
    if own and own[0].finding.signature.class_ != "unknown" and own[0].weight > HINT:
        signature = own[0].finding.signature
        class_, code, action = signature.class_, signature.code, signature.action
    lines = tuple(w.finding.line.raw for w in own) or (f"rank {rank.rank} was ended by signal {number}",)
    sources = tuple(w.finding.line.source for w in own) or ("engine",)
    return Cause(class_, code, action, rank.rank, rank.node, rank.exit_code, lines, sources)


def _of_stuck(case: Case, stuck: Stuck) -> Cause:
    class_, action = {
        "collective_mismatch": ("user_code", USER),
        "collective_timeout_rank": ("hang", RETRY),
        "collective_timeout_fabric": ("nccl_network", RETRY),
    }[stuck.code]
    node = case.node_of(stuck.rank)
    return Cause(class_, stuck.code, action, stuck.rank, node, None, (stuck.line.raw,), (stuck.line.source,))


def _of_exits(
    case: Case,
    found: Found,
    failed: Sequence[RankExit],
    ranked: Sequence[Weighed],
    exits: dict[int, RankExit],
) -> Cause:
    """Nothing was said: exit codes are all there is."""
    victims = [w for w in ranked if w.weight <= VICTIM][:MAX_EVIDENCE]
    lines = tuple(w.finding.line.raw for w in victims)
    sources = tuple(w.finding.line.source for w in victims)
    own = [r for r in failed if r.exit_code not in (-15, 143)]
    sufferers = {w.finding.rank for w in victims}
    root = min(
        own,
        key=lambda r: (r.rank in sufferers, r.t_s if r.t_s is not None else float("inf"), r.rank),
        default=None,
    )
    if root is None:
        silent = [r for r in case.ranks if r.exit_code is None]
        node = silent[0].node if silent and len({r.node for r in silent}) == 1 and case.num_nodes > 1 else None
        if node is not None and failed:
            return Cause(
                "node_lost",
                "no_exit_record",
                ELSEWHERE,
                None,
                node,
                None,
                lines or ("no exit record",),
                sources or ("engine",),
            )
        code = case.launcher_exit_code
        known = EXIT_CODES.get(code) if code in (2, 126, 127) and not failed else None
        class_, name, action = known or ("unknown", "no_message", ONCE)
        return Cause(class_, name, action, None, node, code, lines, sources)
    code = root.exit_code or 0
    class_, name, action = EXIT_CODES.get(-signal_of(code) or code, ("unknown", "no_message", ONCE))
    if victims and class_ == "unknown" and len(own) == len(victims) == case.world_size:
        return _of_rank(root, ("nccl_network", "peer_lost", RETRY), lines[0])
    last = _last_line(root.log_tail)
    evidence = (*lines, last)[:MAX_EVIDENCE] if last else lines
    return Cause(class_, name, action, root.rank, root.node, code, evidence, (*sources, f"rank {root.rank} stderr"))


def _of_rank(rank: RankExit, word: tuple[str, str, str], text: str) -> Cause:
    class_, code, action = word
    source = f"rank {rank.rank} stderr"
    return Cause(class_, code, action, rank.rank, rank.node, rank.exit_code, (text[:500],), (source,))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
