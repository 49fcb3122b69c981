"""A program computes with tables of its own width, whatever ran before it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parity_tests.your_port.measure.width import enable_x64, look_for_tables, own_tables

X = np.random.default_rng(0).normal(size=(3, 4))


def make_port(in_a_loop: bool = False) -> Callable[[Any], Any]:
    """Make a port that has two arrays of NumPy."""
    table, order = np.random.default_rng(1).normal(size=(3, 4)), np.array([2, 0, 1, 1])

    def port(x: Any) -> Any:
        return (x + jnp.asarray(table).astype(x.dtype))[order]

    return jax.jit(lambda x: jax.lax.map(port, jnp.stack([x, x]))[0]) if in_a_loop else jax.jit(port)


def expected(dtype: str) -> np.ndarray:
    with jax.disable_jit(), enable_x64(dtype == "float64"):
        return np.asarray(make_port()(X.astype(dtype)))


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_a_table_does_not_go_from_one_width_to_the_other(in_a_loop: bool) -> None:
    port = make_port(in_a_loop)
    np.testing.assert_array_equal(port(X), expected("float32"))  # as the caller may have run it before
    with own_tables():
        look_for_tables(port, X)
        for dtype in ("float64", "float32", "float64"):
            with enable_x64(dtype == "float64"):
                found = port(X.astype(dtype))
                assert found.dtype == dtype
                np.testing.assert_array_equal(found, expected(dtype))
    np.testing.assert_array_equal(port(X), expected("float32"))


def test_programs_that_are_not_traced_beforehand_may_have_tables() -> None:
    port = make_port()
    with own_tables(has_tables=True):
        for dtype in ("float32", "float64"):
            with enable_x64(dtype == "float64"):
                np.testing.assert_array_equal(port(X.astype(dtype)), expected(dtype))
    np.testing.assert_array_equal(port(X), expected("float32"))


@pytest.mark.parametrize("port", [lambda x: x * 2, lambda x: x + jnp.array([1.0, 2.0, 3.0, 4.0])])
def test_programs_are_kept_where_no_array_of_numpy_outlives_them(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "clear_caches", lambda: pytest.fail("dropped"))
    with own_tables():
        look_for_tables(port, X)
        for wide in (True, False):
            with enable_x64(wide):
                port(X)
