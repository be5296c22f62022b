"""A user's script with Lightning: fits a line, takes the callback of the examples."""

import sys
import time

import lightning.pytorch as pl
import torch

from examples.lightning_callback import TrainyardCallback


class Line(pl.LightningModule):
    """y = a + b x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(0.002)
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    pl.seed_everything(1)
    xs = torch.linspace(-1, 1, 4096).unsqueeze(1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(xs, 2 + 3 * xs), batch_size=8, shuffle=True)
    callback = TrainyardCallback(every=20)
    trainer = pl.Trainer(
        max_steps=int(sys.argv[1]), accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Line(), data, ckpt_path=callback.newest())


if __name__ == "__main__":
    main()
