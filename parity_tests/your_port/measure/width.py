"""The switch between float64 and float32, after which no program has tables of the other width.

A port may use arrays of NumPy, such as a table of positions. JAX keeps what it makes of such an array as long as any
program holds it, and gives it to programs of the other width, too (0.10 and 0.12 do, 0.7 does not): these raise, or
compute in float64 with a table that was rounded to float32. So where a port uses such arrays, all programs are dropped
at each switch. That is not done for every port, since what is dropped has to be compiled again, which takes seconds.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.experimental
import numpy as np

from parity_tests.your_port.measure.op_by_op import trace

_x64: Any = (jax if hasattr(jax, "enable_x64") else jax.experimental).enable_x64  # before JAX 0.8


class _Width:
    """What the programs that JAX keeps were made for."""

    is_wide: bool | None = None
    has_tables = False
    """Whether some of them use arrays of NumPy that outlive them."""


@contextmanager
def enable_x64(wide: bool) -> Iterator[None]:
    """Compute in float64 where no dtype is given, or in float32."""
    if _Width.has_tables and wide != _Width.is_wide:
        _drop_programs()
    _Width.is_wide = wide
    with _x64(wide):
        yield


def _drop_programs() -> None:
    """Drop all programs that JAX keeps, and with them what it made of NumPy's arrays."""
    jax.clear_caches()
    gc.collect()


@contextmanager
def own_tables(has_tables: bool = False) -> Iterator[None]:
    """Compare programs whose tables neither come from the caller's programs nor stay for them.

    Args:
        has_tables: take it for granted, where the programs cannot be traced beforehand.
    """
    callers = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    _Width.has_tables, _Width.is_wide = has_tables, callers
    try:
        yield
    finally:
        with enable_x64(callers):
            pass


def look_for_tables(function: Callable[..., Any], *arguments: Any) -> None:
    """Find out whether a port uses arrays of NumPy that outlive its programs.

    It is asked in the width in which the caller may have run the port. In the other one a table may raise, and what JAX
    was tracing then is never dropped.
    """
    if _Width.has_tables:
        return

    def tables() -> list[np.ndarray]:
        return trace(lambda *given: function(*given), *arguments)[0].tables  # a new function is traced anew

    try:
        again = tables() if (first := tables()) else []
    except Exception:  # which the next one who runs it reports
        return
    _Width.has_tables = any(x is y for x in first for y in again)  # and not made anew by each trace
    del first, again
    if _Width.has_tables:
        _drop_programs()
