"""Where JAX's contestants run."""

import jax

from train.devices import share_cores
from train.xla_options import set_xla_options


def on(device: str) -> None:
    """Make `device` ("cpu" or "cuda") the one that JAX uses, with products in float32 as PyTorch's."""
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    else:
        jax.config.update("jax_default_matmul_precision", "float32")


def for_training(device: str, num_hiddens: int) -> None:
    """What the program does before JAX starts, when it is about to train."""
    for_translating(device)
    share_cores(num_hiddens)


def for_translating(device: str) -> None:
    """What the program does before JAX starts, whatever it is about to do."""
    on(device)
    set_xla_options()
