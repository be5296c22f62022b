"""What happens between ranks: meeting, wires, collectives, and the cries of those whose peer has died."""

from flows.failures.signatures.signature import (
    CAUSE,
    CONFIG,
    EXCLUDE,
    HINT,
    ONCE,
    PLAIN,
    REQUEUE,
    RETRY,
    VICTIM,
    rows,
)

RENDEZVOUS = [
    *rows(
        CAUSE,
        "rendezvous",
        (
            "port_in_use",
            RETRY,
            r"EADDRINUSE|address already in use|server socket has failed to (listen|bind)",
        ),
        (
            "dns",
            RETRY,
            r"Name or service not known|Temporary failure in name resolution|getaddrinfo"
            r"|gai_?error|nodename nor servname"
            r"|could not resolve host|Name does not resolve",
        ),
        (
            "rdzv_timeout",
            REQUEUE,
            r"RendezvousTimeoutError|waiting for clients\. \d+/\d+ clients joined"
            r"|rendezvous.*timed out|\d+/\d+ (nodes|agents|workers) joined",
        ),
        ("rdzv_closed", RETRY, r"RendezvousClosedError|rendezvous (is|has been) closed"),
        (
            "rdzv_connect",
            EXCLUDE,
            r"RendezvousConnectionError|client socket has (failed|timed out)|connect(ion)? to the C10d store"
            r"|DistNetworkError.*(connect|refused)|No route to host",
        ),
        (
            "store_timeout",
            RETRY,
            r"DistStoreError|wait timeout after \d+ms, keys|Socket Timeout.*store|store.*timed out",
        ),
    ),
]

NETWORK = [
    *rows(
        CAUSE + 5,
        "nccl_network",
        (
            "ib_retry_exceeded",
            EXCLUDE,
            r"IBV_WC_RETRY_EXC_ERR|IBV_WC_RNR_RETRY|transport retry counter exceeded|error 12[,:]"
            r"|status=12\b",
        ),
        ("roce_qp_timeout", EXCLUDE, r"ibv_modify_qp failed|modify_qp.*(timed out|errno 110)|QP .*timeout"),
    ),
    *rows(
        CAUSE,
        "nccl_network",
        (
            "ib_port_error",
            EXCLUDE,
            r"IB_EVENT_PORT_ERR|Got async event.*port error|IBV_EVENT_(PORT_ERR|DEVICE_FATAL"
            r"|QP_FATAL)|mlx5_\d.*(port.*down|link down|fatal)"
            r"|NET/IB.*(async fatal|fatal error)|Link (is )?Down",
        ),
        (
            "nccl_socket",
            CONFIG,
            r"no socket interface found|no usable (network )?interface|NCCL_SOCKET_IFNAME"
            # Bridges of container engines, link-local and loopback addresses: the wrong interface was chosen.
            r"|(NCCL|socket).*connect.*\b(172\.1[78]\.|169\.254\.|127\.0\.|192\.168\.122\.|fe80"
            r"|docker0|virbr)",
        ),
        (
            "nccl_connect",
            EXCLUDE,
            r"(socketStartConnect|ncclSocket\w*|socketPollConnect|NCCL WARN).*(connect"
            r"|socket).*(fail|timed out|No route|refused)|Connect to .{3,60} failed",
        ),
    ),
    *rows(
        HINT,
        "nccl_network",
        ("nccl_system", EXCLUDE, r"ncclSystemError|unhandled system error"),
        ("nccl_internal", ONCE, r"ncclInternalError|internal (check|error).*NCCL"),
        ("link_flap", EXCLUDE, r"Link (is )?down|carrier lost|symbol error"),
    ),
]

# A collective that never ended: `collectives.py` finds out whose fault it was.

TIMEOUTS = [
    *rows(
        PLAIN - 5,
        "nccl_network",
        (
            "collective_timeout",
            RETRY,
            r"Watchdog caught collective operation timeout|collective operation timeout"
            r"|Timed out waiting \d+ms for (recv|send)"
            r"|Wait timeout.*process group|ran for \d+ milliseconds before timing out",
        ),
    ),
]

VICTIMS = rows(
    VICTIM,
    "nccl_network",
    (
        "peer_lost",
        RETRY,
        r"connection closed by (remote )?peer|connection reset by peer|ncclRemoteError|remote process exited"
        r"|socketProgress|broken pipe|got completion.*error 5\b|process group .{0,60}abort|NCCL communicator was aborted"
        r"|ChildFailedError|gloo/transport.*(closed|reset|read error)|ncclCommAbort|ran out of input"
        r"|previous.{0,20}CUDA (error|kernel)|taking the (entire )?process down|store.*(closed|reset)|Broken pipe"
        r"|SignalException|closing signal|failed to (recv|send|check).*(TCPStore|store)|heartbeat.*monitor.*store|EOFError",
    ),
)
