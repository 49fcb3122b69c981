"""The score of the zoo must not fall."""

import jax
import pytest

from parity_tests import compare
from parity_tests.zoo import ZOO
from parity_tests.zoo.libraries import PAIRS, Pair
from parity_tests.zoo.planted import PROGRAMS, plant_all
from parity_tests.zoo.port import Result

QUICK = ("Equinox: Linear",)


RUNS = {f"{port.name}: {bug.name if bug else ''}": (port, bug) for port in ZOO for bug in (None, *port.bugs)}


@pytest.mark.parametrize(
    "name",
    [
        "language model's head: ",
        "language model's head: the library's norm",
        pytest.param("GRU: gates z, r, n, as in Keras", marks=pytest.mark.slow),
    ],
)
def test_a_right_port_agrees_and_a_mistake_is_caught_located_and_explained(name: str) -> None:
    result = Result(*RUNS[name]).run()
    assert result.caught == (result.bug is not None), result
    if result.bug is not None:
        assert result.located is not False, result
        assert result.explained, result


def test_names_are_distinct_and_each_bug_is_one_that_people_reported() -> None:
    assert len({port.name for port in ZOO}) == len(ZOO) >= 10
    assert sum(len(port.bugs) for port in ZOO) >= 41
    assert all(len({bug.name for bug in port.bugs}) == len(port.bugs) for port in ZOO)
    assert all("#" in bug.issue for port in ZOO for bug in port.bugs)


@pytest.mark.parametrize(
    "pair", [pytest.param(x, marks=[] if x.name in QUICK else [pytest.mark.slow], id=x.name) for x in PAIRS]
)
def test_a_module_of_a_library_has_the_verdict_that_the_page_on_parity_says(pair: Pair) -> None:
    report = compare(pair.torch, pair.jax, pair.inputs, **pair.options)
    assert report.agrees == pair.agrees, report


@pytest.mark.slow
def test_every_mistake_of_the_table_is_caught_and_named_where_it_is_planted() -> None:
    found = []
    for each in plant_all((*ZOO, *PROGRAMS)):
        found.append(each)
        jax.clear_caches()
    assert len(found) >= 190
    missed = [str(x) for x in found if not x.explained]
    assert len(missed) <= 0.05 * len(found), missed


@pytest.mark.slow
def test_the_score_of_the_whole_zoo_does_not_fall() -> None:
    results = list[Result]()
    for port in ZOO:
        results += [Result(port, bug).run() for bug in (None, *port.bugs)]
        jax.clear_caches()
    bugs = [result for result in results if result.bug is not None]
    assert [str(result) for result in results if result.caught != (result.bug is not None)] == []
    assert [str(result) for result in bugs if result.explained is False] == []
    located = [result.located for result in bugs if result.located is not None]
    assert sum(located) >= 0.9 * len(located)
    assert sum(result.explained is True for result in bugs) >= 37
