"""The same model under Hugging Face accelerate (DDP), as its documentation shows it."""

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator

from trainer.config import TrainerConfig
from trainer.data import corpus_open
from trainer.model import LanguageModel


class Accelerated:
    """Call ``step()``."""

    def __init__(self, config: TrainerConfig, cache: str | None = None) -> None:
        self.config = config
        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        torch.manual_seed(config.seed)
        settings = config.optimizer
        model = LanguageModel(config)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.data = torch.from_numpy(np.array(corpus_open(config, cache).train))
        self.order = torch.Generator().manual_seed(config.seed)

    def step(self) -> None:
        """One optimizer step."""
        length, count = self.config.data.sequence_length, self.config.global_batch_size // dist.get_world_size()
        starts = torch.randint(len(self.data) - length - 1, (count,), generator=self.order)
        rows = torch.stack([self.data[s : s + length + 1] for s in starts]).long().to(self.accelerator.device)
        loss = self.model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.optimizer.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
