"""What an engineer would write by hand: FSDP2 around the same model, AdamW, clipping, a cosine. Nothing is measured,
recorded, agreed on or saved. The trainer is compared with this loop."""

import math
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.config import TrainerConfig
from trainer.data import corpus_open
from trainer.model import LanguageModel


class Handwritten:
    """Call ``step()``."""

    def __init__(self, config: TrainerConfig, cache: str | None = None) -> None:
        self.config = config
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else "cpu"
        torch.manual_seed(config.seed)
        model = LanguageModel(config).to(self.device)
        mesh = init_device_mesh(torch.device(self.device).type, (self.world_size,))
        dtype = torch.bfloat16 if config.precision == "bf16" else None
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.model = fully_shard(model, mesh=mesh, mp_policy=policy)
        settings = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.data = torch.from_numpy(np.array(corpus_open(config, cache).train))
        self.order = torch.Generator().manual_seed(config.seed)
        self.done = 0

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random windows of the text."""
        length, count = self.config.data.sequence_length, self.config.global_batch_size // self.world_size
        starts = torch.randint(len(self.data) - length - 1, (count,), generator=self.order)
        rows = torch.stack([self.data[s : s + length + 1] for s in starts]).long().to(self.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step(self) -> None:
        """One optimizer step."""
        settings = self.config.optimizer
        place = min(1.0, self.done / self.config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * 0.5 * (1 + math.cos(math.pi * place))
        loss = self.model(*self.batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        if self.done % 10 == 0 and self.rank == 0:
            loss.item()
