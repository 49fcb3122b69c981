"""Both sides refuse the same, in words of their own; and nothing public is left unasked."""

import pytest

from parity_tests.case import Refusal
from parity_tests.cases import public_names
from parity_tests.refusals import functional, models
from parity_tests.refusals.functional import FUNCTIONAL_REFUSALS, MODULE_REFUSALS, VALUE_REFUSALS
from parity_tests.refusals.models import MODEL_REFUSALS, MODEL_VALUE_REFUSALS, WITHOUT_REFUSAL


@pytest.fixture(autouse=True)
def _own_checks(own_checks: None) -> None:
    """A refusal has to be the library's own, as a user meets it."""


def _id(refusal: Refusal) -> str:
    return f"{refusal.name}: {refusal.why}"


@pytest.mark.parametrize("refusal", MODEL_REFUSALS, ids=_id)
def test_both_sides_refuse(refusal: Refusal) -> None:
    for ask in (models.ask_jax(refusal), models.ask_torch(refusal)):
        with pytest.raises((TypeError, ValueError)):
            ask()


@pytest.mark.parametrize("refusal", MODEL_VALUE_REFUSALS, ids=_id)
def test_both_sides_refuse_values_of_models(refusal: Refusal) -> None:
    for ask in (models.ask_jax(refusal, traced=False), models.ask_torch(refusal)):
        with pytest.raises(ValueError, match=r"must (be|lie) in .*; got"):
            ask()


@pytest.mark.parametrize("refusal", VALUE_REFUSALS, ids=_id)
def test_both_sides_refuse_values(refusal: Refusal) -> None:
    for ask in (functional.ask_jax(refusal, traced=False), functional.ask_torch(refusal)):
        with pytest.raises(ValueError, match=r"valid_lens must be in .*; got"):
            ask()


def test_every_public_name_refuses_something_or_has_a_reason_why_not() -> None:
    asked = {refusal.name for refusal in (*FUNCTIONAL_REFUSALS, *MODULE_REFUSALS, *MODEL_REFUSALS)}
    assert asked | WITHOUT_REFUSAL.keys() == public_names()
    assert not asked & WITHOUT_REFUSAL.keys()
    assert all(WITHOUT_REFUSAL.values())


def test_refusals_are_told_apart() -> None:
    everything = (*FUNCTIONAL_REFUSALS, *MODULE_REFUSALS, *VALUE_REFUSALS, *MODEL_REFUSALS, *MODEL_VALUE_REFUSALS)
    assert len({_id(refusal) for refusal in everything}) == len(everything)
