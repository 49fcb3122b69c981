"""One setting of a run: its type, its range, its name, and what is wrong with it."""

from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from tyro.conf import arg

from jax_attn.search_options import Range


class ConfigError(ValueError):
    """A setting that cannot be used; the message says which, what it must be, and what it is."""


def without_default(metavar: str) -> Any:
    """Show an option whose default its description explains."""
    return arg(metavar=metavar, help_behavior_hint="")


N = without_default("N")

Seed = Annotated[int, Range(0, 2**32 - 1)]
Count = Annotated[int, Range(0, 10_000_000)]
Size = Annotated[int, Range(1, 65_536)]  # with larger ones, memory ends before an error could say why


def setting_name(section: str, name: str) -> str:
    """Return a setting's name as messages give it: training.batch-size."""
    return f"{section}.{name.replace('_', '-')}"


def wrong_numbers(settings: Any, option_name: Callable[[str], str]) -> list[str]:
    """List the fields that are out of their `Range`; `option_name` turns a field's name into that of the message."""
    wrong = []
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        for limits in getattr(hint, "__metadata__", ()):
            if isinstance(limits, Range) and (value := getattr(settings, name)) is not None:
                wrong.append(limits.error(option_name(name), value))
    return list(filter(None, wrong))
