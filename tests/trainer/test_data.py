"""The order of the data depends on the seed alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer.config import TrainerConfig
from trainer.data import Samples, corpus_open
from trainer.loader import Loader, share_of_rank
from trainer.refusal import Refused


def config(**changes: Any) -> TrainerConfig:
    base: dict[str, Any] = {"global_batch_size": 8, "data": {"sequence_length": 16}, "steps": 6}
    return TrainerConfig.parse(base | changes, world_size=1)


def test_ranks_and_passes_share_out_the_same_samples_whatever_their_number() -> None:
    for world_size, passes in [(1, 1), (2, 1), (4, 2), (8, 1), (2, 4)]:
        taken: list[int] = []
        for micro in range(passes):
            for rank in range(world_size):
                first, count = share_of_rank(
                    step=3, micro=micro, global_batch_size=8, passes=passes, rank=rank, world_size=world_size
                )
                taken += range(first, first + count)
        assert taken == list(range(24, 32))


def test_an_epoch_holds_every_sample_once_and_the_next_is_shuffled_anew() -> None:
    samples = Samples(np.arange(1 + 16 * 20, dtype=np.uint8), 16, seed=7)
    first = [samples.start_of(i) for i in range(20)]
    second = [samples.start_of(i) for i in range(20, 40)]
    assert sorted(first) == sorted(second) == [16 * i for i in range(20)] and first != second


def test_targets_are_the_next_tokens() -> None:
    inputs, targets = Samples(np.arange(200, dtype=np.uint8), 16, seed=1).batch(0, 4)
    assert torch.equal(inputs + 1, targets) and inputs.dtype == torch.int64


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_change_nothing_in_the_data(workers: int) -> None:
    source = Samples(np.arange(4000, dtype=np.uint16), 16, seed=1)

    def batches(**changes: Any) -> list[torch.Tensor]:
        wanted = config(data={"sequence_length": 16, **changes})
        loader = Loader(source, wanted, rank=0, world_size=1, first_step=2, device=torch.device("cpu"))
        return [loader.next()[0].clone() for _ in range(4)]

    for alone, helped in zip(batches(), batches(workers=workers), strict=True):
        assert torch.equal(alone, helped)


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"", "is empty"), (b"short", "too few for sequences of 16"), (None, "does not exist")]
)
def test_a_corpus_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=sentence):
        corpus_open(config(data={"sequence_length": 16, "corpus": str(path)}), tmp_path / "cache")


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    with pytest.raises(Refused, match="holds no"):
        corpus_open(config(data={"corpus": str(tmp_path / "corpus")}), tmp_path / "cache")
