"""What the packages ask for at import is what their extras install."""

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.mark.parametrize(("package", "extra"), [("train", "train"), ("parity_tests", "torch")])
def test_the_imports_that_a_package_asks_for_are_those_of_its_extra(package, extra):
    if extra == "torch":
        pytest.importorskip("torch")
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    plots = extras["plots"] if "jax-attn[plots]" in extras[extra] else []
    required = [each for each in extras[extra] if each != "jax-attn[plots]"] + plots
    distributions = {requirement.split(">=")[0].lower() for requirement in required}
    of_import = packages_distributions()
    asked = {name: {found.lower() for found in of_import[name]} for name in import_module(package).EXTRA}
    assert [name for name, found in asked.items() if not found & distributions] == []
    assert distributions - set().union(*asked.values()) == set()


@pytest.mark.parametrize("package", ["torch_ref", "book.torch"])
def test_an_import_without_pytorch_says_what_to_install(package):
    code = f"import sys; sys.modules['torch'] = None; import {package}"  # an import of it raises ModuleNotFoundError
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: torch_ref needs torch; run: {sys.executable} -m pip install 'jax-attn[torch]' "
        "(in a clone: -e '.[torch]')"
    )
