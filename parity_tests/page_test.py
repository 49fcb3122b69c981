"""The page holds what was measured, and nothing from elsewhere."""

import re
from html.parser import HTMLParser

import pytest

from parity_tests.page import Figure, as_page, power
from parity_tests.report import FaultRow, Row

AGREES = Row("LSTM", "float64", 8, 106, 5e-16, 2e-15, 0.0, 9.0, 0.002, ())
FAILED = Row("<b>GRU</b>", "float32", 2, 10, 0.1, 0.2, 1e-7, 1e6, 1e5, ("GRU | ragged | float32 | outputs: too far",))
CAUGHT, MISSED = (FaultRow("gates swapped", "JAX", "LSTM", caught) for caught in (True, False))


class Text(HTMLParser):
    """The words of a page, and the tags that fetch something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.fetching: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.fetching += [(tag, value) for name, value in attributes if name in ("src", "href")]


def words(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Text(page).words))


def test_what_agrees_is_said_to() -> None:
    text = words(as_page([AGREES], [CAUGHT], [Figure("the drift", "<svg id='curve'></svg>")]))
    assert "Everything agrees, and every planted fault was noticed." in text
    assert "1 of 1 planted faults caught" in text
    assert "5.0·10⁻¹⁶" in text
    assert "the drift" in text


def test_what_failed_is_counted_and_quoted() -> None:
    page = as_page([AGREES, FAILED], [CAUGHT, MISSED])
    text = words(page)
    assert "1 comparisons failed, and 1 planted faults went unnoticed" in text
    assert FAILED.failures[0] in text
    assert "<b>GRU</b>" in text  # as words, not as a tag


def test_nothing_is_fetched_from_elsewhere() -> None:
    page = as_page([AGREES], [])
    assert not Text(page).fetching
    assert "http" not in page


@pytest.mark.parametrize(("number", "text"), [(0.0, "0"), (1.44e-16, "1.4·10⁻¹⁶"), (12.0, "1.2·10¹")])
def test_powers_of_ten(number: float, text: str) -> None:
    assert power(number) == text
