"""A Lightning callback: reports steps, saves through the platform, and stops gracefully when it asks.

callback = TrainyardCallback(every=100)
Trainer(callbacks=[callback], ...).fit(module, data, ckpt_path=callback.newest())
"""

from pathlib import Path

import trainer.sdk

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback


class TrainyardCallback(Callback):
    """``every`` is in optimizer steps."""

    def __init__(self, every=100, run=None):
        self.run, self.every = run or trainer.sdk.init(), every
        self._found = []

    def newest(self):
        """The newest checkpoint that verifies, or None."""
        self.run.resume(lambda folder: self._found.append(Path(folder) / "lightning.ckpt"))
        return str(self._found[-1]) if self._found else None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        step = trainer.global_step
        if step == self.run.step:
            return  # gradients are being accumulated
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.run.report(step, loss=loss)
        if self.run.should_save(step, every=self.every):
            # Lightning's own save is for all ranks to call.
            self.run.checkpoint(
                step, lambda folder: trainer.save_checkpoint(folder / "lightning.ckpt"), every_rank=True
            )
        if self.run.should_stop():
            trainer.should_stop = True
