"""Float8 is tried, not assumed: refused in one sentence where it cannot work, close to exact where it can."""

import pytest
import torch
from torch import nn

from trainer import float8
from trainer.refusal import Refused


def test_on_the_cpu_it_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(Refused, match="Use bf16"):
        float8.linears_swap(nn.Linear(16, 16), torch.device("cpu"))


@pytest.mark.skipif(
    float8.unsupported_reason(torch.device("cpu")) is not None, reason="this torch has no float8 product on the CPU"
)
def test_products_and_gradients_are_close_to_exact() -> None:
    torch.manual_seed(0)
    exact = nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)
    rough = nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)
    rough.load_state_dict(exact.state_dict())
    rough.__class__ = float8.Float8Linear
    rows = torch.randn(2, 16, 64, dtype=torch.bfloat16)
    inputs = [rows.clone().requires_grad_(), rows.clone().requires_grad_()]
    for layer, value in zip((exact, rough), inputs, strict=True):
        layer(value).float().square().sum().backward()
    for wanted, found in ((inputs[0].grad, inputs[1].grad), (exact.weight.grad, rough.weight.grad)):
        assert wanted is not None and found is not None
        assert (found.float() - wanted.float()).norm() < 0.15 * wanted.float().norm()
