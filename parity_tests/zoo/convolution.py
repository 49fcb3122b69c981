"""Convolutions: a residual network with batch norm, an up-and-down network."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(2)
IMAGES = RNG.normal(size=(3, 3, 8, 8))
NHWC = {"layout": {"*": "NHWC"}}


# A stem and a block of a ResNet, in Linen, with a step of training


class TorchResnet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        conv = partial(torch.nn.Conv2d, bias=False)
        self.conv, self.bn = conv(3, 4, 3, 2, 1), torch.nn.BatchNorm2d(4)
        self.conv1, self.bn1 = conv(4, 6, 3, 2, 1), torch.nn.BatchNorm2d(6)
        self.conv2, self.bn2 = conv(6, 6, 3, 1, 1), torch.nn.BatchNorm2d(6)
        self.down, self.fc = conv(4, 6, 1, 2), torch.nn.Linear(6, 5)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn(self.conv(x)))
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(self.relu(y + self.down(x)).mean((2, 3)))


class LinenBatchNorm(nn.Module):
    """BatchNorm as PyTorch has it: the running variance is that of n − 1."""

    train: bool
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        size = (x.shape[-1],)
        scale, bias = self.param("scale", nn.initializers.ones, size), self.param("bias", nn.initializers.zeros, size)
        mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        var = self.variable("batch_stats", "var", jnp.ones, size)
        mu, sigma = mean.value, var.value
        if self.train:
            mu, sigma, n = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size / x.shape[-1]
            keep = {"PyTorch's momentum passed to Flax": 0.1, "momentum of Flax's default": 0.99}.get(self.bug, 0.9)
            correction = 1 if self.bug == "biased running variance" else n / (n - 1)
            mean.value = keep * mean.value + (1 - keep) * mu
            var.value = keep * var.value + (1 - keep) * sigma * correction
            if self.bug == "no gradient through the statistics":
                mu, sigma = jax.lax.stop_gradient((mu, sigma))
        return (x - mu) * jax.lax.rsqrt(sigma + 1e-5) * scale + bias


class LinenResnet(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        conv, norm = partial(nn.Conv, use_bias=False), partial(LinenBatchNorm, train, self.bug)
        stem: Any = "SAME" if self.bug == "SAME in the stem" else 1
        block: Any = "SAME" if self.bug == "SAME at stride 2" else 1
        x = nn.relu(norm(name="bn")(conv(4, (3, 3), 2, padding=stem, name="conv")(x)))
        y = nn.relu(norm(name="bn1")(conv(6, (3, 3), 2, padding=block, name="conv1")(x)))
        y = norm(name="bn2")(conv(6, (3, 3), padding=1, name="conv2")(y))
        y = nn.relu(y + conv(6, (1, 1), 2, name="down")(x))
        return nn.Dense(5, name="fc")(y.mean((1, 2)))


STEP = "@*running_* after a step"
RESNET = Port(
    "ResNet",
    TorchResnet,
    LinenResnet,
    (IMAGES,),
    (
        Bug("SAME in the stem", "conv", "SAME", "Flax #2993"),
        Bug("SAME at stride 2", "conv1", "SAME", "Flax #963"),
        Bug("PyTorch's momentum passed to Flax", STEP, "momentum", "transformers #19454"),
        Bug("momentum of Flax's default", STEP, "momentum", "scvi-tools #2309"),
        Bug("biased running variance", "@*running_var after a step", "n − 1|biased", "PyTorch #19916"),
        Bug("no gradient through the statistics", "@gradient of *", "gradient", "Equinox #659"),
    ),
    {**NHWC, "buffers": True},
)


# Down and up, with group norm, in NNX


class TorchUnet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.gn = torch.nn.Conv2d(3, 6, 4, 2, 1), torch.nn.GroupNorm(3, 6)
        self.depthwise, self.up = torch.nn.Conv2d(6, 6, 3, 1, 1, groups=6), torch.nn.ConvTranspose2d(6, 4, 4, 2, (1, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.leaky_relu(self.gn(self.down(x)), 0.2)
        y = self.up(torch.nn.functional.silu(self.depthwise(y)))
        return torch.cat((x, y[..., : x.shape[-1]]), 1)


class NnxUnet(nnx.Module):
    def __init__(self, bug: str) -> None:
        rngs, self.bug = nnx.Rngs(0), bug
        self.down = nnx.Conv(3, 6, (4, 4), 2, padding=1, rngs=rngs)
        self.gn = nnx.GroupNorm(6, 3, epsilon=1e-5, rngs=rngs)
        self.depthwise = nnx.Conv(6, 6, (3, 3), feature_group_count=6, rngs=rngs)
        turned = bug != "transposed kernel not flipped"
        padding = ((2, 2), (3, 3))
        self.up = nnx.ConvTranspose(6, 4, (4, 4), 2, padding=padding, transpose_kernel=turned, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y = nnx.leaky_relu(self.gn(self.down(x)), 0.2)
        y, n = self.up(nnx.silu(self.depthwise(y))), x.shape[2]
        return jnp.concatenate([x, y[:, :, -n:] if self.bug == "cut at the front" else y[:, :, :n]], -1)


NOT_FLIPPED = {"layout": {"up.kernel": (2, 3, 0, 1), "*": "NHWC"}}
UNET = Port(
    "down and up",
    TorchUnet,
    NnxUnet,
    (IMAGES,),
    (
        Bug("transposed kernel not flipped", "up", "flipped", "Flax #3137, JAX #11252", NOT_FLIPPED),
        Bug("cut at the front", PROGRAM, "cut|front|shift|slice", "Flax #4188"),
    ),
    NHWC,
)

PORTS = (RESNET, UNET)
