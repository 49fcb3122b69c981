"""The score of the zoo must not fall."""

import jax
import pytest

from parity_tests.zoo.planted import plant_all
from parity_tests.zoo.score import ZOO, choose, run, run_all


@pytest.mark.parametrize(
    ("port", "bug"),
    [("norm by hand", ""), ("norm by hand", "the library's norm"), ("MultiheadAttention", "no scale")],
)
def test_a_right_port_agrees_and_a_mistake_is_caught_located_and_explained(port: str, bug: str) -> None:
    ((chosen, planted),) = [pair for pair in choose(name=f"{port}: {bug}") if bug or pair[1] is None]
    result = run(chosen, planted)
    assert result.caught == bool(bug), result
    if planted is not None:
        assert result.located or planted.where is None, result
        assert result.explained, result


def test_names_are_distinct_and_each_bug_is_one_that_people_reported() -> None:
    assert len({(port.kind, port.name) for port in ZOO}) == len(ZOO) >= 12
    assert all(len({bug.name for bug in port.bugs}) == len(port.bugs) for port in ZOO)
    assert all("#" in bug.issue for port in ZOO for bug in port.bugs)


def test_mistakes_of_the_table_are_named_where_they_are_planted() -> None:
    found = list(plant_all(ZOO, every=60))
    missed = [str(x) for x in found if not x.is_named]  # one may have another row's name
    assert len(missed) <= 1 < 4 <= len(found), missed


@pytest.mark.slow
def test_every_mistake_of_the_table_is_caught_and_named_where_it_is_planted() -> None:
    found = []
    for each in plant_all(ZOO):
        found.append(each)
        jax.clear_caches()
    assert len(found) >= 150
    missed = [str(x) for x in found if not x.is_named]
    assert len(missed) <= 0.05 * len(found), missed


@pytest.mark.slow
def test_the_score_of_the_whole_zoo_does_not_fall() -> None:
    results = list(run_all(choose()))
    right, wrong = [r for r in results if r.bug is None], [r for r in results if r.bug is not None]
    placed = [r for r in wrong if r.bug and r.bug.where is not None]
    assert [str(r) for r in right if r.caught] == []
    assert [str(r) for r in wrong if not r.caught] == []
    assert [str(r) for r in wrong if r.explained is False] == []
    assert sum(r.located for r in placed) >= 0.9 * len(placed)
    assert sum(r.explained is True for r in wrong) >= 0.9 * len(wrong)
