import pytest

from parity_tests.speed.rounds import MOST_CALLS, Spread, calls_for, ratio_of, take_turns


def test_the_spread_is_the_distance_between_the_quartiles():
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert spread.median == 3.0
    assert spread.iqr == 2.0
    assert spread.relative == pytest.approx(2 / 3)


def test_a_single_value_has_no_spread():
    assert Spread.of([2.0]) == Spread(2.0, 0.0, (2.0,))


def test_a_ratio_is_that_of_the_rounds():
    """The machine is twice as slow in the second round: the quotient of the medians would not be 2."""
    assert ratio_of([[2.0, 4.0, 2.0]], [1.0, 2.0, 1.0]) == Spread(2.0, 0.0, (2.0, 2.0, 2.0))


def test_of_several_above_the_line_the_fastest_counts():
    assert ratio_of([[9.0, 9.0, 0.1], [3.0, 3.0, 3.0]], [1.0, 1.0, 1.0]).median == 3.0


@pytest.mark.parametrize(("seconds", "calls"), [(10.0, 1), (0.35, 1), (0.035, 10), (0.0, MOST_CALLS)])
def test_short_calls_are_repeated(seconds, calls):
    assert calls_for(seconds) == calls


def test_contestants_take_turns_and_each_begins_once():
    order: list[str] = []

    def contestant(name, seconds):
        def run(times):
            order.append(name)
            return [seconds] * times

        return run

    taken = take_turns({name: contestant(name, i + 1.0) for i, name in enumerate("abc")}, rounds=3)
    assert taken == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [3.0] * 3}
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_the_first_of_many_short_calls_does_not_count():
    taken = []

    def cold(times):
        taken.append(times)
        return [0.1 if times > 1 else 0.15] * times

    assert take_turns({"a": cold}, rounds=2) == {"a": [0.1, 0.1]}
    assert taken == [1, 1, 2, 1, 2]
