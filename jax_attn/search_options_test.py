"""The record of the searches' options is what functions and programs go by."""

import subprocess
import sys
from dataclasses import fields
from inspect import signature
from typing import get_type_hints

import pytest
from typing_extensions import Doc

from jax_attn import beam_search, greedy_search, sample_search
from jax_attn.search.inputs import require_options
from jax_attn.search_options import SearchOptions

FUNCTIONS = (greedy_search, beam_search, sample_search)


def test_every_option_has_a_meaning_and_the_functions_have_its_default():
    hints = get_type_hints(SearchOptions, include_extras=True)
    for option in fields(SearchOptions):
        assert any(isinstance(part, Doc) for part in hints[option.name].__metadata__), option.name
        takers = [function for function in FUNCTIONS if option.name in signature(function).parameters]
        assert takers, option.name
        for function in takers:
            assert signature(function).parameters[option.name].default == option.default


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_gets_the_options_that_it_takes(function):
    options = SearchOptions(min_len=3).of(function)
    assert options["min_len"] == 3
    assert ("beam_size" in options) == (function is beam_search)
    assert ("top_p" in options) == (function is sample_search)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"beam_size": None}, TypeError, "beam_size must"),
        ({"beam_size": 0}, ValueError, r"beam_size must be in \[1, 10000\]; got 0"),
        ({"top_p": float("nan")}, ValueError, r"top_p must be in \[1e-09, 1\]; got nan"),
        ({"length_norm": None}, ValueError, "length_norm must be one of .*; got None"),
    ],
)
def test_an_option_out_of_its_range_is_an_error_that_says_the_range(options, error, message):
    with pytest.raises(error, match=message):
        require_options(**options)
    require_options(top_k=None, no_repeat_ngram=None)


def test_the_record_is_read_without_jax_and_the_names_of_the_library_are_there_when_they_are_asked_for():
    program = """
import sys
import jax_attn.search_options
assert 'jax' not in sys.modules
assert 'beam_search' in dir(jax_attn) and 'jax' in sys.modules
import jax_attn.search.ensemble
assert callable(jax_attn.ensemble) and jax_attn.plots and set(jax_attn.__all__) <= set(dir(jax_attn))
try:
    jax_attn.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'jax_attn' has no attribute 'nothing'\n"
