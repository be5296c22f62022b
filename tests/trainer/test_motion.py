"""Motion forecasting: the traffic is plausible, samples depend on their place alone, the model beats going straight on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.gang import WarmStart
from trainer import motion, traffic
from trainer.config import TrainerConfig
from trainer.records import REFUSED
from trainer.refusal import Refused


@pytest.fixture(scope="module")
def shards() -> list[np.ndarray]:
    return [np.stack([traffic.scene(seed, num_steps=80)]) for seed in (1, 2)]


def test_cars_do_not_collide_and_do_change_lanes() -> None:
    tracks = traffic.scene(3)
    x, y, speed = tracks[:, :, 0], tracks[:, :, 1], tracks[:, :, 2]
    same_lane = np.abs(y[:, :, None] - y[:, None, :]) < 1.0
    apart = (x[:, :, None] - x[:, None, :]) % traffic.RING_M
    apart = np.minimum(apart, traffic.RING_M - apart)[same_lane & ~np.eye(x.shape[1], dtype=bool)]
    assert apart.min() > traffic.CAR_M / 2
    assert np.abs(y[-1] - y[0]).max() > traffic.LANE_WIDTH_M / 2
    assert speed.min() >= 0 and speed.max() < 45
    assert np.array_equal(tracks, traffic.scene(3)) and not np.array_equal(tracks, traffic.scene(4))


def test_a_sample_is_a_function_of_its_place(shards: list[np.ndarray]) -> None:
    whole = motion.MotionSamples(shards, 7, augment=True).batch(0, 12)
    parts = motion.MotionSamples(shards, 7, augment=True)
    late, early = parts.batch(6, 6), parts.batch(0, 6)
    for all_of_it, first, second in zip(whole, early, late, strict=True):
        assert torch.equal(all_of_it, torch.cat([first, second]))


def test_augmentation_changes_samples_and_leaves_validation_alone(shards: list[np.ndarray]) -> None:
    plain = motion.MotionSamples(shards, 7, augment=False).batch(0, 4)[0]
    assert not torch.equal(plain, motion.MotionSamples(shards, 7, augment=True).batch(0, 4)[0])
    assert torch.equal(plain, motion.MotionSamples(shards, 7, augment=False).batch(0, 4)[0])


@pytest.mark.parametrize("broken", ["empty", "text", "shape"])
def test_shards_that_cannot_be_used_are_refused(tmp_path: Path, broken: str) -> None:
    if broken == "text":
        for name in "ab":
            (tmp_path / f"{name}.npy").write_text("x")
    if broken == "shape":
        for name in "ab":
            np.save(tmp_path / f"{name}.npy", np.zeros((1, 80, 3, 4), dtype=np.float32))
    config = TrainerConfig.parse({"workload": "motion", "data": {"corpus": str(tmp_path)}}, world_size=1)
    with pytest.raises(Refused):
        motion.motion_workload(config, tmp_path)


def test_the_model_learns_more_than_going_straight_on(
    warm: WarmStart, tmp_path: Path, shards: list[np.ndarray]
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, shard in enumerate(shards):
        np.save(corpus / f"{number}.npy", shard)
    wanted: dict[str, Any] = {
        "workload": "motion",
        "steps": 60,
        "global_batch_size": 32,
        "model": {"preset": "nano"},
        "data": {"corpus": str(corpus), "workers": 1},
        "checkpoint": {"every_steps": 30},
        "eval": {"every_steps": 20, "batches": 4},
        "optimizer": {"lr": 0.005, "warmup_steps": 5},
    }
    ended = warm.start(tmp_path / "run", wanted, 2).wait()
    assert ended.statuses == [0, 0], ended.errors[0]
    losses = ended.losses()
    assert sum(losses[s] for s in range(51, 61)) < 0.9 * sum(losses[s] for s in range(1, 11))
    assert all(step["seg"]["data_wait"] > 0 for step in ended.of("step"))
    other = warm.start(tmp_path / "run", wanted | {"workload": "language", "data": {}}, 2).wait()
    assert other.statuses == [REFUSED, REFUSED] and "is of another model" in other.errors[0]
