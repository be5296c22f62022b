"""Byte-pair encoding: any bytes come back, the same text gives the same tokens, and text gets shorter."""

import random
from pathlib import Path

import numpy as np

from trainer.tokenizer import learn, tokens_of

TEXT = b"the cat sat on the mat; the bat sat on the cat.\n" * 200


def test_any_bytes_come_back() -> None:
    tokenizer = learn(TEXT, 300)
    for text in (TEXT, b"", b"\x00\xff" * 50, random.Random(1).randbytes(2000), "grüße, 你好".encode(), b" " * 500):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_frequent_words_become_single_tokens() -> None:
    tokenizer = learn(TEXT, 400)
    assert len(tokenizer.encode(b" the")) == 1
    assert len(tokenizer.encode(TEXT)) < len(TEXT) / 3


def test_the_first_merge_is_the_most_frequent_pair() -> None:
    assert learn(b"ab ab ab cd cd", 257).merges == [(ord("a"), ord("b"))]


def test_learning_stops_when_no_pair_comes_twice() -> None:
    assert learn(b"abc", 1000).vocabulary == 256


def test_a_corpus_is_encoded_once_and_mapped(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(TEXT)
    first = tokens_of(corpus, 300, tmp_path)
    made = {p: p.stat().st_mtime_ns for p in tmp_path.glob("tokens-*.u16")}
    again = tokens_of(corpus, 300, tmp_path)
    assert np.array_equal(first, again) and int(first.max()) < 300
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("tokens-*.u16")} == made
    assert learn(TEXT, 300).decode(first.tolist()) == TEXT
