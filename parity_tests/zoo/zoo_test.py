"""The score of the zoo must not fall."""

import pytest

from parity_tests.zoo.score import ZOO, choose, run, run_all


@pytest.mark.parametrize(
    ("port", "bug"),
    [
        ("norm by hand", ""),
        ("norm by hand", "a bias missing"),
        ("norm by hand", "another epsilon"),
        ("sines as positions", "cosine before sine"),
        ("MultiheadAttention", "mask ignored"),
    ],
)
def test_a_right_port_agrees_and_a_mistake_is_caught_located_and_explained(port: str, bug: str) -> None:
    ((chosen, planted),) = [pair for pair in choose(name=f"{port}: {bug}") if bug or pair[1] is None]
    result = run(chosen, planted)
    assert result.caught == bool(bug), result
    if planted is not None:
        assert result.located or planted.where is None, result
        assert result.explained, result


def test_names_are_distinct_and_the_zoo_is_large() -> None:
    assert len({(port.kind, port.name) for port in ZOO}) == len(ZOO) >= 20
    assert all(len({bug.name for bug in port.bugs}) == len(port.bugs) for port in ZOO)
    assert sum(len(port.bugs) for port in ZOO) >= 100


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
