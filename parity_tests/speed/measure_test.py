import numpy as np
import pytest

from parity_tests.speed.measure import (
    MOST_CALLS,
    DisagreementError,
    Entry,
    Measured,
    Spread,
    calls_for,
    measure,
    require_agreement,
    take_turns,
)
from parity_tests.speed.records import Agreement, Ratio
from parity_tests.speed.workloads import find_workload

EXPECTED = {"output": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)}


def test_the_spread_is_the_distance_between_the_quartiles():
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (spread.median, spread.iqr) == (3.0, 2.0)
    assert spread.relative == pytest.approx(2 / 3)
    assert Spread.of([2.0]) == Spread(2.0, 0.0)


@pytest.mark.parametrize(("seconds", "calls"), [(10.0, 1), (0.35, 1), (0.035, 10), (0.0, MOST_CALLS)])
def test_short_calls_are_repeated(seconds, calls):
    assert calls_for(seconds) == calls


def test_implementations_take_turns_and_each_begins_once():
    order: list[str] = []

    def make_run(name, seconds):
        def run(times):
            order.append(name)
            return [seconds] * times

        return run

    taken = take_turns({name: make_run(name, i + 1.0) for i, name in enumerate("abc")}, rounds=3)
    assert taken == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [3.0] * 3}
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_the_first_of_many_short_calls_does_not_count():
    taken = []

    def run(times):
        taken.append(times)
        return [0.1 if times > 1 else 0.15] * times

    assert take_turns({"a": run}, rounds=2) == {"a": [0.1, 0.1]}
    assert taken == [1, 1, 2, 1, 2]


def measured(**seconds):
    entries = {name: Entry(times, peak_bytes=len(name)) for name, times in seconds.items()}
    return Measured(find_workload("w1_train"), entries)


def test_a_ratio_is_computed_in_each_round():
    """The machine is twice as slow in the second round: the quotient of the means would not be 2."""
    result = measured(reference=(2.0, 4.0, 2.0), ours=(1.0, 2.0, 1.0))
    assert result.ratio(Ratio("r", "w1_train", ("reference",))) == Spread(2.0, 0.0)
    assert result.ratio(Ratio("r", "w1_train", ("reference",), memory=True)) == Spread(9 / 4)


def test_the_fastest_of_several_counts_among_those_that_ran():
    ratio = Ratio("r", "w1_train", ("tuned", "compiled"))
    times = {"tuned": (9.0, 9.0, 0.1), "compiled": (3.0, 3.0, 3.0), "ours": (1.0, 1.0, 1.0)}
    assert measured(**times).ratio(ratio).median == 3.0
    del times["compiled"]
    assert measured(**times).ratio(ratio).median == 9.0
    del times["tuned"]
    assert measured(**times).ratio(ratio) is None


def test_the_error_is_that_of_a_tensor():
    found = {"output": EXPECTED["output"] + np.float32(4e-6)}
    assert require_agreement("w", found, EXPECTED, Agreement(1e-5)) == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"output": EXPECTED["output"] + np.float32(1e-3)}, "the error of output is 0.00025"),
        ({"output": EXPECTED["output"] * np.nan}, "the error of output is nan"),
        ({"output": EXPECTED["output"][:1]}, r"output is \[1, 2\], expected \[2, 2\]"),
        ({"other": EXPECTED["output"]}, "the outputs are .'other'."),
    ],
)
def test_a_difference_is_an_error(found, words):
    with pytest.raises(DisagreementError, match=words):
        require_agreement("w", found, EXPECTED, Agreement(1e-5))


def test_where_ids_may_differ_their_scores_may_too():
    expected = {"scores": np.ones(40, np.float32), "ids": np.zeros((40, 3), np.int64)}
    found = {name: x.copy() for name, x in expected.items()}
    found["ids"][7, 1], found["scores"][7] = 5, 9.0
    assert require_agreement("w", found, expected, Agreement(1e-5, ids=0.03)) == 0
    with pytest.raises(DisagreementError, match="differs in 1 of 40 rows"):
        require_agreement("w", found, expected, Agreement(1e-5))
    found["scores"][8] = 1.1
    with pytest.raises(DisagreementError, match=r"the error of scores is 0\.1"):
        require_agreement("w", found, expected, Agreement(1e-5, ids=0.03))


@pytest.mark.slow
def test_a_workload_is_measured_in_processes_of_its_own():
    reports = []
    result = measure(find_workload("masked_softmax"), "cpu", None, reports.append)
    assert set(result.entries) == {"ours", "reference", "tuned", "naive jnp"}
    assert set(result.left_out) == {"compiled"}
    assert all(len(entry.seconds) == 11 for entry in result.entries.values())
    assert "masked_softmax: round 11 of 11" in reports
    assert all(entry.peak_bytes > 7 << 20 for entry in result.entries.values())
