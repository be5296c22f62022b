"""A Hugging Face ``TrainerCallback``: reports steps, and stops the run gracefully when the platform asks.

    trainer = transformers.Trainer(..., callbacks=[TrainyardCallback()])
    trainer.train(resume_from_checkpoint=TrainyardCallback.newest(args.output_dir))

The library writes its own checkpoints to ``output_dir``; a stop makes it write one more before it leaves.
"""

from pathlib import Path

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

import trainer.sdk


class TrainyardCallback(TrainerCallback):
    """Five lines of the SDK in the places where the library calls."""

    def __init__(self, run=None):
        self.run = run or trainer.sdk.init()
        self.last_loss = None

    @staticmethod
    def newest(output_dir):
        """The newest checkpoint of the library's own, or None."""
        return get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.last_loss = (logs or {}).get("loss", self.last_loss)

    def on_step_end(self, args, state, control, **kwargs):
        metrics = {"epoch": state.epoch or 0.0}
        if self.last_loss is not None:
            metrics["loss"] = self.last_loss
        self.run.report(state.global_step, **metrics)
        if self.run.should_stop():
            control.should_save = control.should_training_stop = True
        return control
