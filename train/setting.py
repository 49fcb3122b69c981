"""One setting of a run: its type, its range, its name, and what is wrong with it."""

from types import NoneType
from typing import Annotated, Any, get_args

from tyro.conf import arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from jax_attn.ranges import Range


class ConfigError(ValueError):
    """A setting that cannot be used; the message says which, what it must be, and what it is."""


def without_default(metavar: str, otherwise: str = "") -> Any:
    """Show an option that is not set by default, with its value where a preset or a file sets it.

    Args:
        otherwise: the default to show where it is not set; by default the description says what happens then.
    """

    def hint(default: str) -> str:
        shown = otherwise if default in ("None", "") else default
        return f"(default: {shown})" if shown else ""

    return arg(metavar=metavar, help_behavior_hint=hint)


NUMBERS = ConstructorRegistry()
"""Makes tyro say, of a number on the command line, what it must be."""


@NUMBERS.primitive_rule
def _read_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kinds = get_args(info.type) or (info.type,)
    kind = next((kind for kind in (int, float) if kind in kinds), None)
    if kind is None or not {kind, NoneType}.issuperset(kinds):
        return None
    must, shown = ("a whole number", "INT") if kind is int else ("a number", "FLOAT")
    has_none = NoneType in kinds

    def read(texts: list[str]) -> Any:
        if has_none and texts == ["None"]:
            return None
        try:
            return kind(texts[0])
        except ValueError:
            raise ValueError(f"it must be {must}{', or None to leave it unset' * has_none}; got {texts[0]!r}") from None

    def fits(value: Any) -> bool:
        return isinstance(value, (int, kind, NoneType) if has_none else (int, kind)) and not isinstance(value, bool)

    return PrimitiveConstructorSpec(1, shown, read, fits, lambda value: [str(value)])


N = without_default("N")

Seed = Annotated[int, Range(0, 2**32 - 1)]
Count = Annotated[int, Range(0, 10_000_000)]


def setting_name(section: str, name: str) -> str:
    """Return a setting's name as messages give it: training.batch-size."""
    return f"{section}.{name.replace('_', '-')}"
