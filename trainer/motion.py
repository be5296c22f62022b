"""Motion forecasting: from two seconds of a car and its neighbours to the next two seconds of the car.

Scenes are ``.npy`` shards of [scenes, steps, cars, (x, y, vx, vy)] in float32, ten steps a second, memory-mapped.
``highway`` is simulated traffic (see ``traffic``), made once per machine with a checksum of every shard.
"""

import fcntl
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer import traffic
from trainer.config import TrainerConfig
from trainer.model import Block, weights_start
from trainer.refusal import Refused
from trainer.workload import Batch, Workload

PAST, FUTURE, AGENTS, FEATURES = 20, 20, 8, 4
SHARDS, SCENES_PER_SHARD = 6, 8
STRIDE = 5  # steps between two samples of one car
MIRRORED, TURN, NOISE_M, BLIND = 0.5, math.radians(6), 0.05, 0.1


def motion_workload(config: TrainerConfig, cache: Path | None) -> Workload:
    """A transformer over cars, on augmented samples; the last shard is held out."""
    shards = _shards(config.corpus(), cache)
    model = MotionModel(config)
    layers, heads, width = config.sizes()
    parameters = sum(p.numel() for p in model.parameters())
    return Workload(
        model=model,
        train=MotionSamples(shards[:-1], config.seed, augment=True),
        validation=MotionSamples(shards[-1:], 0, augment=False),
        units_per_sample=AGENTS,
        flops_per_unit=6.0 * parameters + 12.0 * layers * width * AGENTS,
        signature={"workload": "motion", "layers": layers, "heads": heads, "width": width},
        facts={
            "corpus": "simulated motorway traffic" if config.corpus() == "highway" else config.corpus(),
            "corpus_licence": "made by this program" if config.corpus() == "highway" else "as its owner says",
            "corpus_bytes": sum(shard.nbytes for shard in shards),
        },
    )


class MotionModel(nn.Module):
    """Each car's past is one token; the first one's future is read off its token."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__()
        layers, heads, width = config.sizes()
        self.embedding = nn.Linear(PAST * FEATURES, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, causal=False, dropout=config.model.dropout) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, FUTURE * 2)
        self.apply(weights_start)

    def forward(self, past_BAF: Tensor, future_BP: Tensor) -> Tensor:
        """The smooth absolute error in metres, over the car's going on as it last moved."""
        x_BAD = self.embedding(past_BAF)
        for block in self.blocks:
            x_BAD = block(x_BAD)
        guess_BP = self.head(self.norm(x_BAD[:, 0])).float()
        return F.smooth_l1_loss(guess_BP, future_BP.float())


class MotionSamples:
    """Sample ``i`` is a car at an instant, in an order and with an augmentation that the seed and ``i`` alone decide."""

    def __init__(self, shards: list[np.ndarray], seed: int, *, augment: bool) -> None:
        self.shards, self.seed, self.augment = shards, seed, augment
        scenes, steps, cars, _ = shards[0].shape
        self._instants = (steps - PAST - FUTURE) // STRIDE
        self._shape = (len(shards), scenes, cars, self._instants)
        self.num_samples = math.prod(self._shape)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def batch(self, first: int, count: int) -> Batch:
        """Pasts [B, A, PAST·4] and futures [B, FUTURE·2] of ``count`` samples from global index ``first``."""
        pairs = [self._sample(index) for index in range(first, first + count)]
        past, future = (np.stack(part) for part in zip(*pairs, strict=True))
        return torch.from_numpy(past), torch.from_numpy(future)

    def _sample(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        epoch, place = divmod(index, self.num_samples)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(self.num_samples)
            self._epoch = epoch
        shard, scene, car, instant = (int(part) for part in np.unravel_index(self._order[place], self._shape))
        start = instant * STRIDE
        window = self.shards[shard][scene, start : start + PAST + FUTURE]
        now = window[PAST - 1, car]
        near = np.argsort(np.hypot(*(window[PAST - 1, :, :2] - now[:2]).T), kind="stable")[:AGENTS]
        tracks = window[:, near].astype(np.float32)
        tracks[:, :, :2] -= now[:2]
        if self.augment:
            tracks = self._augmented(tracks, np.random.default_rng([self.seed, 1, index]))
        # What is to be learnt is how the car departs from going on as it moves now.
        ahead = np.arange(1, FUTURE + 1, dtype=np.float32)[:, None] * traffic.TICK_S
        future = tracks[PAST:, 0, :2] - (tracks[PAST - 1, 0, :2] + ahead * tracks[PAST - 1, 0, 2:])
        past = tracks[:PAST].transpose(1, 0, 2).reshape(AGENTS, -1) / 20.0
        return np.ascontiguousarray(past), np.ascontiguousarray(future.reshape(-1))

    @staticmethod
    def _augmented(tracks: np.ndarray, source: np.random.Generator) -> np.ndarray:
        """Mirrored, turned, measured less exactly, and with cars that nobody saw."""
        if source.random() < MIRRORED:
            tracks[:, :, [1, 3]] *= -1
        angle = source.uniform(-TURN, TURN)
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=np.float32)
        tracks[:, :, :2], tracks[:, :, 2:] = tracks[:, :, :2] @ turn, tracks[:, :, 2:] @ turn
        tracks[: PAST - 1, :, :2] += source.normal(0, NOISE_M, (PAST - 1, tracks.shape[1], 2)).astype(np.float32)
        unseen = np.less(source.random(tracks.shape[1]), BLIND)
        unseen &= np.arange(tracks.shape[1]) > 0
        tracks[:, unseen] = 0.0
        return tracks


def _shards(name: str, cache: Path | None) -> list[np.ndarray]:
    folder = _highway(cache) if name == "highway" else Path(name)
    paths = sorted(folder.glob("*.npy")) if folder.is_dir() else []
    if len(paths) < 2:
        raise Refused(f"The corpus {name} must be 'highway' or a folder of two or more .npy shards that all nodes see.")
    try:
        shards = [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]
    except (OSError, ValueError):
        raise Refused(f"The corpus {name} has a shard that is no .npy array.") from None
    for path, shard in zip(paths, shards, strict=True):
        fits = shard.ndim == 4 and shard.shape[3] == FEATURES and shard.dtype == np.float32
        if not fits or shard.shape[1] < PAST + FUTURE + STRIDE or shard.shape[2] < AGENTS:
            raise Refused(
                f"{path.name} must be float32 [scenes, at least {PAST + FUTURE + STRIDE} steps, at least {AGENTS} cars, "
                f"{FEATURES}], and is {shard.dtype} {list(shard.shape)}."
            )
        if shard.shape[0] == 0 or shard.shape != shards[0].shape:
            raise Refused(
                f"{path.name} has the shape {list(shard.shape)}; all shards must have {list(shards[0].shape)}."
            )
    return shards


def _highway(cache: Path | None) -> Path:
    """The folder of simulated traffic, made by the first rank that comes; whole shards only, by their checksums."""
    from trainer.data import cache_folder

    folder = cache_folder(cache) / f"highway-{SHARDS}x{SCENES_PER_SHARD}"
    folder.mkdir(exist_ok=True)
    sums = folder / "checksums.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not sums.is_file() or not _whole(folder, json.loads(sums.read_text())):
            found = {}
            for number in range(SHARDS):
                seeds = range(number * SCENES_PER_SHARD, (number + 1) * SCENES_PER_SHARD)
                path = folder / f"shard_{number}.npy"
                np.save(path, np.stack([traffic.scene(seed) for seed in seeds]))
                found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            sums.write_text(json.dumps(found))
    return folder


def _whole(folder: Path, sums: dict[str, str]) -> bool:
    paths = [folder / name for name in sums]
    return all(p.is_file() and hashlib.sha256(p.read_bytes()).hexdigest() == sums[p.name] for p in paths)
