"""The range of a number, written in the type of a record's field."""

from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints


class Range(NamedTuple):
    """The values that a number may have, both ends included."""

    lowest: float
    highest: float

    def error(self, name: str, value: Any) -> str | None:
        """Return what is wrong with a value; None if it is in the range. NaN never is."""
        if self.lowest <= value <= self.highest:
            return None
        return f"{name} must be in [{self.lowest}, {self.highest}]; got {value}"


def wrong_numbers(settings: Any, setting_name: Callable[[str], str] = str) -> list[str]:
    """List the fields of a record that are out of their `Range`; `setting_name` makes the name that the message has."""
    wrong = []
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        for limits in getattr(hint, "__metadata__", ()):
            if isinstance(limits, Range) and (value := getattr(settings, name)) is not None:
                wrong.append(limits.error(setting_name(name), value))
    return list(filter(None, wrong))
