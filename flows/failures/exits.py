"""How ranks ended, from exit codes and exit records alone. Pure."""

from collections.abc import Sequence

from flows.failures.case import Case, RankExit
from flows.failures.signatures.signature import CONFIG, EXCLUDE, NONE, ONCE, RETRY

STOPPED, REFUSED = 90, 93
# Clocks of two nodes, and the time that a death takes, may differ by this much.
SKEW_S = 6.0

# What an exit code alone tells.
EXIT_CODES: dict[int, tuple[str, str, str]] = {
    -9: ("unknown", "killed", RETRY),
    -15: ("unknown", "terminated", RETRY),
    -11: ("unknown", "sigsegv", ONCE),
    -6: ("unknown", "abort", ONCE),
    -7: ("oom_host", "bus_error", CONFIG),
    -8: ("user_code", "fpe", ONCE),
    -4: ("environment", "illegal_instruction", EXCLUDE),
    -2: ("cancelled", "sigint", NONE),
    -1: ("cancelled", "sighup", RETRY),
    2: ("user_config", "bad_arguments", CONFIG),
    126: ("environment", "command_not_executable", CONFIG),
    127: ("environment", "command_not_found", CONFIG),
}
SHELL_SIGNAL = 128


def status_of(rank: RankExit) -> str:
    """What the rank wrote down about its own end."""
    return str((rank.record or {}).get("status", ""))


def is_failure(rank: RankExit) -> bool:
    """It ended and did not do what it should. Its record outranks its exit code."""
    return status_of(rank) not in ("finished", "stopped") and rank.exit_code not in (0, STOPPED, None)


def first_death(case: Case, exits: dict[int, RankExit]) -> RankExit | None:
    """The rank that a signal killed before any other ended, if that is beyond doubt."""
    deaths = [r for r in case.ranks if r.exit_code is not None and signal_of(r.exit_code) not in (0, 15)]
    others = [r for r in case.ranks if r.exit_code not in (0, None)]
    if not deaths:
        return None
    first = min(deaths, key=lambda r: (signal_order(r), r.t_s if r.t_s is not None else float("inf")))
    if signal_of(first.exit_code or 0) == 6 and len(deaths) > 1:
        return None  # many abort when one has failed: NCCL's watchdog does that
    before = [r for r in others if r.t_s is not None and first.t_s is not None and r.t_s < first.t_s - SKEW_S]
    return None if before else first


def early_exit(case: Case, failed: Sequence[RankExit]) -> RankExit | None:
    """A rank that left with status 0 and no word of having finished, while others still worked."""
    early = [r for r in case.ranks if r.exit_code == 0 and status_of(r) != "finished"]
    if not failed or not early or len(early) >= case.world_size / 2:
        return None
    return min(early, key=lambda r: r.t_s if r.t_s is not None else float("inf"))


def signal_of(code: int) -> int:
    """The signal that an exit code speaks of, or 0; shells add 128 to its number."""
    if code < 0:
        return -code
    return code - SHELL_SIGNAL if SHELL_SIGNAL < code < SHELL_SIGNAL + 32 else 0


def signal_order(rank: RankExit) -> int:
    """Nobody dies of SIGKILL or a bad address because a peer has died; of SIGABRT many do."""
    return 1 if signal_of(rank.exit_code or 0) == 6 else 0
