"""The book's names of arguments: the library's errors are said with them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def book_names(**names: str) -> Iterator[None]:
    """Replace the library's names of arguments in an error by the book's: `book_names(scores="X")`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], str(error))
        if type(error) not in (TypeError, ValueError) or text == str(error):
            raise
        raise type(error)(text) from error


def read_arguments(name: str, forms: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class that had other ones in other editions, by name.

    Args:
        name: the class, for the error.
        forms: the arguments of each edition, as in `"num_hiddens dropout"`. Those after `/` may be left out.
        args, kwargs: the arguments of the call.

    Raises:
        TypeError: they fit no edition.
    """
    for form in forms:
        required, _, optional = (part.split() for part in form.partition("/"))
        given = dict(zip([*required, *optional], args, strict=False)) | kwargs
        is_complete = len(given) == len(args) + len(kwargs) and set(required) <= set(given)
        if is_complete and set(given) <= {*required, *optional}:
            return given
    usage = " or ".join(f"{name}({', '.join(form.replace('/', '').split())})" for form in forms)
    got = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
    raise TypeError(f"{name} takes {usage}; got {name}({got})")
