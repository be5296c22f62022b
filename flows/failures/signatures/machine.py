"""What the machine says: the driver of its GPUs, its memory, the engine that placed the job."""

from flows.failures.signatures.signature import (
    CAUSE,
    CONFIG,
    ELSEWHERE,
    EXCLUDE,
    FATAL,
    NONE,
    QUARANTINE,
    REQUEUE,
    rows,
)

# What NVIDIA's driver logs as Xid, and what its catalogue and operators do about it. Those that are not
# listed follow from others (45), tell of a repair that worked (63), or are trends to watch (92).
XID_QUARANTINE = (46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 157, 158)
XID_EXCLUDE = (74, 94, 144, 145, 146, 147, 148, 149, 150)
XID_PROGRAM = (13, 31, 68, 69)

GPU = [
    *(
        s
        for n in XID_QUARANTINE
        for s in rows(FATAL + 5, "gpu_hardware", (f"xid_{n}", QUARANTINE, rf"Xid \([^)]*\): {n},"))
    ),
    *(s for n in XID_EXCLUDE for s in rows(FATAL, "gpu_hardware", (f"xid_{n}", EXCLUDE, rf"Xid \([^)]*\): {n},"))),
    *(
        s
        for n in XID_PROGRAM
        for s in rows(CAUSE + 5, "user_code", ("cuda_illegal_access", EXCLUDE, rf"Xid \([^)]*\): {n},"))
    ),
    *rows(
        FATAL,
        "gpu_hardware",
        (
            "gpu_lost",
            QUARANTINE,
            r"GPU has fallen off the bus|GPU is lost|Unable to determine the device handle for GPU",
        ),
        ("nvlink", QUARANTINE, r"uncorrectable NVLink error|NVLink: fatal error detected"),
        ("ecc", QUARANTINE, r"uncorrectable ECC error|double[- ]bit ECC|cudaErrorECCUncorrectable"),
        ("row_remap", QUARANTINE, r"row remap(ping|per)?\b.*(fail|error)"),
        ("gsp", QUARANTINE, r"waiting for RPC response from GPU\d* GSP"),
        (
            "hardware_stack",
            QUARANTINE,
            r"CUDA error: hardware stack error|GPU requires reset|thermal shutdown",
        ),
    ),
]

GPU_MEMORY = [
    *rows(
        CAUSE + 3,
        "oom_gpu",
        ("nccl_cuda_oom", CONFIG, r"(nccl|Cuda failure).{0,120}out of memory"),
        (
            "cuda_oom",
            CONFIG,
            r"(CUDA|HIP) out of memory|OutOfMemoryError(?!.*heap)|CUDA error: out of memory"
            r"|CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED"
            r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED: .*memory",
        ),
    ),
    *rows(
        CAUSE + 3,
        "oom_host",
        ("dataloader_oom", CONFIG, r"DataLoader worker .{0,60}killed by signal: Killed"),
        (
            "pinned_memory",
            CONFIG,
            r"(cudaHostAlloc|pin(ned)?[_ ]memory).*(out of memory|fail|Cannot allocate)",
        ),
        (
            "cpu_allocator",
            CONFIG,
            r"DefaultCPUAllocator|std::bad_alloc|_ArrayMemoryError|\bMemoryError\b"
            r"|Unable to allocate .* for an array|Errno 12\b|Cannot allocate memory",
        ),
    ),
]

ENGINE = [
    *rows(
        FATAL,
        "preempted",
        ("slurm_preempt", REQUEUE, r"DUE TO PREEMPTION|preempted by (job|higher)|slurm.*\bpreempt(ed|ing)\b"),
        (
            "k8s_preempt",
            REQUEUE,
            r"\bPreempt(ed|ing)\b.*\b(pod|node|scheduler|priority)|DisruptionTarget.*PreemptionBy",
        ),
        (
            "k8s_node_shutdown",
            REQUEUE,
            r"node (is )?(shutting down|shutdown)|NodeShutdown|imminent node shutdown|TerminationByKubelet",
        ),
        (
            "spot_reclaim",
            REQUEUE,
            r"spot (instance )?(interruption|reclaim|termination|preempt)|instance (will be"
            r"|is being) (reclaimed|terminated)"
            r"|rebalance recommendation|preemptible.*(stopp|terminat|preempt)|ACPI.*preempt",
        ),
    ),
    *rows(
        FATAL,
        "time_limit",
        ("slurm_time_limit", REQUEUE, r"DUE TO TIME LIMIT|exceeded (its )?(time|wall ?(clock|time)) limit"),
        (
            "k8s_deadline",
            CONFIG,
            r"(?<!code = )\bDeadlineExceeded\b(?!.*context deadline)"
            r"|active longer than (the )?specified deadline",
        ),
    ),
    *rows(
        FATAL,
        "node_lost",
        (
            "slurm_node_fail",
            ELSEWHERE,
            r"DUE TO NODE FAILURE|NODE_FAIL\b|node failure.*job|Node .{1,60} not responding",
        ),
        (
            "k8s_node_lost",
            ELSEWHERE,
            r"\bNodeLost\b|node is not ready|NodeNotReady|taint.*(unreachable|not-ready)"
            r"|node (is )?unreachable"
            r"|Node .{1,80} (was deleted|is gone|rebooted)|DeletionByTaintManager",
        ),
    ),
    *rows(
        FATAL,
        "cancelled",
        ("scancel", NONE, r"CANCELLED AT \S+|CANCELLED by \d+|cancelled by user"),
    ),
    *rows(
        FATAL,
        "oom_host",
        (
            "cgroup_oom_kill",
            CONFIG,
            r"Memory cgroup out of memory|oom[-_ ]kill(er)? event|oom_kill(ed)? event"
            r"|\bOOMKilled\b|constraint=CONSTRAINT_MEMCG"
            r"|exceeded (its )?memory limit|Some of (your|the) processes may have been killed by the cgroup",
        ),
        (
            "host_oom_kill",
            CONFIG,
            r"Out of memory: Killed process|invoked oom-killer|low on resource: memory",
        ),
    ),
    *rows(
        FATAL,
        "storage",
        (
            "ephemeral_storage",
            CONFIG,
            r"low on resource: ephemeral-storage|ephemeral.*exceeds the.*limit",
        ),
    ),
    *rows(
        FATAL,
        "dependency_service",
        ("registry_rate_limit", REQUEUE, r"toomanyrequests|pull rate limit|pulling.*(429|too many requests)"),
        (
            "registry_away",
            REQUEUE,
            r"(pull|manifests|registry).*(i/o timeout|TLS handshake timeout|503|502"
            r"|connection refused)",
        ),
    ),
    *rows(
        FATAL,
        "environment",
        (
            "image_not_found",
            CONFIG,
            r"manifest( for .{1,200})? (unknown|not found)|pull access denied|(image"
            r"|manifest).*not found|ErrImageNeverPull"
            r"|InvalidImageName|failed to (pull|resolve).*(not found|unauthorized|denied)",
        ),
    ),
    *rows(
        FATAL,
        "user_config",
        (
            "entrypoint_not_found",
            CONFIG,
            r"exec: .{1,200}(not found in \$PATH|no such file or directory|permission denied)"
            r"|exec format error",
        ),
    ),
    *rows(
        FATAL,
        "platform",
        (
            "volume_mount",
            EXCLUDE,
            r"FailedMount|Unable to (attach or )?mount volumes?|MountVolume\.\w+ failed"
            r"|FailedAttachVolume",
        ),
        ("sandbox", EXCLUDE, r"FailedCreatePodSandBox|failed to set ?up (sandbox|network)|CNI.*failed"),
        (
            "launch_credential",
            EXCLUDE,
            r"Invalid job credential|job credential (expired|revoked|replay)"
            r"|Zero Bytes were transmitted|munge.*(decode|fail|expired)",
        ),
        (
            "launch_failed",
            EXCLUDE,
            r"Task launch for .* failed|slurmstepd: error: execve|Job (step )?aborted before"
            r"|Unable to (create|launch|allocate|confirm) (job|step|task)"
            r"|Prolog (error|failed)|launch_tasks? failed|failed to (start|launch) (the )?(step|tasks?|batch)"
            r"|couldn't chdir|Communication connection failure|error: slurm_(send|receive)",
        ),
        (
            "orchestrator_lost",
            REQUEUE,
            r"(agent|worker|orchestrator|controller|scheduler) .{0,60}(lost|stopped|crashed"
            r"|heartbeats? (lost|missing))",
        ),
    ),
]
