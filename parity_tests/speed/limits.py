"""The share of the machine's ceiling that a workload reaches.

The ceilings are measured in the same run, in JAX and in PyTorch, each the better of the two:

    gemm        float32 products of 1024 × 1024 matrices, floating point operations a second
    small gemm  the product of [64, 512] and [512, 2048], that of a recurrent step
    tanh        tanh of numbers that are in the cache, calls a second
    copy        bytes read and written a second, of arrays far larger than the cache

A workload says how many of each one unit needs at least; taken one after the other they make its limit in seconds, and
the share is the limit over the time measured. It counts nothing else (no softmax, no gates, no optimiser unless it is
in the bytes), so 100 % cannot be reached where those are; and where the tanh are avoided by arithmetic, it can be
passed.
"""

from collections.abc import Mapping

CEILINGS = {"gemm": "ceiling_gemm", "small gemm": "ceiling_small_gemm", "tanh": "ceiling_tanh", "copy": "ceiling_copy"}
"""Each ceiling's workload, whose unit is one operation of it."""


def limit_seconds(needs: Mapping[str, float], rates: Mapping[str, float]) -> float | None:
    """The least time of a unit at these rates (operations a second); None if one of them was not measured."""
    if not needs or any(name not in rates for name in needs):
        return None
    return sum(amount / rates[name] for name, amount in needs.items())
