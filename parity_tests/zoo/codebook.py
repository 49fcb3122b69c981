"""An autoencoder whose codes are rows of two codebooks, the second of which stands for what the first leaves over.

Only gradients know a mistake in it: what is detached has the same values as what is not.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.zoo.port import Bug, Port

X = np.random.default_rng(4).normal(size=(5, 6))
F = torch.nn.functional
stop = jax.lax.stop_gradient


class TorchQuantised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(6, 4), torch.nn.Linear(4, 6)
        self.first, self.second = torch.nn.Embedding(9, 4), torch.nn.Embedding(7, 4)

    def forward(self, x: torch.Tensor) -> Any:
        rest = z = self.encoder(x)
        quantised, loss = torch.zeros_like(z), torch.zeros((), dtype=z.dtype)
        for codebook in (self.first, self.second):
            near = codebook(torch.cdist(rest, codebook.weight).argmin(-1))
            loss = loss + F.mse_loss(near, rest.detach()) + 0.25 * F.mse_loss(rest, near.detach())
            quantised, rest = quantised + near, rest - near.detach()
        return self.decoder(z + (quantised - z).detach()), loss


def square(a: Any, b: Any) -> Any:
    return ((a - b) ** 2).mean()


class NnxQuantised(nnx.Module):
    def __init__(self, bug: str) -> None:
        rngs, self.bug = nnx.Rngs(0), bug
        self.encoder, self.decoder = nnx.Linear(6, 4, rngs=rngs), nnx.Linear(4, 6, rngs=rngs)
        self.first, self.second = nnx.Embed(9, 4, rngs=rngs), nnx.Embed(7, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        rest = z = self.encoder(x)
        quantised, loss = jnp.zeros_like(z), 0.0
        for codebook in (self.first, self.second):
            near = codebook(((rest[:, None] - codebook.embedding[None]) ** 2).sum(-1).argmin(-1))
            passed = rest + stop(near - rest)
            loss += self.loss(rest, passed if self.bug == "loss after the straight-through" else near)
            quantised = quantised + near
            rest = rest - (passed if self.bug == "what is left not detached" else stop(near))
        return self.decoder(quantised if self.bug == "no straight-through" else z + stop(quantised - z)), loss

    def loss(self, z: Any, near: Any) -> Any:
        if self.bug == "detached the other way round":
            return square(z, stop(near)) + 0.25 * square(near, stop(z))
        if self.bug == "nothing detached in the losses":
            return 1.25 * square(z, near)
        return square(near, stop(z)) + 0.25 * square(z, stop(near))


def bug(name: str, cause: str, issue: str) -> Bug:
    return Bug(name, "@gradient of *", cause, issue)


PORTS = (
    Port(
        "codebooks",
        TorchQuantised,
        NnxQuantised,
        (X,),
        (
            bug("no straight-through", "flows through detach", "EfficientFi #4"),
            bug("nothing detached in the losses", "flows through detach", "EfficientFi #4"),
            bug("detached the other way round", "in the other operand of mse_loss", "vqvae #20"),
            bug("loss after the straight-through", "mse_loss gets .* straight-through", "jax-vqvae-gpt #2"),
            bug("what is left not detached", "no gradient flows through sub", "encodec #25"),
        ),
    ),
)
