"""What a program stands on: storage, packages and drivers, services outside."""

from flows.failures.signatures.signature import (
    CAUSE,
    CONFIG,
    EXCLUDE,
    HINT,
    QUARANTINE,
    REQUEUE,
    RETRY,
    rows,
)

STORAGE = [
    *rows(
        CAUSE + 4,
        "oom_host",
        (
            "shm_full",
            CONFIG,
            r"insufficient shared memory|out of shared memory|(/dev/shm|shared memory"
            r"|torch_\d+_\d+).*No space left|No space left.*(/dev/shm|shared memory)"
            r"|shm_open|unable to (open|mmap|allocate|resize|write to) (file"
            r"|shared memory).*(torch_|/dev/shm|shm)"
            r"|creating shared memory segment|killed by signal: Bus error"
            r"|unable to mmap \d+ bytes from file </?torch",
        ),
    ),
    *rows(
        CAUSE,
        "storage",
        ("edquot", CONFIG, r"Disk quota exceeded|Errno 122\b|quota exceeded"),
        ("enospc", CONFIG, r"No space left on device|Errno 28\b|ENOSPC|disk (is )?full"),
        ("estale", RETRY, r"Stale (NFS )?file handle|Errno 116\b|ESTALE"),
        ("erofs", CONFIG, r"Read-only file system|Errno 30\b|EROFS"),
        ("eio", EXCLUDE, r"Errno 5\b|Input/output error|blk_update_request: I/O error|\bEIO\b"),
        (
            "mount_missing",
            EXCLUDE,
            r"Transport endpoint is not connected|Errno 107\b|not mounted|is not a mount ?point"
            r"|mount point.*(missing|not found)|Errno 19\b",
        ),
        ("eacces", CONFIG, r"Permission denied|PermissionError|Errno 13\b|EACCES|Operation not permitted"),
        ("etimedout", RETRY, r"Errno 110\b.*(/|file)|nfs: server .* not responding"),
    ),
    *rows(
        HINT + 5,
        "storage",
        (
            "storage_stall",
            RETRY,
            r"blocked for more than \d+ seconds|LustreError|checkpoint (write|save).*(stall"
            r"|no progress|timed out)",
        ),
    ),
]

ENVIRONMENT = [
    *rows(
        CAUSE + 2,
        "environment",
        ("module_not_found", CONFIG, r"ModuleNotFoundError|No module named"),
        ("undefined_symbol", CONFIG, r"undefined symbol|symbol lookup error"),
        ("glibc", CONFIG, r"version `?(GLIBC|GLIBCXX|CXXABI)\w*[._\d]*'? not found"),
        (
            "shared_library",
            CONFIG,
            r"cannot open shared object file|Library not loaded|Could not load (library"
            r"|dynamic library)",
        ),
        ("import_error", CONFIG, r"ImportError|cannot import name"),
        (
            "cuda_driver_mismatch",
            QUARANTINE,
            r"CUDA driver version is insufficient|Driver/library version mismatch"
            r"|unsupported display driver / cuda driver combination"
            r"|forward compatibility was attempted|NVIDIA driver on your system is too old",
        ),
        (
            "fabric_manager",
            QUARANTINE,
            r"system not yet initialized|fabric ?manager.*(not running|fail|inactive)"
            r"|cudaErrorSystemNotReady",
        ),
        (
            "gpu_detached_from_container",
            EXCLUDE,
            r"Failed to initialize NVML: Unknown Error|GPU access blocked by the operating system",
        ),
        (
            "gpu_busy_leftover",
            EXCLUDE,
            r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
        ),
        (
            "no_gpu",
            QUARANTINE,
            r"no CUDA-capable device is detected|No CUDA GPUs are available"
            r"|couldn't communicate with the NVIDIA driver"
            r"|Found no NVIDIA driver|CUDA error: (unknown error|initialization error)"
            r"|Failed to initialize NVML",
        ),
        (
            "nccl_peer_access",
            CONFIG,
            r"peer access (is not supported|already)|cudaErrorPeerAccess|P2P.*not supported",
        ),
        (
            "wrong_build",
            CONFIG,
            r"no kernel image is available|not compiled with (CUDA|NCCL)|sm_\d+ is not compatible",
        ),
        (
            "compile_toolchain",
            CONFIG,
            r"Error building extension|ninja: (build stopped|error)|Failed to find C compiler"
            r"|CUDA_HOME environment variable is not set"
            r"|nvcc (fatal|not found)|cc1plus|BackendCompilerFailed|InductorError|CompilationError"
            r"|ptxas (fatal|error)|fatal error: .*\.h",
        ),
        ("illegal_instruction", EXCLUDE, r"Illegal instruction|trap invalid opcode|invalid opcode"),
        ("file_limit", CONFIG, r"Too many open files|Errno 24\b"),
        (
            "process_limit",
            CONFIG,
            r"can't start new thread|pthread_create failed|Resource temporarily unavailable"
            r"|Errno 11\b|RLIMIT_NPROC",
        ),
        (
            "memlock",
            CONFIG,
            r"RLIMIT_MEMLOCK|max locked memory|ibv_(reg_mr|create_cq|create_qp).*Cannot allocate",
        ),
        (
            "command_not_found",
            CONFIG,
            r"\S+: (command )?not found\b|No such file or directory: '(python\d?|torchrun|srun"
            r"|bash)'",
        ),
    ),
]

SERVICES = [
    *rows(
        CAUSE + 1,
        "dependency_service",
        (
            "hub_auth",
            CONFIG,
            r"401 Client Error|403 (Client Error|Forbidden)|GatedRepoError|RepositoryNotFoundError"
            r"|Invalid (username|credentials|api key|token)"
            r"|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|api[_ -]?key (is )?(invalid"
            r"|not configured)|Unauthorized|authentication failed",
        ),
        ("hub_429", REQUEUE, r"429 Client Error|Too Many Requests|rate limit|SlowDown"),
        (
            "ssl_verify",
            CONFIG,
            r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|certificate has expired"
            r"|self[- ]signed certificate",
        ),
        ("licence_server", REQUEUE, r"licen[cs]e (server|checkout|manager)|FlexNet|FLEXlm|RLM_"),
        (
            "tracker_timeout",
            REQUEUE,
            r"(wandb|mlflow|comet|neptune|clearml|tensorboard\.dev).*(CommError|timed? ?out"
            r"|timeout|Network|unreachable|Connection|5\d\d)",
        ),
        (
            "object_store_timeout",
            REQUEUE,
            r"(botocore|boto3|s3fs|s3|gcsfs|storage\.googleapis|blob\.core|minio"
            r"|ceph-?rgw).*(timed? ?out|timeout|EndpointConnection|Connection(Closed|Error| reset)"
            r"|ServiceUnavailable|50[0234])"
            r"|EndpointConnectionError|ReadTimeoutError|ConnectTimeoutError|ServiceUnavailable"
            r"|InternalError.*S3",
        ),
        (
            "service_away",
            REQUEUE,
            r"50[0234] (Server Error|Bad Gateway|Service Unavailable|Gateway)|Max retries exceeded"
            r"|HTTPSConnectionPool|HfHubHTTPError"
            r"|(requests|urllib3|httpx|aiohttp)\S*\.(ConnectionError|ConnectTimeout|ReadTimeout"
            r"|ConnectError)|LocalEntryNotFoundError",
        ),
    ),
]
