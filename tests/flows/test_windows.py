"""Books of a rank's time: whatever it wrote, windows meet, never overlap, and all time has one cause."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.agent.windows import RankTime

S = 1_000_000_000


def start(at: float) -> dict[str, Any]:
    return {"k": "start", "t_ns": int(at * S)}


def phase(at: float, name: str, event: str = "begin") -> dict[str, Any]:
    return {"k": "phase", "t_ns": int(at * S), "name": name, "event": event}


def step(at: float, number: int, length: float, **segments: float) -> dict[str, Any]:
    seg = {name: int(value * S) for name, value in segments.items()}
    return {"k": "step", "t_ns": int(at * S), "step": number, "dur_ns": int(length * S), "seg": seg}


def checkpoint(at: float, event: str, **fields: float) -> dict[str, Any]:
    return {"k": "ckpt", "t_ns": int(at * S), "event": event, **{k: int(v * S) for k, v in fields.items()}}


def leave(at: float, status: str) -> dict[str, Any]:
    return {"k": "exit", "t_ns": int(at * S), "status": status}


def spent(*records: dict[str, Any], end: float | None = None, lost: bool = False, done: int = 0) -> dict[str, float]:
    """Seconds by cause of one rank with these records; it died at ``end``."""
    time = RankTime(0, 0, max_step_done=done)
    for record in records:
        time.feed(record)
    if end is not None:
        time.end(int(end * S), lost=lost)
    window = time.cut()
    assert window is not None
    return {cause: pytest.approx(seconds) for cause, seconds in window["seconds"].items() if seconds}


def test_the_time_before_the_first_step_is_start_up_but_for_restore_and_compile() -> None:
    assert spent(
        start(0),
        phase(0, "import"),
        phase(1, "import", "end"),
        phase(1, "restore"),
        phase(3, "restore", "end"),
        phase(3, "train"),
        phase(4, "compile"),
        phase(9, "compile", "end"),
        step(12, 1, 2),
    ) == {"startup": 3, "restore": 2, "compile": 5, "productive": 2}


def test_segments_of_a_step_go_to_their_causes_and_the_rest_is_productive() -> None:
    assert spent(start(0), step(10, 1, 10, data_wait=2, checkpoint=1, forward=4)) == {
        "data_wait": 2,
        "checkpoint_stall": 1,
        "productive": 7,
    }


def test_segments_that_claim_more_than_the_step_took_are_scaled_down() -> None:
    assert spent(start(0), step(10, 1, 10, data_wait=20, checkpoint=20)) == {
        "data_wait": 5,
        "checkpoint_stall": 5,
    }


def test_a_rank_that_waits_longer_than_the_last_to_arrive_waits_for_a_straggler() -> None:
    time = RankTime(0, 0)
    time.feed(start(0))
    time.feed(step(10, 1, 10, comm_wait=4), least_comm_wait_ns=1 * S)
    window = time.cut()
    assert window is not None
    assert window["seconds"] == {"straggler": 3.0, "productive": 7.0}


def test_a_save_stands_still_for_its_stall_and_no_longer() -> None:
    assert spent(
        start(0),
        phase(0, "train"),
        step(1, 1, 1),
        checkpoint(1, "begin"),
        checkpoint(4, "durable", stall_ns=0.5),
        step(5, 2, 3.5),
    ) == {"productive": 4.5, "checkpoint_stall": 0.5}


def test_a_save_whose_end_nobody_wrote_stands_still_until_the_next_step_begins() -> None:
    assert spent(start(0), step(1, 1, 1), checkpoint(1, "begin"), step(5, 2, 1)) == {
        "productive": 2,
        "checkpoint_stall": 3,
    }


def test_steps_that_were_done_before_the_restart_are_recomputed_with_all_between_them() -> None:
    assert spent(
        start(0),
        phase(1, "train"),
        step(2, 1, 1, data_wait=0.5),
        step(4, 2, 1),
        phase(4, "eval"),
        phase(5, "eval", "end"),
        step(6, 3, 1),
        step(7, 4, 1),
        done=3,
    ) == {"startup": 1, "recomputed": 5, "productive": 1}


@pytest.mark.parametrize(
    ("records", "lost", "expected"),
    [
        ([phase(0, "train"), step(1, 1, 1)], True, {"productive": 1, "recomputed": 4}),
        ([step(1, 1, 1)], True, {"productive": 1, "recomputed": 4}),
        ([step(1, 1, 1), leave(3, "error")], True, {"productive": 1, "recomputed": 2, "teardown": 2}),
        ([step(1, 1, 1), leave(3, "finished")], False, {"productive": 3, "teardown": 2}),
        ([phase(0, "import")], True, {"startup": 5}),
        ([phase(0, "restore")], True, {"restore": 5}),
        ([phase(0, "train")], True, {"recomputed": 5}),
    ],
)
def test_work_in_flight_at_a_death_came_to_nothing(
    records: list[dict[str, Any]], lost: bool, expected: dict[str, float]
) -> None:
    assert spent(start(0), *records, end=5, lost=lost) == expected


def test_a_clock_that_is_set_back_spends_nothing_twice() -> None:
    time = RankTime(0, 0)
    for record in (start(10), step(20, 1, 5), step(15, 2, 5), step(21, 3, 1)):
        time.feed(record)
    window = time.cut()
    assert window is not None
    assert (window["from_ns"], window["to_ns"]) == (10 * S, 21 * S)
    assert sum(window["seconds"].values()) == 11.0


RECORDS = st.one_of(
    st.builds(
        lambda name, event: {"k": "phase", "name": name, "event": event},
        st.sampled_from(["import", "rendezvous", "build", "restore", "compile", "train", "eval", "save", "odd"]),
        st.sampled_from(["begin", "end"]),
    ),
    st.builds(
        lambda step, length, seg: {"k": "step", "step": step, "dur_ns": length, "seg": seg},
        st.integers(1, 50),
        st.integers(0, 3 * S),
        st.dictionaries(
            st.sampled_from(["data_wait", "comm_wait", "checkpoint", "forward", "x"]),
            st.integers(0, 4 * S),
            max_size=4,
        ),
    ),
    st.builds(
        lambda event, stall: {"k": "ckpt", "event": event, "stall_ns": stall},
        st.sampled_from(["begin", "staged", "durable", "failed", "deleted"]),
        st.none() | st.integers(0, 5 * S),
    ),
    st.builds(lambda status: {"k": "exit", "status": status}, st.sampled_from(["finished", "error", "stopped"])),
    st.just({"k": "config"}),
)


@given(
    records=st.lists(
        st.tuples(st.integers(-S, 2 * S), RECORDS, st.booleans(), st.none() | st.integers(0, S)), max_size=40
    ),
    done=st.integers(0, 30),
    tail=st.integers(0, S),
    lost=st.booleans(),
)
def test_windows_partition_a_life_exactly(
    records: list[tuple[int, dict[str, Any], bool, int | None]], done: int, tail: int, lost: bool
) -> None:
    time, at, highest = RankTime(3, 1, max_step_done=done), 100 * S, 100 * S
    time.feed({"k": "start", "t_ns": at})
    windows, spent_ns = [], 0
    for delta, record, cut, least in records:
        at = max(0, at + delta)
        highest = max(highest, at)
        time.feed({**record, "t_ns": at}, least)
        if cut:
            spent_ns += sum(time.causes.values())
            windows.append(time.cut())
            time = RankTime.from_json(time.as_json())
    time.end(highest + tail, lost=lost)
    spent_ns += sum(time.causes.values())
    windows.append(time.cut())
    closed = [w for w in windows if w is not None]
    assert spent_ns == highest + tail - 100 * S
    assert [w["n"] for w in closed] == list(range(len(closed)))
    place = 100 * S
    for window in closed:
        assert window["from_ns"] == place
        place = window["to_ns"]
        assert all(seconds >= 0 for seconds in window["seconds"].values())
        assert sum(window["seconds"].values()) == pytest.approx((place - window["from_ns"]) / 1e9, abs=1e-6)
    assert place == highest + tail
    time.feed({"k": "step", "t_ns": at + 99 * S, "step": 1, "dur_ns": 1})
    assert time.cut() is None, "a dead rank spends nothing"
