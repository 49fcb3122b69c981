"""The properties on a few cases each, always the same ones. (`__main__` draws new ones.)"""

from dataclasses import replace

import pytest

from parity_tests.this_library.properties.__main__ import Options, main
from parity_tests.this_library.properties.properties import PROPERTIES, Property, check_property

# Another dtype is another program to compile; softmaxes compile in no time.
QUICK = [
    pytest.param(
        replace(chosen, dtypes=chosen.dtypes if "float16" in chosen.dtypes else chosen.dtypes[:1]),
        subject,
        id=f"{chosen.name}: {subject}",
    )
    for chosen in PROPERTIES
    for subject in chosen.subjects
    if subject not in chosen.slow
]


@pytest.mark.parametrize(("chosen", "subject"), QUICK)
def test_holds(chosen: Property, subject: str) -> None:
    check_property(chosen, subject, cases=4)


@pytest.mark.slow
def test_holds_on_a_hundred_thousand_cases() -> None:
    assert main(Options()) >= 100_000
