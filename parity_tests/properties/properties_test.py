"""The properties on a few cases each, always the same ones; and, slowly, on a hundred thousand new ones."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from parity_tests.properties import trials
from parity_tests.properties.properties import PROPERTIES, Property

pytestmark = pytest.mark.usefixtures("quick_compilation")

EXAMPLES = 4


def _quick() -> Iterator[object]:
    for chosen in PROPERTIES:
        # Another dtype is another program to compile; softmaxes compile in no time.
        quick = replace(chosen, dtypes=chosen.dtypes if "float16" in chosen.dtypes else chosen.dtypes[:1])
        for subject in chosen.subjects if chosen.quick is None else chosen.quick:
            yield pytest.param(quick, subject, id=f"{chosen.name}: {subject}")


@pytest.mark.parametrize(("chosen", "subject"), list(_quick()))
def test_holds(chosen: Property, subject: str) -> None:
    assert trials.try_property(chosen, subject, EXAMPLES) == EXAMPLES


@pytest.mark.slow
def test_a_hundred_thousand_cases(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        rows = trials.try_all(trials.Options())
    assert not [row.failure for row in rows if row.failure]
    assert sum(row.cases for row in rows) >= 100_000
