"""Causes of GPU time, in the reader's language."""

from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.usage.models import Cause

CAUSES: Final[dict[str, str | Promise]] = {
    Cause.PRODUCTIVE: _("training"),
    Cause.STARTUP: _("start-up"),
    Cause.COMPILE: _("compiling"),
    Cause.DATA_WAIT: _("waiting for data"),
    Cause.CHECKPOINT_STALL: _("saving checkpoints"),
    Cause.RESTORE: _("loading checkpoints"),
    Cause.RECOMPUTED: _("doing lost work again"),
    Cause.STRAGGLER: _("waiting for slow ranks"),
    Cause.HANG_DETECTION: _("noticing a hang"),
    Cause.IDLE_HOLD: _("held idle"),
    Cause.TEARDOWN: _("ending"),
}
EXPLANATIONS: Final[dict[str, str | Promise]] = {
    Cause.PRODUCTIVE: _("Steps that brought the training forward."),
    Cause.STARTUP: _("From getting the GPUs to the first step."),
    Cause.COMPILE: _("The compiler was at work."),
    Cause.DATA_WAIT: _("Ranks waited for the next batch."),
    Cause.CHECKPOINT_STALL: _("Training stood still for a save."),
    Cause.RESTORE: _("A checkpoint was read."),
    Cause.RECOMPUTED: _("Steps that had been done before a failure."),
    Cause.STRAGGLER: _("Ranks waited for the slowest one."),
    Cause.HANG_DETECTION: _("From the last progress until the hang was seen."),
    Cause.IDLE_HOLD: _("GPUs were held and nothing ran, such as after a failure."),
    Cause.TEARDOWN: _("From the last step until the GPUs were given back."),
}
