"""Why gangs end: the wording is ours, the messages are those that products print."""

from collections.abc import Sequence
from typing import Any

import pytest

from flows.failures import Case, Cause, RankExit, classify
from flows.failures.case import log_of_lines

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "    main()"]


def case(
    codes: Sequence[int | None],
    *,
    logs: dict[str, Sequence[str]] | None = None,
    nodes: int = 1,
    times: Sequence[float] | None = None,
    engine_state: str = "",
    records: dict[int, dict[str, Any]] | None = None,
    tails: dict[int, str] | None = None,
) -> Case:
    """A gang whose ranks ended with these codes, one second apart unless told otherwise."""
    per_node = len(codes) // nodes
    names = tuple(f"n{i}" for i in range(nodes))
    return Case(
        engine="local",
        num_nodes=nodes,
        ranks_per_node=per_node,
        node_names=names,
        ranks=tuple(
            RankExit(
                rank=rank,
                node=names[rank // per_node],
                exit_code=code,
                t_s=(times or range(len(codes)))[rank],
                record=(records or {}).get(rank),
                log_tail=(tails or {}).get(rank, ""),
            )
            for rank, code in enumerate(codes)
        ),
        engine_state=engine_state,
        logs=tuple(log_of_lines(source, list(lines)) for source, lines in (logs or {}).items()),
    )


def raised(type_: str, message: str) -> dict[str, Any]:
    return {"status": "error", "code": 1, "error": {"type": type_, "message": message, "where": "loop.py:7"}}


def brief(cause: Cause) -> tuple[str, str, str, int | None]:
    return cause.class_, cause.code, cause.action, cause.root_rank


# -- the live portal: exit codes, exit records, last lines ---------------------------------------------


def test_a_rank_that_was_killed_is_the_root_and_not_its_peer_that_lost_it() -> None:
    peer = raised("RuntimeError", "[pair.cc:534] Connection closed by peer [127.0.0.1]:2312")
    cause = classify(case([1, -9], records={0: peer}, times=[1.0, 1.2]))
    assert brief(cause) == ("unknown", "killed", "retry_same", 1)
    assert cause.exit_code == -9


def test_a_kill_with_the_kernels_word_for_it_is_out_of_memory() -> None:
    tail = "agent: the kernel's out-of-memory killer ran: invoked oom-killer"
    cause = classify(case([-9, 1], tails={0: tail}))
    assert (cause.class_, cause.action, cause.root_rank) == ("oom_host", "fail_config", 0)


def test_what_the_trainer_refuses_is_not_tried_again() -> None:
    record = raised("Refused", "The corpus is empty.")
    cause = classify(case([93, 93], records={0: record, 1: record}))
    assert brief(cause) == ("user_config", "refused", "fail_config", 0)
    assert "corpus" in cause.evidence[0]


def test_a_finished_record_outranks_an_ugly_exit() -> None:
    done = {"status": "finished", "code": 0}
    cause = classify(case([0, -6], records={0: done, 1: done}))
    assert cause.class_ == "success"


def test_ranks_that_were_asked_to_stop_have_not_failed() -> None:
    cause = classify(case([90, 90]))
    assert (cause.class_, cause.code) == ("cancelled", "stopped")


def test_a_rank_that_leaves_early_without_a_word_is_named() -> None:
    lost = raised("RuntimeError", "Connection closed by peer")
    cause = classify(case([0, 1, 1], records={1: lost, 2: lost}, times=[5.0, 5.1, 5.2]))
    assert brief(cause) == ("user_code", "early_exit_zero", "fail_user", 0)


def test_nothing_at_all_is_one_more_try() -> None:
    assert brief(classify(case([1]))) == ("unknown", "no_message", "stop_unknown_then_retry_once", 0)
    assert classify(case([None])).action == "stop_unknown_then_retry_once"


@pytest.mark.parametrize(
    ("type_", "message", "expected"),
    [
        (
            "OSError",
            "[Errno 28] No space left on device: '/data/step_9.tmp'",
            ("storage", "enospc", "fail_config"),
        ),
        ("OSError", "[Errno 122] Disk quota exceeded", ("storage", "edquot", "fail_config")),
        ("PermissionError", "[Errno 13] Permission denied: '/x'", ("storage", "eacces", "fail_config")),
        (
            "ModuleNotFoundError",
            "No module named 'flash_attn'",
            ("environment", "module_not_found", "fail_config"),
        ),
        ("TypeError", "forward() missing 1 argument", ("user_code", "type_error", "fail_user")),
        ("FloatingPointError", "loss became nan", ("numeric", "nan_loss", "fail_user")),
        ("DistNetworkError", "code: -98, name: EADDRINUSE", ("rendezvous", "port_in_use", "retry_same")),
        (
            "RuntimeError",
            "Error(s) in loading state_dict for Net: Missing key(s)",
            ("checkpoint", "ckpt_missing_key", "fail_user"),
        ),
        (
            "RuntimeError",
            "CUDA error: device-side assert triggered",
            ("user_code", "device_side_assert", "fail_user"),
        ),
        (
            "RuntimeError",
            "DataLoader timed out after 60 seconds",
            ("hang", "dataloader_timeout", "retry_same"),
        ),
        (
            "UnidentifiedImageError",
            "cannot identify image file 'a.jpg'",
            ("data", "corrupt_sample", "fail_user"),
        ),
        ("SSLError", "CERTIFICATE_VERIFY_FAILED", ("dependency_service", "ssl_verify", "fail_config")),
    ],
)
def test_an_exit_record_tells_the_cause(type_: str, message: str, expected: tuple[str, str, str]) -> None:
    cause = classify(case([1, -15], records={0: raised(type_, message)}))
    assert (cause.class_, cause.code, cause.action) == expected
    assert cause.root_rank == 0


# -- logs of other engines -----------------------------------------------------------------------------


def test_what_training_survived_was_not_the_end() -> None:
    steps = [f"step {i} loss {9 / i:.3f}" for i in range(1, 30)]
    lines = ["OSError: [Errno 116] Stale file handle", *steps, *TRACEBACK, "ValueError: bad window"]
    cause = classify(case([1], logs={"rank 0 stderr": lines}))
    assert cause.code == "value_error"


def test_only_the_last_attempt_of_a_log_counts() -> None:
    lines = [
        "agent: attempt 1 start",
        *TRACEBACK,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "agent: attempt 2 start",
        *TRACEBACK,
        "KeyError: 'pixel_values'",
    ]
    assert classify(case([1], logs={"job output": lines})).code == "key_error"


def test_labels_of_interleaved_logs_name_the_rank() -> None:
    lines = [f"2: {line}" for line in [*TRACEBACK, "IndexError: list index out of range"]]
    lines.insert(2, "1: RuntimeError: Connection reset by peer")
    cause = classify(case([-15, 1, 1, -15], logs={"job output": lines}))
    assert brief(cause) == ("user_code", "index_error", "fail_user", 2)


def test_a_gpu_that_fell_off_the_bus_takes_its_node_out_of_service() -> None:
    kernel = ["[8.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python, GPU has fallen off the bus."]
    launcher = ["  rank      : 3 (local_rank: 1)", "  exitcode  : -6 (pid: 4242)"]
    logs = {
        "node n1 kernel": kernel,
        "launcher": launcher,
        "rank 3 stderr": ["CUDA error: unspecified launch failure"],
    }
    cause = classify(case([-15, -15, -15, -6], nodes=2, logs=logs))
    assert (cause.class_, cause.code, cause.action) == ("gpu_hardware", "xid_79", "quarantine_node")
    assert (cause.root_rank, cause.root_node) == (3, "n1")


def test_a_repaired_memory_row_is_no_cause() -> None:
    logs = {
        "node n0 kernel": ["NVRM: Xid (PCI:0000:3b:00): 63, pid=1, Row remap"],
        "rank 0 stderr": [*TRACEBACK, "TypeError: 'int' object is not callable"],
    }
    assert classify(case([1], logs=logs)).code == "type_error"


@pytest.mark.parametrize(
    ("state", "line", "expected"),
    [
        (
            "PREEMPTED",
            "slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026 DUE TO PREEMPTION ***",
            ("preempted", "requeue"),
        ),
        (
            "NODE_FAIL",
            "slurmctld: error: Nodes n1 not responding, setting DOWN",
            ("node_lost", "resume_elsewhere"),
        ),
        (
            "CANCELLED",
            "slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026-01-01 ***",
            ("cancelled", "none"),
        ),
        ("OOMKilled", "containerStatuses[0].state.terminated: reason=OOMKilled", ("oom_host", "fail_config")),
        ("ImagePullBackOff", "Failed to pull image: manifest unknown", ("environment", "fail_config")),
        (
            "ImagePullBackOff",
            "429: toomanyrequests: You have reached your pull rate limit",
            ("dependency_service", "requeue"),
        ),
        ("DeadlineExceeded", "Job was active longer than specified deadline", ("time_limit", "fail_config")),
        (
            "Pending",
            "MountVolume.SetUp failed: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            ("platform", "retry_exclude_node"),
        ),
    ],
)
def test_the_engines_word_is_taken(state: str, line: str, expected: tuple[str, str]) -> None:
    codes: list[int | None] = [None, None, None, None]
    cause = classify(case(codes, nodes=2, engine_state=state, logs={"engine": [line]}))
    assert (cause.class_, cause.action) == expected


def test_a_time_limit_without_any_progress_would_be_reached_again() -> None:
    line = "slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***"
    idle = classify(case([-15], engine_state="TIMEOUT", logs={"job output": [line]}))
    busy = classify(case([-15], engine_state="TIMEOUT", logs={"job output": ["step 5 loss 2.0", line]}))
    assert (idle.action, busy.action) == ("fail_config", "requeue")


def watchdog(rank: int, sequence: int, operation: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={sequence}, OpType={operation}, NumelIn=8, Timeout(ms)=600000) ran for 600031 milliseconds"
    )


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ([(0, 9), (1, 9), (2, 9), (3, 9)], ("nccl_network", "collective_timeout_fabric", None)),
        ([(0, 9), (1, 9), (3, 9)], ("hang", "collective_timeout_rank", 2)),
        ([(0, 9), (1, 9), (2, 7), (3, 9)], ("hang", "collective_timeout_rank", 2)),
    ],
)
def test_a_collective_that_timed_out_is_the_fabrics_fault_or_one_ranks(
    waits: list[tuple[int, int]], expected: tuple[str, str, int | None]
) -> None:
    logs = {"job output": [watchdog(rank, sequence) for rank, sequence in waits]}
    cause = classify(case([-6, -6, -6, -6], logs=logs))
    assert (cause.class_, cause.code, cause.root_rank) == expected


def test_ranks_in_different_collectives_are_a_bug_of_the_program() -> None:
    lines = [watchdog(0, 4), watchdog(1, 4), watchdog(2, 4, "BROADCAST")]
    cause = classify(case([-6, -6, -6], logs={"job output": lines}))
    assert (cause.code, cause.action, cause.root_rank) == ("collective_mismatch", "fail_user", 2)


TOO_BIG = "Tried to allocate 9.00 GiB. 70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
IN_PIECES = "Tried to allocate 2.00 GiB. 50.00 GiB is allocated by PyTorch, and 25.00 GiB is reserved by PyTorch but unallocated."
TAKEN = (
    "Tried to allocate 2.00 GiB. Process 77 has 60.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 8.00 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch"
)


@pytest.mark.parametrize(
    ("text", "late", "expected"),
    [
        (TOO_BIG, False, ("cuda_oom_first_steps", "fail_config")),
        (IN_PIECES, True, ("cuda_oom_fragmentation", "retry_same")),
        (TAKEN, False, ("gpu_busy_leftover", "retry_exclude_node")),
    ],
    ids=["too-big", "in-pieces", "taken"],
)
def test_the_allocators_message_tells_too_big_from_in_pieces_from_taken(
    text: str, late: bool, expected: tuple[str, str]
) -> None:
    steps = [f"step {n} loss 2.0" for n in ((500, 501) if late else (1,))]
    lines = [*steps, *TRACEBACK, f"torch.OutOfMemoryError: CUDA out of memory. {text}"]
    cause = classify(case([1], logs={"rank 0 stderr": lines}))
    assert (cause.code, cause.action) == expected


def test_a_broken_settings_file_is_not_a_broken_sample() -> None:
    frames = [
        "Traceback (most recent call last):",
        '  File "run.py", line 4, in load_config',
        "    json.load(f)",
    ]
    message = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    cause = classify(case([1], logs={"rank 0 stderr": [*frames, message]}))
    assert (cause.class_, cause.code) == ("user_config", "bad_config_file")


def test_text_that_a_job_prints_as_its_data_is_no_evidence() -> None:
    lines = ['{"prompt": "why CUDA out of memory?"}', *TRACEBACK, "NameError: name 'x' is not defined"]
    assert classify(case([1], logs={"rank 0 stderr": lines})).code == "name_error"


def test_a_marker_of_the_end_makes_ugly_teardown_a_success() -> None:
    logs = {"rank 0 stdout": ["step 9 loss 1.0", "Training completed in 3 h"], "rank 1 stderr": ["Aborted"]}
    assert classify(case([0, -6], logs=logs)).class_ == "success"
