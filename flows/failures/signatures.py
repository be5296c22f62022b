"""Messages that tell a cause, as data. An entry earns its place by the message it knows.

``cascade`` marks messages of a victim: they say that somebody else failed first.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """A pattern, what it means, and what to do about it."""

    pattern: re.Pattern[str]
    class_: str
    code: str
    action: str


def _rows(*rows: tuple[str, str, str, str]) -> tuple[Signature, ...]:
    return tuple(Signature(re.compile(p, re.IGNORECASE), c, k, a) for p, c, k, a in rows)


CASCADE = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|read error|remote error|aborted by peer"
    r"|ncclRemoteError|watchdog caught collective operation timeout|socket timeout|gloo.*closed",
    re.IGNORECASE,
)

SIGNATURES = _rows(
    (
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
        "oom_gpu",
        "cuda_oom",
        "fail_config",
    ),
    (r"No space left on device|Errno 28|Disk quota exceeded", "storage", "disk_full", "fail_config"),
    (
        r"Stale file handle|Errno 116|Input/output error|Errno 5\b|Read-only file system",
        "storage",
        "io_error",
        "retry_exclude_node",
    ),
    (r"Permission denied|Errno 13\b", "storage", "permission", "fail_config"),
    (
        r"uncorrectable.*(NVLink|ECC)|fallen off the bus|Xid.*\b(48|79|95)\b",
        "gpu_hardware",
        "gpu_fault",
        "quarantine_node",
    ),
    (r"no CUDA-capable device|CUDA driver version is insufficient", "environment", "cuda_missing", "quarantine_node"),
    (r"device-side assert", "user_code", "device_assert", "fail_user"),
    (r"illegal memory access", "gpu_hardware", "illegal_access", "stop_unknown_then_retry_once"),
    (
        r"NCCL.*(system error|unhandled system error)|IBV_WC_RETRY_EXC_ERR|ibv_.*failed",
        "nccl_network",
        "nccl_system",
        "retry_exclude_node",
    ),
    (r"Address already in use|EADDRINUSE", "rendezvous", "port_in_use", "retry_same"),
    (
        r"Name or service not known|Temporary failure in name resolution",
        "rendezvous",
        "name_resolution",
        "retry_exclude_node",
    ),
    (r"DistStoreError|rendezvous.*tim(ed|e) ?out|store.*tim(ed|e) ?out", "rendezvous", "store_timeout", "retry_same"),
    (r"ModuleNotFoundError|ImportError|undefined symbol", "environment", "import_error", "fail_config"),
    (r"bus error.*shared memory|insufficient shared memory", "oom_host", "shm_full", "fail_config"),
    (
        r"DataLoader worker .* exited unexpectedly|DataLoader worker .* killed",
        "oom_host",
        "loader_killed",
        "retry_same",
    ),
    (r"loss is (nan|inf|not finite)|non-finite (loss|grad)", "numeric", "non_finite", "fail_user"),
    (r"(unexpected EOF|corrupt).*(checkpoint|zip)|checkpoint.*(corrupt|verif)", "checkpoint", "corrupt", "retry_same"),
    (
        r"size mismatch for|Missing key\(s\) in state_dict|does not belong to this model",
        "checkpoint",
        "incompatible",
        "fail_config",
    ),
    (r"FileNotFoundError|No such file or directory", "data", "missing_file", "fail_config"),
    (
        r"(SyntaxError|NameError|TypeError|AttributeError|IndexError|KeyError|AssertionError|ValueError|RuntimeError|ZeroDivisionError)\b",
        "user_code",
        "exception",
        "fail_user",
    ),
)
