"""When a save is due, and what a step's arithmetic says about the hardware."""

import pytest

from trainer.config import CheckpointConfig
from trainer.interval import DueByTime, young_daly_s
from trainer.throughput import utilisation


def test_young_and_daly_balance_saving_against_losing() -> None:
    # δ = 2 s, M = 4 h: √(2·2·14,400) = 240 s. A minute to either side costs more.
    assert young_daly_s(2.0, 14_400.0) == pytest.approx(240.0)

    def cost(interval: float) -> float:
        return 2.0 / interval + interval / (2 * 14_400.0)

    assert cost(240.0) < min(cost(180.0), cost(300.0))


def test_the_interval_follows_the_stall_that_was_measured() -> None:
    due = DueByTime(CheckpointConfig(every_steps=0, young_daly=True, mtbf_s=7200.0), 0.0)
    assert due.interval_s([]) == 30.0
    assert due.interval_s([int(0.25e9)] * 3) == pytest.approx(60.0)
    assert not due.due(59.0, [int(0.25e9)]) and due.due(61.0, [int(0.25e9)])
    due.saved(61.0)
    assert not due.due(100.0, [int(0.25e9)])


def test_without_a_rule_of_time_nothing_is_ever_due() -> None:
    assert not DueByTime(CheckpointConfig(), 0.0).due(1e9, [])


def test_mfu_is_the_model_s_share_and_hfu_counts_recomputation() -> None:
    found = utilisation(tokens_per_s=1000.0, flops_per_token=6e9, num_ranks=2, peak_flops=10e12, checkpointing="full")
    assert found.mfu == pytest.approx(0.3) and found.hfu == pytest.approx(0.4)


def test_more_than_the_hardware_can_do_is_a_counter_fault() -> None:
    found = utilisation(tokens_per_s=1e4, flops_per_token=6e9, num_ranks=1, peak_flops=1e12, checkpointing="none")
    assert found.mfu is None and found.fault is not None and "above 1" in found.fault
