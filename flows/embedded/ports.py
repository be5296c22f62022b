"""Ports of the loopback: which are free, and who has the others."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path

LISTEN = "0A"


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_holder(port: int) -> str:
    """The process that listens on the port, in words."""
    inodes = {inode for inode, local in _listening() if local == port}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and inodes & socket_inodes(int(entry.name)):
            try:
                return f"{Path(f'/proc/{entry.name}/comm').read_text().strip()} (pid {entry.name})"
            except OSError:
                continue
    return "another program"


def ports_of(pids: Iterable[int]) -> dict[int, list[int]]:
    """Per process, the TCP ports on which it listens."""
    listening = dict(_listening())
    found = {pid: sorted(listening[i] for i in socket_inodes(pid) if i in listening) for pid in pids}
    return {pid: ports for pid, ports in found.items() if ports}


def socket_inodes(pid: int) -> set[str]:
    """Inodes of a process's sockets; empty when it is gone or another user's."""
    found = set()
    try:
        for link in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(link.path)
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def _listening() -> list[tuple[str, int]]:
    """Inode and port of every listening TCP socket."""
    return [(inode, port) for inode, port, state in _sockets() if state == LISTEN]


def _sockets() -> list[tuple[str, int, str]]:
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            found.append((fields[9], int(fields[1].rsplit(":", 1)[1], 16), fields[3]))
    return found
