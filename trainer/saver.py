"""A process of each rank that writes its checkpoints, so that the training process only copies memory.

It is forked before the rank has threads, a device or a process group: that takes milliseconds where a spawned
one takes seconds, needs no main guard in anybody's script, and shares the rank's memory for torch itself. It dies
with its rank. Rank and saver share one block of memory for the state, and talk over a socket pair in JSON lines.
"""

import ctypes
import json
import mmap
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard

from trainer.saving import SaveOrder, SaveResult, reason_of, save_and_commit
from trainer.state import Entry, Spread

PR_SET_PDEATHSIG = 1
ALIGNMENT = 64
Layout = list[dict[str, Any]]


class SaverLost(Exception):
    """The saver process is gone."""


def layout_of(entries: dict[str, Entry]) -> tuple[Layout, int]:
    """Where each local tensor lies in the shared block, and the block's size in bytes."""
    rows: Layout = []
    offset = 0
    for name, entry in entries.items():
        local, spread = entry.local, entry.spread
        row: dict[str, Any] = {
            "name": name,
            "offset": offset,
            "dtype": str(local.dtype).removeprefix("torch."),
            "shape": list(local.shape),
            "spread": None,
        }
        if spread is not None:
            row["spread"] = {
                "mesh": [list(spread.mesh.mesh.shape), list(spread.mesh.mesh_dim_names or ())],
                "placements": [p.dim if isinstance(p, Shard) else None for p in spread.placements],
                "shape": list(spread.shape),
                "stride": list(spread.stride),
            }
            assert not any(isinstance(p, Partial) for p in spread.placements)
        rows.append(row)
        offset += -(-local.nbytes // ALIGNMENT) * ALIGNMENT
    return rows, max(offset, ALIGNMENT)


def views_of(block: Tensor, layout: Layout) -> list[Tensor]:
    """The block's tensors in the layout's order. ``block`` is a byte tensor."""
    found = []
    for row in layout:
        dtype = getattr(torch, row["dtype"])
        count = 1
        for length in row["shape"]:
            count *= length
        part = block[row["offset"] : row["offset"] + count * dtype.itemsize]
        found.append(part.view(dtype).view(row["shape"]))
    return found


class Saver:
    """The training process's end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _be_saver(theirs, parent)
        theirs.close()
        self._socket, self._rest = ours, b""

    def share(self, layout: Layout, size: int, group: dict[str, Any]) -> Tensor:
        """Give the saver the layout and a block of memory of ``size`` bytes; the block as a byte tensor."""
        descriptor = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size)
            block = mmap.mmap(descriptor, size)
            message = json.dumps({"layout": layout, "size": size, "group": group}).encode()
            self._send(len(message).to_bytes(8, "little"))
            socket.send_fds(self._socket, [b"x"], [descriptor])
            self._send(message)
        finally:
            os.close(descriptor)
        return torch.frombuffer(block, dtype=torch.uint8)

    def order(self, order: SaveOrder) -> None:
        """Begin a save of what is in the shared block now."""
        message = json.dumps(order.as_json()).encode()
        self._send(len(message).to_bytes(8, "little") + message)

    def result(self, timeout_s: float) -> SaveResult | None:
        """How the save ended; None when it has not within the time. Raises ``SaverLost``."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            self._socket.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                data = self._socket.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError:
                data = b""
            if not data:
                raise SaverLost("the saver process died")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return SaveResult(**json.loads(line))

    def close(self) -> None:
        """End the process: there is nothing in it that is not in the rank too."""
        self._socket.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(None)
        try:
            self._socket.sendall(data)
        except OSError:
            raise SaverLost("the saver process died") from None


def _be_saver(channel: socket.socket, parent: int) -> None:
    """The forked process: save what it is told to, until the rank is gone."""
    status = 1
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        # Stops are for the rank: it decides what is still to be saved.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.nice(5)
        torch.set_num_threads(1)
        # Every file's SHA-256 is in the manifest: a second checksum of each tensor would prove nothing more.
        torch.serialization.set_crc32_options(False)
        _serve(channel)
        status = 0
    except Exception as error:  # noqa: BLE001 - the process's last words; the rank sees its end and saves by itself
        print(f"saver: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(status)


def _serve(channel: socket.socket) -> None:
    size = int.from_bytes(_exactly(channel, 8), "little")
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    start = json.loads(_exactly(channel, size))
    block = torch.frombuffer(mmap.mmap(descriptors[0], start["size"]), dtype=torch.uint8)
    os.close(descriptors[0])
    entries: dict[str, Entry] | None = None
    while True:
        order = SaveOrder(**json.loads(_exactly(channel, int.from_bytes(_exactly(channel, 8), "little"))))
        try:
            if entries is None:
                _meet(start["group"])
                entries = _entries(block, start["layout"])
            assert dist.group.WORLD is not None
            result = save_and_commit(order, {n: e.whole() for n, e in entries.items()}, dist.group.WORLD)
        except (RuntimeError, OSError) as error:
            result = SaveResult(order.step, reason_of(error))
        channel.sendall(json.dumps(result.as_json()).encode() + b"\n")


def _meet(group: dict[str, Any]) -> None:
    """The savers' own group: their collectives never meet those of training."""
    timeout = timedelta(seconds=group["timeout_s"])
    store = dist.TCPStore(group["host"], group["port"], is_master=False, timeout=timeout)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(group["prefix"], store),
        rank=group["rank"],
        world_size=group["world_size"],
        timeout=timeout,
    )


def _entries(block: Tensor, layout: Layout) -> dict[str, Entry]:
    meshes: dict[str, DeviceMesh] = {}
    entries = {}
    for row, view in zip(layout, views_of(block, layout), strict=True):
        spread = None
        if row["spread"]:
            shape, names = row["spread"]["mesh"]
            mesh = meshes.setdefault(str(shape), None) or init_device_mesh(  # type: ignore[arg-type]
                "cpu", tuple(shape), mesh_dim_names=tuple(names) or None
            )
            meshes[str(shape)] = mesh
            placements = tuple(Replicate() if dim is None else Shard(dim) for dim in row["spread"]["placements"])
            spread = Spread(mesh, placements, torch.Size(row["spread"]["shape"]), tuple(row["spread"]["stride"]))
        entries[row["name"]] = Entry(view, spread)
    return entries


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            # The rank has closed its end: it is done.
            os._exit(0)
        data += part
    return bytes(data)
