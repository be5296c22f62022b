"""Text as tokens, cut into samples with one global order that no number of ranks changes."""

import fcntl
import hashlib
import os
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainer.config import TrainerConfig
from trainer.refusal import Refused

MAX_CORPUS_BYTES = 24 * 1024 * 1024


@dataclass(frozen=True)
class Corpus:
    """A text in memory-mapped tokens, split into a part to learn and a part to measure on."""

    train: np.ndarray
    validation: np.ndarray
    source: str
    licence: str
    num_bytes: int


def corpus_open(config: TrainerConfig, cache: Path | None) -> Corpus:
    """The corpus in tokens. It is made once per machine; every rank then maps the same file."""
    name, length = config.corpus(), config.data.sequence_length
    if name == "python-stdlib":
        path = _stdlib_file(cache)
        version = ".".join(map(str, sys.version_info[:3]))
        source, licence = f"source files of the Python {version} standard library", "PSF-2.0"
    else:
        path = Path(name)
        source, licence = name, "as its owner says"
        if path.is_dir():
            path = _folder_file(path, cache)
    if not path.is_file():
        raise Refused(
            f"The corpus {name} does not exist on this node. Give 'python-stdlib' or a path that all nodes see."
        )
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise Refused(f"The corpus {name} is empty.")
    data: np.ndarray = np.memmap(path, dtype=np.uint8, mode="r")
    if config.data.tokenizer == "bpe":
        from trainer.tokenizer import tokens_of

        data = tokens_of(path, config.data.vocabulary, cache_folder(cache))
    held_out = max(int(len(data) * config.data.validation_fraction), length + 1)
    if len(data) < 2 * held_out or len(data) - held_out < 2 * (length + 1):
        raise Refused(
            f"The corpus {name} has {len(data)} tokens: too few for sequences of {length}. "
            "Use shorter sequences or more text."
        )
    return Corpus(data[:-held_out], data[-held_out:], source, licence, num_bytes)


def _stdlib_file(cache: Path | None) -> Path:
    root = Path(sysconfig.get_paths()["stdlib"])
    return _gathered(root, f"stdlib-{'.'.join(map(str, sys.version_info[:3]))}", (".py",), "", cache)


def _folder_file(folder: Path, cache: Path | None) -> Path:
    # A folder of a person's may change between two runs: its name and date are part of the key.
    stamp = f"{folder.stat().st_mtime_ns}"
    return _gathered(folder, "folder", (".txt", ".md", ".rst", ".py"), stamp, cache)


def _gathered(root: Path, name: str, suffixes: tuple[str, ...], stamp: str, cache: Path | None) -> Path:
    """One file with the bytes of a folder's text files, made by the first rank that comes; others wait."""
    folder = cache_folder(cache)
    key = hashlib.sha256(f"{root}:{stamp}:{MAX_CORPUS_BYTES}".encode()).hexdigest()[:12]
    path = folder / f"{name}-{key}.bytes"
    with (folder / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            _gather(root, suffixes, path)
    return path


def cache_folder(cache: Path | None) -> Path:
    """Where data made once per machine lies."""
    folder = cache or Path(tempfile.gettempdir()) / f"trainyard-corpus-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _gather(root: Path, suffixes: tuple[str, ...], path: Path) -> None:
    files = sorted(p for p in root.rglob("*") if p.suffix in suffixes and "site-packages" not in p.parts)
    if not files:
        raise Refused(f"The corpus folder {root} holds no {', '.join(suffixes)} file.")
    new = path.with_suffix(".new")
    with new.open("wb") as out:
        for file in files:
            if file.is_file():
                out.write(file.read_bytes())
            if out.tell() >= MAX_CORPUS_BYTES:
                break
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


class Samples:
    """Sample ``i`` of an endless, seeded shuffle. A step takes the next ``global_batch_size`` of them.

    Which sample is number ``i`` depends on the seed alone, so a run that goes on with another number of
    ranks sees the same data in the same order, and the position is the step's number and nothing else.
    """

    def __init__(self, data: np.ndarray, sequence_length: int, seed: int) -> None:
        self.data, self.length, self.seed = data, sequence_length, seed
        self.num_sequences = (len(data) - 1) // sequence_length
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def start_of(self, index: int) -> int:
        """The byte at which global sample ``index`` begins."""
        epoch, place = divmod(index, self.num_sequences)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order, self._epoch = torch.randperm(self.num_sequences, generator=generator), epoch
        return int(self._order[place]) * self.length

    def batch(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``count`` samples from global index ``first``: two int64 tensors [B, T]."""
        starts = [self.start_of(i) for i in range(first, first + count)]
        rows = np.stack([self.data[s : s + self.length + 1] for s in starts]).astype(np.int64)
        tokens_BT = torch.from_numpy(rows)
        return tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous()
