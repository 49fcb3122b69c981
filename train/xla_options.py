"""What XLA's compiler for the CPU is told, in the place of its own habits."""

import os

OPTIONS = {"xla_cpu_use_multi_output_fusion": "true", "xla_cpu_disable_loop_unrolling": "true"}
"""Kernels that read the same arrays become one, and loops stay short.

A training step of a small model is more than a thousand kernels of a microsecond or two, which pay for each start and
for every line of code that is not in the cache yet. Large products are no loops of XLA's own and stay as they are.
"""


def set_xla_options() -> None:
    """Add them to `XLA_FLAGS`, which XLA reads when JAX starts; what the user says there of the same options wins."""
    ours = "--xla_backend_extra_options=" + ",".join(f"{name}={value}" for name, value in OPTIONS.items())
    theirs = os.environ.get("XLA_FLAGS", "")
    if ours not in theirs:
        os.environ["XLA_FLAGS"] = f"{ours} {theirs}".strip()
