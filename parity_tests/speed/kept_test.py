import pytest

from parity_tests.speed.kept import compare_with_kept, keep
from parity_tests.speed.rounds import Spread
from parity_tests.speed.workload import Ratio

HIGH = Ratio("high", "w", ("seed",), small=True)
LOW = Ratio("low", "w", ("ours",), "without", lower_is_better=True, small=True)
MACHINE = {"cpu": "a", "cores": 2, "device": "cpu", "gpu": None}


def spread(median, iqr=0.0):
    return Spread(median, iqr, ())


@pytest.fixture
def kept(tmp_path):
    file = tmp_path / "kept.json"
    keep({"high": spread(10.0, 0.1), "low": spread(1.2, 0.01)}, MACHINE, file)
    return file


def fallen(kept, machine=MACHINE, **now):
    ratios = {ratio: now[ratio.name] for ratio in (HIGH, LOW) if ratio.name in now}
    comparisons, warning = compare_with_kept(ratios, machine, kept)
    return [comparison.ratio.name for comparison in comparisons if comparison.fell], warning


def test_nothing_fell_where_nothing_changed(kept):
    assert fallen(kept, high=spread(10.0), low=spread(1.2)) == ([], "")


def test_a_planted_regression_is_told(kept):
    assert fallen(kept, high=spread(8.5), low=spread(1.2)) == (["high"], "")


def test_of_an_overhead_more_is_worse(kept):
    assert fallen(kept, high=spread(20.0), low=spread(1.4)) == (["low"], "")
    assert fallen(kept, low=spread(0.6)) == ([], "")


def test_what_the_noise_explains_is_no_regression(kept):
    assert fallen(kept, high=spread(8.5, iqr=2.0)) == ([], "")
    assert fallen(kept, high=spread(7.5, iqr=2.0)) == (["high"], "")


def test_a_nan_has_fallen(kept):
    assert fallen(kept, high=spread(float("nan")))[0] == ["high"]


def test_another_machine_is_said_and_compared_all_the_same(kept):
    names, warning = fallen(kept, {**MACHINE, "cores": 64}, high=spread(5.0))
    assert names == ["high"]
    assert "a, 2 cores, no GPU; this is a, 64 cores" in warning


def test_nothing_kept_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="--keep"):
        compare_with_kept({}, MACHINE, tmp_path / "none.json")
