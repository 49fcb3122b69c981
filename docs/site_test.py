"""The site holds every public name, and the workflows that publish it fit the project. Sphinx is not needed."""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCS = Path(__file__).parent
ROOT = DOCS.parent

ENTRY = re.compile(r"^\.\. (currentmodule|auto\w+):: (\S+)\n((?:   .*\n)*)", re.MULTILINE)
IMPORT = re.compile(r"^from ((?:jax_attn|train|parity_tests)\S*) import (.+?)(?:  #.*)?$", re.MULTILINE)


def documented() -> dict[str, list[Any]]:
    """Return what the reference documents, by its last name: each thing that has this name."""
    things: dict[str, list[Any]] = {}
    for page in sorted((DOCS / "reference").glob("*.rst")):
        module = ""
        for directive, name, options in ENTRY.findall(page.read_text(encoding="utf-8") + "\n"):
            if directive == "currentmodule":
                module = name
            elif directive != "automodule":
                things.setdefault(name.rpartition(".")[2], []).append(find(name, module))
            elif ":members:" not in options:
                module = name
            elif exists(name):
                found = importlib.import_module(name)
                for each in set(found.__all__) - set(re.findall(r"\w+", options.partition(":exclude-members:")[2])):
                    things.setdefault(each, []).append(getattr(found, each))
    return things


def exists(module: str) -> bool:
    """Return whether a module is here, of a package that may not be."""
    scope = module.rpartition(".")[0]
    return (not scope or exists(scope)) and importlib.util.find_spec(module) is not None


def find(name: str, module: str) -> Any:
    """Return what a directive names: a full name, or one of the current module."""
    for path in (name, f"{module}.{name}"):
        scope, _, last = path.rpartition(".")
        if scope and exists(scope) and hasattr(importlib.import_module(scope), last):
            return getattr(importlib.import_module(scope), last)
    raise AssertionError(f"docs/reference documents {name}, which does not exist")


@pytest.fixture(scope="module")
def things() -> dict[str, list[Any]]:
    return documented()


@pytest.mark.parametrize(
    "package", ["jax_attn", "jax_attn.optim", "parity_tests", "torch_ref", "book.jax", "book.torch"]
)
def test_every_public_name_is_in_the_reference(package, things):
    if not exists(package):
        pytest.skip(f"{package} is not here")
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [name for name, x in vars(module).items() if is_own(x, package, name)])
    missing = [name for name in names if not any(getattr(module, name) is thing for thing in things.get(name, []))]
    assert not missing, f"docs/reference lacks these names of {package}: {missing}"


def is_own(thing: Any, package: str, name: str) -> bool:
    return getattr(thing, "__module__", None) == package and not name.startswith("_")


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_what_a_page_imports_is_in_the_reference(page, things):
    for module, names in IMPORT.findall(page.read_text(encoding="utf-8")):
        missing = [name for name in names.split(", ") if name not in things]
        assert not missing, f"{page.name} imports names of {module} that docs/reference lacks: {missing}"


def test_every_page_is_in_a_table_of_contents():
    listed = " ".join(
        re.findall(r"^```{toctree}\n(.*?)^```", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    )
    pages = [page for page in DOCS.rglob("*") if page.suffix in (".md", ".rst") and page.name != "README.md"]
    names = {str(page.relative_to(DOCS).with_suffix("")) for page in pages}
    assert names - {"index"} <= set(re.findall(r"[\w/]+", listed))


@pytest.mark.parametrize("name", ["ci", "site"])
def test_workflows_are_whole(name):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    assert set(workflow) == {"name", True, "permissions", "jobs"} | ({"concurrency"} if name == "site" else set())
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    assert job["timeout-minutes"] <= 60
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1"))
    runs = [step["run"] for step in job["steps"] if "run" in step]
    if name == "ci":
        assert runs == [".ci/run"]
        assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    else:
        build = runs[-2].split(" -m ")[1]
        assert build.startswith("sphinx -W ")
        assert "docs build/site" in build
        assert (ROOT / ".ci" / "run").read_text().count("-m sphinx") == 1
