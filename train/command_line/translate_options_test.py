from dataclasses import fields

import pytest

from jax_attn.search_options import SearchOptions
from train.command_line.train_options import parse as parse_training
from train.command_line.translate_options import parse


@pytest.mark.parametrize("option", [field.name for field in fields(SearchOptions) if field.name != "num_samples"])
def test_every_option_of_a_search_is_one_of_training_and_of_translating(option):
    value = {"length_norm": "gnmt", "stop": "first", "force_end": True, "renormalize": True}.get(option, 1)
    name, words = option.replace("_", "-"), [] if value is True else [str(value)]
    options = parse(["run", f"--{name}", *words, "--sample"], None)
    config = parse_training([f"--search.{name}", *words, "--search.sample"]).config
    given = options.search | options.sampling
    assert set(given) == {option, "sample"}
    assert given[option] == getattr(config.search, option) == value


def test_an_option_that_is_not_given_is_left_to_the_run():
    assert (parse(["run"], None).search, parse(["run"], None).sampling) == ({}, {})
    assert parse(["run", "--beam", "3"], None).search == {"beam_size": 3}
