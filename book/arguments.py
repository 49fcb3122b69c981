"""The book's arguments: their names in errors, the forms of the editions, integers, and checks of shapes."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
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


def as_floating(convert: Callable[[Any], Any], **arrays: Any) -> list[Any]:
    """Return the arrays with integers converted, and a note: toy examples count with `arange`."""
    names = [name for name, x in arrays.items() if "int" in str(getattr(x, "dtype", ""))]
    if names:
        warnings.warn(f"{', '.join(names)}: integers are taken as float32", stacklevel=3)
    return [convert(x) if name in names else x for name, x in arrays.items()]


def check_shape(a: Any, shape: Sequence[int]) -> None:
    """Raise AssertionError unless an array has the shape."""
    assert tuple(a.shape) == tuple(shape), f"tensor's shape {tuple(a.shape)} != expected shape {tuple(shape)}"


def check_len(a: Any, n: int) -> None:
    """Raise AssertionError unless a list has n elements."""
    assert len(a) == n, f"list's length {len(a)} != expected length {n}"


def add_to_class(Class: type) -> Callable[[Callable[..., Any]], None]:
    """Make a function a method of a class that exists: `@d2l.add_to_class(MultiHeadAttention)`."""
    return lambda method: setattr(Class, method.__name__, method)


MLP_FORMS = ("units / dropout", "ipt_dim units dropout", "key_size query_size units dropout")
"""The arguments of `MLPAttention` in MXNet, in the PyTorch port of 2020, and later."""


def read_mlp_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `MLPAttention` as those of `AdditiveAttention`."""
    given = read_arguments("MLPAttention", MLP_FORMS, args, kwargs)
    if "ipt_dim" in given:
        given["key_size"] = given["query_size"] = given.pop("ipt_dim")
    return {"num_hiddens": given.pop("units"), **given}
