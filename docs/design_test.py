"""Imports run one way, as docs/design.md says."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDERS = {
    "jax_attn": "functional ← search, modules ← models ← checkpoints",
    "parity_tests/your_port": "measure ← weights ← place ← cause ← training, generation",
    "train": "machine ← data ← runs ← translating ← training ← command_line",
}


@pytest.mark.parametrize("package", ORDERS)
def test_each_folder_imports_only_those_before_it(package):
    assert ORDERS[package] in " ".join((ROOT / "docs/design.md").read_text(encoding="utf-8").split())
    levels = [level.split(", ") for level in ORDERS[package].split(" ← ")]
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert folders == {name for level in levels for name in level}
    before = set()
    for level in levels:
        for folder in level:
            for path in (ROOT / package / folder).rglob("*.py"):
                if not path.name.endswith("_test.py"):
                    assert imported(path, package) & folders <= before | {folder}, path
        before.update(level)


def imported(path: Path, package: str) -> set[str]:
    """Return the names below a package that a file imports, at its beginning or within its functions."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [f"{node.module}.{x.name}" for node in nodes if isinstance(node, ast.ImportFrom) for x in node.names]
    prefix = package.replace("/", ".") + "."
    return {name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)}
