"""The sums of `tanh_sums` on a GPU, in one kernel each: a product of matrices with another inner operation.

    r[i, j] = Σ_n term(n),  with parts that come from rows[i, n], from columns[n, j] or are the same in every term

As in a product of matrices, a program owns a tile of r, keeps it in registers while it walks over n, and writes it
once. A step adds two terms: it reads the tile's rows and columns of both, which lie contiguous in memory (rows are
transposed for that), and does the arithmetic of `tanh_sums`, with one division for both.

What limits it is the arithmetic. As XLA compiles it for an H200 (132 SMs, 1.98 GHz), two terms of the score take a
thread 24 instructions, of which an SM issues 128 in a clock; one of them is a reciprocal, of which its special-function
unit starts 16. So two terms need 0.19 clocks of an SM to issue and 0.06 of the unit, which a tanh for each would keep
busy for 0.25. At B = 8, Q = K = 512, H = 128 the score can take no less than 96 µs, and the three sums of its gradient
(28, 28 and 24 instructions) 0.32 ms. What XLA makes of `tanh_sums` there takes as many instructions, and besides reads
and writes the scores for every 16 terms, 8 times (28 µs where they do not stay in the cache), in as many rounds of
launches: that is all there is to save. All of this is read off the compiled code, not measured.

The kernel was run interpreted, and compiled for CUDA by XLA, but NOT YET RUN ON A GPU, so nothing chooses it by itself.
It is written in Pallas for Triton, which JAX deprecates from 0.11 on (compiling it then gives a DeprecationWarning) and
means to remove.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from jax_attn.functional.additive import Term

TILE = 32
"""Rows, and columns, of a program's tile."""

WARPS = 2
"""Of a program: in float32 a thread then holds 16 sums in at most 80 registers, and an SM has room for 12 programs.
Tiles of 64 would be too few for 132 SMs in the gradient of the example above, and save 2 % of the instructions."""

Add = Callable[[Term, Term], Array]
Parts = dict[str, Array]


def sum_terms(add: Add, rows: Parts, columns: Parts, **same: Array) -> Array:
    """r[i, j] = Σ_n term n, like `tanh_sums._sum_terms`: compiled for CUDA, and interpreted on anything else.

    Every device that holds a part of the arrays computes all of it.

    Raises:
        NotImplementedError: when differentiated, which is to ask for a second derivative of `sum_of_tanh`.
    """
    total: Array = _sum_terms(add, rows, columns, same)
    return total


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sum_terms(add: Add, rows: Parts, columns: Parts, same: Parts) -> Array:
    compiled, interpreted = (partial(_by_tiles, add, interpret=interpret) for interpret in (False, True))
    total: Array = jax.lax.platform_dependent(rows, columns, same, cuda=compiled, default=interpreted)
    return total


@_sum_terms.defjvp
def _refuse(add: Add, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError("additive scores have no second derivative with gpu_kernel=True; leave it out for that")


def _by_tiles(add: Add, rows: Parts, columns: Parts, same: Parts, *, interpret: bool) -> Array:
    """The call of the kernel, of parts `[*batch, I, N]`, `[*batch, N, J]` and `[*batch, I, J]`.

    What is the same in all examples may lack their axes, and what is the same in all rows have one.
    """
    *batch, num_rows, num_columns = jnp.broadcast_shapes(
        *((*row.shape[:-1], 1) for row in rows.values()),
        *((*column.shape[:-2], 1, column.shape[-1]) for column in columns.values()),
    )
    rows = {name: _even(jnp.swapaxes(_flat(row), 1, 2)[..., None]) for name, row in rows.items()}  # [B, N, I, 1]
    columns = {name: _even(_flat(column)[:, :, None]) for name, column in columns.items()}  # [B, N, 1, J]
    same = {name: _flat(array) for name, array in same.items()}  # [B, I, J]
    shape, dtype = (math.prod(batch), num_rows, num_columns), rows["c"].dtype
    if 0 in shape or rows["c"].shape[1] == 0:
        return jnp.zeros((*batch, num_rows, num_columns), dtype)
    tile = pl.BlockSpec((None, TILE, TILE), lambda j, i, b: (b, i, j))
    call = pl.pallas_call(
        partial(_kernel, add, num_rows, num_columns),
        jax.ShapeDtypeStruct(shape, dtype),
        grid=(pl.cdiv(num_columns, TILE), pl.cdiv(num_rows, TILE), shape[0]),
        in_specs=[*jax.tree.map(_spec, [rows, columns]), dict.fromkeys(same, tile)],
        out_specs=tile,
        compiler_params=triton.CompilerParams(num_warps=WARPS),
        interpret=interpret,
        name=f"sum_of{add.__name__}",
    )
    total: Array = call(rows, columns, same).reshape(*batch, num_rows, num_columns)
    return total


def _flat(array: Array) -> Array:
    """All leading axes as one."""
    return array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])


def _even(part: Array) -> Array:
    """`[B, N, I, J]` with a term of zeros after an odd number of them, which adds nothing."""
    return jnp.pad(part, ((0, 0), (0, part.shape[1] % 2), (0, 0), (0, 0)))


def _spec(part: Array) -> pl.BlockSpec:
    """What a program sees of `[B, N, I, 1]` or `[B, N, 1, J]`: all terms of its example in its tile's rows or columns.

    An axis of size 1 is the same for all.
    """
    examples, num_terms, height, width = part.shape

    def index(j: Any, i: Any, b: Any) -> tuple[Any, ...]:
        return (b if examples > 1 else 0, 0, i if height > 1 else 0, j if width > 1 else 0)

    return pl.BlockSpec((None, num_terms, TILE if height > 1 else 1, TILE if width > 1 else 1), index)


def _kernel(add: Add, num_rows: int, num_columns: int, rows: Any, columns: Any, same: Any, result: Any) -> None:
    """One program: the sum of all terms in tile (i, j) of an example. Outside r nothing is read or written."""
    j, i = pl.program_id(0), pl.program_id(1)
    tile = jnp.arange(TILE, dtype=jnp.int32)
    in_rows, in_columns = (i * TILE + tile < num_rows)[:, None], (j * TILE + tile < num_columns)[None]
    inside = in_rows & in_columns
    of_all = {name: triton.load(ref, mask=inside, other=0) for name, ref in same.items()}

    def read(ref: Any, n: Any, mask: Array) -> Array:
        """Term n's part in these rows or columns, or the one number of all of them."""
        return triton.load(ref.at[n], mask=mask, other=0) if TILE in ref.shape[1:] else ref[n, 0, 0]

    def term(n: Any) -> Term:
        row = {name: read(ref, n, in_rows) for name, ref in rows.items()}
        column = {name: read(ref, n, in_columns) for name, ref in columns.items()}
        return Term(**row, **column, **of_all)

    def add_pair(pair: Any, total: Array) -> Array:
        return total + add(term(2 * pair), term(2 * pair + 1))

    # Zeros, which Triton cannot know and takes to be read. It then gives a thread four neighbours in a row of the tile,
    # as is best for reading, and not one number of each of 16 rows, whose parts would take a quarter more instructions.
    start = triton.load(result, mask=inside & (j < 0), other=0)
    triton.store(result, jax.lax.fori_loop(0, rows["c"].shape[0] // 2, add_pair, start), mask=inside)
