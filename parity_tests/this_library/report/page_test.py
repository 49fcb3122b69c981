"""The page holds what was measured, and nothing from elsewhere."""

import re
from html.parser import HTMLParser

import pytest

from parity_tests.this_library.report.page import as_page, power
from parity_tests.this_library.report.tables import FaultRow, Results, TrainingRow
from parity_tests.your_port.measure.tables import Row

AGREES = Row("LSTM", "float64", 8, 106, 5e-16, 2e-15, 0.0, 9.0, 0.002, ())
FAILED = Row("<b>GRU</b>", "float32", 2, 10, 0.1, 0.2, 1e-7, 1e6, 1e5, ("GRU | ragged | float32 | outputs: too far",))
CAUGHT, MISSED = (FaultRow("gates swapped", "JAX", "LSTM", caught) for caught in (True, False))
CURVES = {name: {"JAX": [1e-7, 2e-7], "PyTorch": [1e-7, 1e-7]} for name in ("parameters", "worst parameter", "loss")}
DRIFT = TrainingRow("a gru: drift", "float32", 2, 1.5e-7, 2e-7, "parameters; PyTorch's own 1e-7", False, CURVES)
APART = TrainingRow("a gru: free-running", "float64", 2, 1e-3, 1e-9, "parameters of w, step 2", True, None)


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
    page = as_page(Results([AGREES], [DRIFT], [CAUGHT]))
    text = words(page)
    assert "Everything agrees, and every planted fault was noticed." in text
    assert "1 of 1 planted faults caught" in text
    assert "5.0·10⁻¹⁶" in text
    assert "a gru: drift" in text
    assert page.count("<svg") == 1


def test_what_failed_is_counted_and_quoted() -> None:
    page = as_page(Results([AGREES, FAILED], [APART], [CAUGHT, MISSED]))
    text = words(page)
    assert "2 comparisons failed, and 1 planted faults went unnoticed" in text
    assert FAILED.failures[0] in text
    assert "<b>GRU</b>" in text  # as words, not as a tag


def test_nothing_is_fetched_from_elsewhere() -> None:
    page = as_page(Results([AGREES], [DRIFT], []))
    assert all(value is not None and value.startswith("#") for _, value in Text(page).fetching)


@pytest.mark.parametrize(("number", "text"), [(0.0, "0"), (1.44e-16, "1.4·10⁻¹⁶"), (12.0, "1.2·10¹")])
def test_powers_of_ten(number: float, text: str) -> None:
    assert power(number) == text
