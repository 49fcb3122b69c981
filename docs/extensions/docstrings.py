"""Show docstrings and signatures as the source has them.

Docstrings are written for the terminal: an indented block that no section such as "Args:" begins is a table, a worked
example or code, and is shown as it stands. Signatures are read from the source, so that shapes stay visible:
`Float[Array, '*batch query key']`, and not what jaxtyping and type aliases become at run time.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

SPECIAL = re.compile(r"[*|]|(?<=\w)_(?!\w)|(?<=\b[A-Z])\.$")
"""Signs that stand for themselves in a docstring, and mean something in reStructuredText; `H.` would begin a list."""

OF_FLAX = {"parent", "name"}
"""Fields that every Linen module has, and nobody passes by hand."""


def plain_text(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText: put `::` before its blocks, and let `*`, `|` and `x_` mean themselves."""
    result: list[str] = []
    before, items, block = "", False, False
    for line, following in zip(lines, [*lines, ""][1:], strict=True):
        if line.strip() and not line.startswith(" "):
            items = line.startswith("- ") or (line.endswith(":") and following.startswith(" "))
            block = line.startswith("..")
        elif line.startswith(" ") and not before.strip() and not items and not block:
            result += ["::", ""]
            block = True
        result.append(line if block else escape(line))
        before = line
    lines[:] = result


def escape(line: str) -> str:
    """Escape what means something in reStructuredText, outside of code."""
    text, *rest = re.split("(`[^`]*`)", line)
    parts = [SPECIAL.sub(r"\\\g<0>", part) if i % 2 == 0 else part for i, part in enumerate([text, *rest])]
    return "".join(parts)


def source_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Return the signature as it is written, without `self` and what Flax adds."""
    try:
        if what == "class" and dataclasses.is_dataclass(thing):
            return _fields(thing), None
        function = inspect.unwrap(thing)
        if what not in ("function", "method") or not inspect.isfunction(function):
            return None
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError):
        return None
    assert isinstance(tree, ast.FunctionDef)
    if what == "method":
        tree.args.args = [argument for argument in tree.args.args if argument.arg not in ("self", "cls")]
    return f"({ast.unparse(tree.args)})", tree.returns and ast.unparse(tree.returns)


def _fields(cls: type) -> str:
    """Return the signature of a dataclass, the types of its fields as they are written."""
    types: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base) and not base.__module__.startswith("flax."):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            for item in tree.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    types[item.target.id] = ast.unparse(item.annotation)
    parts, keyword_only = [], False
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.name in OF_FLAX and parameter.name not in types:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts, keyword_only = [*parts, "*"], True
        default = parameter.default
        shown = "" if default is parameter.empty else f" = {_default(default)}"
        parts.append(f"{parameter.name}: {types.get(parameter.name, 'Any')}{shown}")
    return f"({', '.join(parts)})"


def _default(value: Any) -> str:
    return value.__name__ if isinstance(value, type) or inspect.isfunction(value) else repr(value)


def setup(app: Sphinx) -> dict[str, bool]:
    for field in PyObject.doc_field_types:
        if field.name == "parameter":
            field.label = "Arguments"  # a module has parameters too
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", source_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
