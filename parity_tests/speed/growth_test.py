import sys

import pytest

from parity_tests.speed import __main__ as command
from parity_tests.speed import sitting
from parity_tests.speed.growth import GROWTH_WORKLOADS, MOST_SECONDS, SWEEPS, measure_growth, work
from parity_tests.speed.growth_plot import STYLES, draw_growth
from parity_tests.speed.measure import Entry, Measured
from parity_tests.speed.workloads import find_workload


def entries_of(workload, seconds):
    return Measured(workload, {c.name: Entry((seconds,), 0.1, 5 << 20, None, 0.0) for c in workload.contestants})


def test_every_point_is_a_workload_and_every_line_has_a_style():
    for sweep in SWEEPS:
        assert {line.name for line in sweep.lines} <= set(STYLES)
        for point in sweep.points:
            workload = find_workload(sweep.workload_name(point))
            assert workload.contestants
    assert len(GROWTH_WORKLOADS) == sum(len(sweep.points) for sweep in SWEEPS)


def test_what_needs_too_much_memory_is_not_tried():
    sweep = SWEEPS[0]
    names = [{c.name for c in GROWTH_WORKLOADS[sweep.workload_name(point)].contestants} for point in sweep.points]
    assert "seed" in names[0]
    assert "seed" not in names[-1]
    assert all("ours, blockwise" in of_point for of_point in names)


def test_work_counts_lengths_twice():
    assert work({"length": 4, "batch": 3, "hidden": 2}) == 96


def test_what_took_long_is_not_tried_where_it_takes_longer():
    tried = []

    def take(workload):
        tried.append({c.name for c in workload.contestants})
        seconds = 0.9 * MOST_SECONDS if len(tried) == 2 else 0.001
        result = entries_of(workload, seconds)
        result.entries["ours, blockwise"] = Entry((0.001,), 0.1, None, None, 0.0)
        return result

    measure_growth(SWEEPS[:1], take)
    assert len(tried) == len(SWEEPS[0].points)
    assert "compiled" in tried[1]
    assert tried[2] == tried[3] == tried[4] == {"ours, blockwise"}


def test_the_command_prints_and_draws(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sitting, "measure", lambda workload, *rest: entries_of(workload, 0.002))
    monkeypatch.setattr(sitting, "find_device", lambda: "cpu")
    picture = tmp_path / "growth.png"
    monkeypatch.setattr(sys, "argv", ["speed", "--growth", str(picture), "--only", "dot length", "vocabulary"])
    assert command.main() == 0
    printed = capsys.readouterr().out
    assert "dot by length (batch 1, hidden 32)" in printed
    assert "2 ms, 5 MB" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_sweep_is_an_error_that_lists_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["speed", "--growth", str(tmp_path / "g.png"), "--only", "height"])
    assert command.main() == 2
    assert "additive length" in capsys.readouterr().err


def test_the_picture_has_two_panels_for_each_sweep():
    results = [entries_of(GROWTH_WORKLOADS[SWEEPS[0].workload_name(point)], 0.1) for point in SWEEPS[0].points]
    figure = draw_growth(results)
    drawn = [axis for axis in figure.axes if axis.lines]
    assert len(drawn) == 2
    assert len(drawn[0].lines) == 4


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: f"{sweep.name} {sweep.quantity}")
def test_the_points_grow(sweep):
    values = [point[sweep.quantity] for point in sweep.points]
    assert values == sorted(values)
