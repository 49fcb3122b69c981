"""The harness knows neither library of this project, so that it could be a distribution of its own.

It shares one file, which imports nothing but the standard library: the faults of compilers.
"""

import ast
from pathlib import Path

import parity_tests.your_port

OWN = {"jax_attn", "torch_ref", "train", "book", "benchmarks"}


def test_the_harness_imports_neither_library_nor_its_users() -> None:
    folder = Path(parity_tests.your_port.__file__).parent
    files = [path for path in folder.rglob("*.py") if not path.name.endswith("_test.py")]
    assert len(files) > 10
    wrong = [f"{path.relative_to(folder)}: {name}" for path in files for name in _imports(path) if _is_outside(name)]
    assert wrong == []


def _is_outside(name: str) -> bool:
    package, _, rest = name.partition(".")
    if name == "jax_attn.compiler":
        return False
    return package in OWN or (package == "parity_tests" and not f"{rest}.".startswith("your_port."))


def _imports(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
