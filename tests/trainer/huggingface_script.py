"""A user's script with Hugging Face's Trainer: fits a line, takes the callback of the examples."""

import sys

import torch
from transformers import Trainer, TrainingArguments

from examples.huggingface_callback import TrainyardCallback


class Line(torch.nn.Module):
    """y = a + b x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


def main() -> None:
    torch.manual_seed(1)
    xs = torch.linspace(-1, 1, 4096).unsqueeze(1)
    rows = [{"x": x, "labels": 2 + 3 * x} for x in xs]
    arguments = TrainingArguments(
        output_dir="out", max_steps=int(sys.argv[1]), per_device_train_batch_size=8, learning_rate=0.05,
        logging_steps=5, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, dataloader_num_workers=0,
    )  # fmt: skip
    trainer = Trainer(model=Line(), args=arguments, train_dataset=rows, callbacks=[TrainyardCallback()])
    trainer.train(resume_from_checkpoint=TrainyardCallback.newest("out"))


if __name__ == "__main__":
    main()
