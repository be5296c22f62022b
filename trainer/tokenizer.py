"""Byte-pair encoding, learnt from the job's own corpus (Sennrich et al. 2016, on bytes). Free of torch.

Any text can be encoded: the first 256 tokens are the bytes. Merges never cross the borders of words, numbers, runs of
signs and runs of white space.
"""

import fcntl
import hashlib
import heapq
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

Pair = tuple[int, int]
PIECES = re.compile(rb" ?[A-Za-z_]+| ?[0-9]+| ?[^\sA-Za-z0-9_]+|\s+")
LEARN_FROM_BYTES = 2 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
LONGEST_PIECE = 64


class Tokenizer:
    """Turns bytes into tokens and back."""

    def __init__(self, merges: list[Pair]) -> None:
        self.merges = merges
        self._rank = {pair: 256 + number for number, pair in enumerate(merges)}
        self._bytes = [bytes([value]) for value in range(256)]
        for left, right in merges:
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self._known: dict[bytes, list[int]] = {}

    @property
    def vocabulary(self) -> int:
        """Different tokens."""
        return len(self._bytes)

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text."""
        found: list[int] = []
        for piece in _pieces(text):
            tokens = self._known.get(piece)
            if tokens is None:
                tokens = self._known[piece] = self._merge(list(piece))
            found += tokens
        return found

    def decode(self, tokens: list[int]) -> bytes:
        """The text of some tokens."""
        return b"".join(self._bytes[token] for token in tokens)

    def _merge(self, tokens: list[int]) -> list[int]:
        """Apply the earliest merge that applies, until none does."""
        while len(tokens) > 1:
            best = min(
                (self._rank.get(pair, 1 << 30) for pair in zip(tokens, tokens[1:], strict=False)), default=1 << 30
            )
            if best == 1 << 30:
                break
            tokens = _joined(tokens, self.merges[best - 256], best)
        return tokens


def learn(text: bytes, vocabulary: int) -> Tokenizer:
    """A tokenizer of at most ``vocabulary`` tokens: again and again the most frequent pair becomes a token."""
    counts = Counter(_pieces(text))
    words = [list(piece) for piece in counts]
    weights = list(counts.values())
    pairs: Counter[Pair] = Counter()
    where: dict[Pair, set[int]] = defaultdict(set)
    for index, word in enumerate(words):
        for pair in zip(word, word[1:], strict=False):
            pairs[pair] += weights[index]
            where[pair].add(index)
    # Ties go to the smaller pair, so that the same text always gives the same tokenizer. Counts that have fallen since
    # they were pushed are put right when they come up.
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    merges: list[Pair] = []
    while len(merges) < vocabulary - 256 and heap:
        count, best = heapq.heappop(heap)
        if -count != pairs[best]:
            if pairs[best] > 0:
                heapq.heappush(heap, (-pairs[best], best))
            continue
        if -count < 2:
            break
        new = 256 + len(merges)
        merges.append(best)
        grown: set[Pair] = set()
        for index in where.pop(best):
            word, weight = words[index], weights[index]
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] -= weight
            words[index] = word = _joined(word, best, new)
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += weight
                where[pair].add(index)
                grown.add(pair)
        for pair in grown:
            heapq.heappush(heap, (-pairs[pair], pair))
    return Tokenizer(merges)


def _pieces(text: bytes) -> Iterator[bytes]:
    for match in PIECES.finditer(text):
        piece = match.group()
        for start in range(0, len(piece), LONGEST_PIECE):
            yield piece[start : start + LONGEST_PIECE]


def _joined(tokens: list[int], pair: Pair, new: int) -> list[int]:
    joined, place = [], 0
    while place < len(tokens):
        if place + 1 < len(tokens) and tokens[place] == pair[0] and tokens[place + 1] == pair[1]:
            joined.append(new)
            place += 2
        else:
            joined.append(tokens[place])
            place += 1
    return joined


def tokens_of(corpus: Path, vocabulary: int, cache: Path) -> np.ndarray:
    """The corpus in tokens, memory-mapped. Learnt and encoded once per machine; other ranks wait for that."""
    facts = corpus.stat()
    key = hashlib.sha256(f"{corpus}:{facts.st_size}:{facts.st_mtime_ns}:{vocabulary}".encode()).hexdigest()[:16]
    path = cache / f"tokens-{key}.u16"
    with (cache / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            _encode_file(corpus, vocabulary, path)
    return np.memmap(path, dtype=np.uint16, mode="r")


def _encode_file(corpus: Path, vocabulary: int, path: Path) -> None:
    with corpus.open("rb") as text:
        tokenizer = learn(text.read(LEARN_FROM_BYTES), vocabulary)
    new = path.with_suffix(".new")
    with corpus.open("rb") as text, new.open("wb") as out:
        # A chunk ends at a line's end, where merges would not reach across anyway.
        while chunk := text.read(CHUNK_BYTES) + text.readline():
            np.asarray(tokenizer.encode(chunk), dtype=np.uint16).tofile(out)
        out.flush()
        os.fsync(out.fileno())
    path.with_suffix(".merges.json").write_text(json.dumps(tokenizer.merges))
    new.replace(path)
