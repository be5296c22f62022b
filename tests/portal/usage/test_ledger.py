"""Held GPU time, split by cause: it always adds up."""

from hypothesis import given
from hypothesis import strategies as st

from portal.usage.ledger import DAY_NS, Mark, RestartSpan, Window, gpu_time, marks_of

S = 10**9


def by_cause(totals: dict[tuple[int, str], int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (_, cause), length in totals.items():
        found[cause] = found.get(cause, 0.0) + length / S
    return found


def test_time_before_the_first_record_is_start_up_and_after_the_stop_is_teardown() -> None:
    marks = marks_of([RestartSpan(0, None, None)], held_ns=0, stop_ns=90 * S)
    windows = [Window(10 * S, 80 * S, {"productive": 60.0, "data_wait": 10.0})]
    assert by_cause(gpu_time((0, 100 * S), windows, marks)) == {
        "startup": 10 + 10,  # 80-90: no record and nothing else known than that it had started
        "productive": 60,
        "data_wait": 10,
        "teardown": 10,
    }


def test_a_dead_gang_is_idle_until_it_is_started_again() -> None:
    spans = [RestartSpan(0, 50 * S, 51 * S), RestartSpan(53 * S, None, None)]
    marks = marks_of(spans, held_ns=0, stop_ns=None)
    windows = [Window(5 * S, 50 * S, {"productive": 45.0}), Window(56 * S, 60 * S, {"recomputed": 4.0})]
    assert by_cause(gpu_time((0, 60 * S), windows, marks)) == {
        "startup": 5 + 3,
        "productive": 45,
        "idle_hold": 3,
        "recomputed": 4,
    }


def test_a_hang_is_hang_detection_until_it_is_seen() -> None:
    marks = marks_of([RestartSpan(0, 20 * S, 45 * S, hung=True)], held_ns=0, stop_ns=50 * S)
    windows = [Window(0, 20 * S, {"productive": 20.0})]
    found = by_cause(gpu_time((0, 60 * S), windows, marks))
    assert found == {"productive": 20, "hang_detection": 25, "idle_hold": 5, "teardown": 10}


def test_midnight_cuts_an_entry() -> None:
    totals = gpu_time((DAY_NS - 5 * S, DAY_NS + 7 * S), [], [Mark(0, "startup")])
    assert totals == {(0, "startup"): 5 * S, (1, "startup"): 7 * S}


causes = st.dictionaries(
    st.sampled_from(["productive", "data_wait", "straggler", "recomputed"]),
    st.floats(0, 1e6, allow_nan=False),
    max_size=4,
)
instants = st.integers(0, 3 * DAY_NS)


@given(
    held=st.tuples(instants, instants).map(sorted),
    windows=st.lists(st.tuples(instants, instants, causes), max_size=20),
    marks=st.lists(st.tuples(instants, st.sampled_from(["startup", "idle_hold", "teardown"])), max_size=8),
)
def test_the_causes_sum_to_the_held_time_to_the_nanosecond(
    held: list[int], windows: list[tuple[int, int, dict[str, float]]], marks: list[tuple[int, str]]
) -> None:
    totals = gpu_time(
        (held[0], held[1]),
        [Window(a, b, c) for a, b, c in windows],
        sorted((Mark(at, cause) for at, cause in marks), key=lambda m: m.at_ns),
    )
    assert sum(totals.values()) == held[1] - held[0]
    assert all(length >= 0 for length in totals.values())
