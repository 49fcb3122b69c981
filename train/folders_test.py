"""The folders of the program stand in one order, in which the README's map and `docs/design.md` can be read."""

import ast
from pathlib import Path

import train

FOLDERS = ("machine", "data", "runs", "translating", "training", "command_line")


def test_each_folder_imports_only_those_before_it():
    root = Path(train.__file__).parent
    assert {path.parent.name for path in root.glob("*/__init__.py")} == set(FOLDERS)
    for number, folder in enumerate(FOLDERS):
        later = {f"train.{name}" for name in FOLDERS[number + 1 :]}
        for path in (root / folder).rglob("*.py"):
            if not path.name.endswith("_test.py"):
                found = {".".join(name.split(".")[:2]) for name in imports(path)}
                assert not found & later, path


def imports(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
