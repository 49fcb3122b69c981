"""What the packages ask for at import is what their extras install."""

import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.mark.parametrize(("package", "extra"), [("train", "train"), ("parity_tests", "torch")])
def test_the_imports_that_a_package_asks_for_are_those_of_its_extra(package, extra):
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    required = [each for each in extras[extra] if each != "jax-attn[plots]"] + extras["plots"]
    distributions = {requirement.split(">=")[0].lower() for requirement in required}
    of_import = packages_distributions()
    asked = {name: {found.lower() for found in of_import[name]} for name in import_module(package).EXTRA}
    assert [name for name, found in asked.items() if not found & distributions] == []
    assert distributions - set().union(*asked.values()) == set()
