"""A process that has imported torch already and forks ranks: a restart does not pay for imports again.

Started by a node agent with one end of a socket pair as its standard input. Lines in: a rank to start.
Lines out: ``{"ready"}``, ``{"started", "pid"}``, ``{"ended", "pid", "status"}`` (a wait status). It forks
before any thread or device is touched, and it dies with the agent, as the ranks die with it.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1


def import_all() -> None:
    """Everything that a rank will need, including what torch imports only at first use."""
    import trainer.loop
    import trainer.workload  # noqa: F401


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent dies; at once when it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve(channel: socket.socket) -> None:
    """Fork ranks as asked, and report their ends, until the agent closes its end."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    names: dict[int, Any] = {}
    rest = b""
    _send(channel, {"ready": os.getpid()})
    while True:
        readable = select.select([channel, wake_read], [], [])[0]  # type: ignore[type-var]
        if wake_read in readable:
            os.read(wake_read, 4096)
            _reap(channel, names)
        if channel in readable:
            data = channel.recv(1 << 20)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = _fork_rank(order, channel, (wake_read, wake_write))
                names[pid] = order["id"]
                _send(channel, {"started": order["id"], "pid": pid})


def _reap(channel: socket.socket, names: dict[int, Any]) -> None:
    while names:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(channel, {"ended": names.pop(pid, None), "pid": pid, "status": status})


def _fork_rank(order: dict[str, Any], channel: socket.socket, pipes: tuple[int, int]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_rank(order, channel, pipes, parent)
    return pid


def _be_rank(order: dict[str, Any], channel: socket.socket, pipes: tuple[int, int], parent: int) -> NoReturn:
    # From here on this is the rank; nothing of the forking process may be reached any more.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    die_with_parent(parent)
    channel.close()
    for pipe in pipes:
        os.close(pipe)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, path in ((1, order["stdout"]), (2, order["stderr"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["trainer", *order["arguments"]]
    from trainer.__main__ import run_and_leave

    run_and_leave()


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def main() -> None:
    """``python -m trainer.warm``."""
    die_with_parent(int(os.environ["TRAINYARD_AGENT_PID"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=os.dup(0))
    import_all()
    serve(channel)


if __name__ == "__main__":
    main()
