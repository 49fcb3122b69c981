"""Ports whose values are right and whose gradients are not: the verdict says where one flows or is stopped."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests import compare

pytestmark = pytest.mark.slow
F = torch.nn.functional
X = np.random.default_rng(0).normal(size=(5, 6))
stop = jax.lax.stop_gradient


class Quantised(torch.nn.Module):
    """As in a VQ-VAE: the nearest row of a codebook, with the gradient of what it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codebook, self.decoder = (
            torch.nn.Linear(6, 4),
            torch.nn.Embedding(9, 4),
            torch.nn.Linear(4, 6),
        )

    def forward(self, x: Any) -> Any:
        z = self.encoder(x)
        q = self.codebook(torch.cdist(z, self.codebook.weight).argmin(-1))
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return self.decoder(z + (q - z).detach()), loss


def square(a: Any, b: Any) -> Any:
    return ((a - b) ** 2).mean()


def straight(z: Any, q: Any) -> Any:
    return z + stop(q - z)


def losses(z: Any, q: Any) -> Any:
    return square(q, stop(z)) + 0.25 * square(z, stop(q))


FLOWS = "a gradient flows through detach, as without stop_gradient, in JAX"
OTHER = "the gradient is stopped in the other operand of mse_loss in JAX"


@pytest.mark.parametrize(
    ("loss", "passed", "cause", "at"),
    [
        (losses, straight, "", "agrees"),
        (lambda z, q: square(q, z) + 0.25 * square(z, stop(q)), straight, FLOWS, "z.detach() (ex"),
        (lambda z, q: square(q, stop(z)) + 0.25 * square(z, q), straight, FLOWS, "q.detach() (ex"),
        (lambda z, q: square(stop(q), z) + 0.25 * square(stop(z), q), straight, OTHER, "F.mse_loss(z, q.detach()) (ex"),
    ],
)
def test_a_codebook(loss: Callable[[Any, Any], Any], passed: Callable[[Any, Any], Any], cause: str, at: str) -> None:
    def port(w: Any, x: Any) -> Any:
        z, table = x @ w["encoder.weight"].T + w["encoder.bias"], w["codebook.weight"]
        q = table[((z[:, None] - table) ** 2).sum(-1).argmin(-1)]
        return passed(z, q) @ w["decoder.weight"].T + w["decoder.bias"], loss(z, q)

    text = str(compare(Quantised(), port, X))
    assert cause in text
    assert at in text


def with_mean(x: Any, fixed: bool) -> Any:
    """Put the distance from the mean beside x, with the mean as a constant or not."""
    with torch.set_grad_enabled(not fixed):
        mean = x.mean(0)
    return torch.cat([torch.tanh(x - mean), x], 1)


@pytest.mark.parametrize(
    ("fixed", "port", "cause"),
    [
        (False, lambda x: (x - stop(x.mean(0)), x), "no gradient flows through mean in JAX: stop_gradient"),
        (False, lambda x: (stop(x) - x.mean(0), x), "no gradient flows through the first operand of sub in JAX"),
        (False, lambda x: (x - x.mean(0), stop(x)), "no gradient flows through the second operand of cat in JAX"),
        (True, lambda x: (x - stop(x.mean(0)), stop(x)), "no gradient flows through the second operand of cat in JAX"),
        (
            True,
            lambda x: (x - x.mean(0), x),
            "a gradient flows through no_grad, as without stop_gradient, in JAX, at gradients_test.py:",
        ),
    ],
)
def test_a_mean(fixed: bool, port: Callable[[Any], tuple[Any, Any]], cause: str) -> None:
    def in_jax(x: Any) -> Any:
        distance, kept = port(x)
        return jnp.concatenate([jnp.tanh(distance), kept], 1)

    assert f"cause: {cause}" in str(compare(lambda x: with_mean(x, fixed), in_jax, X))
    assert torch.is_grad_enabled()
