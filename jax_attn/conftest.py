"""The fixture `refuses`: wrong arguments raise, and the message names the argument, what it must be and what it is."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def refuses(own_checks: None) -> Callable[..., None]:
    """Check that `function(**arguments, **wrong)` raises TypeError or ValueError in the library's own words.

    The message must read like "`argument` must be ...; got ...". By default `argument` is the first name in `wrong`,
    and what it got is the dtype (of a TypeError), the shape (of a ValueError), or the value of what is no array. Arrays
    are traced, as under a jit, unless `traced` is False.
    """

    def check(
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        wrong: Mapping[str, Any],
        argument: str | None = None,
        got: str | None = None,
        traced: bool = True,
    ) -> None:
        given = {**arguments, **wrong}
        arrays = {name: value for name, value in given.items() if _holds_arrays(value)}
        settings = {name: value for name, value in given.items() if name not in arrays}

        def call(arrays: Any) -> Any:
            return function(**settings, **arrays)

        with pytest.raises((TypeError, ValueError)) as caught:
            jax.eval_shape(call, arrays) if traced else call(jax.tree.map(jnp.asarray, arrays))
        name, value = next(iter(wrong.items()))
        got = _described(value, caught.type) if got is None else got
        pattern = rf"\b(?:{argument or name})\b.* (?:must|needs) .*; got .*{re.escape(got)}"
        assert re.search(pattern, str(caught.value), re.DOTALL)

    return check


def _holds_arrays(value: Any) -> bool:
    return any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(value))


def _described(value: Any, error: type[BaseException]) -> str:
    if not _holds_arrays(value):
        return str(value)
    array = jax.tree.leaves(value)[0]
    return str(array.dtype) if error is TypeError else str(list(array.shape))
