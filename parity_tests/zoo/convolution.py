"""Convolutions: a residual network with batch norm, an up-and-down network, causal convolutions."""

from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.zoo.port import PROGRAM, Bug, Port

RNG = np.random.default_rng(2)
IMAGES, SOUND = RNG.normal(size=(3, 3, 8, 8)), RNG.normal(size=(2, 3, 9))
NHWC = {"layout": {"*": "NHWC"}}


# A small ResNet, in Linen, with a step of training


class TorchBlock(torch.nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(width, out, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(out)
        self.conv2, self.bn2 = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(out)
        self.down = torch.nn.Conv2d(width, out, 1, stride, bias=False)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.down(x))


class TorchResnet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(3, 4, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(4)
        self.layer1, self.layer2 = TorchBlock(4, 4, 1), TorchBlock(4, 6, 2)
        self.fc = torch.nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer2(self.layer1(torch.relu(self.bn(self.conv(x)))))
        return self.fc(x.mean((2, 3)))


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


class LinenBlock(nn.Module):
    out: int
    stride: int
    train: bool
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        conv = partial(nn.Conv, self.out, use_bias=False)
        norm = partial(LinenBatchNorm, self.train, self.bug)
        strides = (self.stride, self.stride)
        y = conv((3, 3), strides, padding="SAME" if self.bug == "SAME at stride 2" else 1, name="conv1")(x)
        y = nn.relu(norm(name="bn1")(y))
        y = norm(name="bn2")(conv((3, 3), padding=1, name="conv2")(y))
        x = conv((1, 1), strides, name="down")(x)
        return nn.relu(y + x)


class LinenResnet(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        padding: Any = "SAME" if self.bug in ("SAME at stride 2", "SAME in the stem") else 1
        x = nn.Conv(4, (3, 3), (2, 2), padding=padding, use_bias=False, name="conv")(x)
        x = LinenBatchNorm(train, self.bug, name="bn")(x)
        x = LinenBlock(4, 1, train, self.bug, name="layer1")(nn.relu(x))
        x = LinenBlock(6, 2, train, self.bug, name="layer2")(x)
        return nn.Dense(5, name="fc")(x.mean((1, 2)))


STEP = "@*running_* after a step"
RESNET = Port(
    "ResNet",
    "Linen",
    TorchResnet,
    LinenResnet,
    (IMAGES,),
    (
        Bug("SAME in the stem", "conv", "SAME", "Flax #2993"),
        Bug("SAME at stride 2", "conv", "SAME", "Flax #963"),
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
        self.depthwise, self.pointwise = torch.nn.Conv2d(6, 6, 3, padding=1, groups=6), torch.nn.Conv2d(6, 5, 1)
        self.up = torch.nn.ConvTranspose2d(5, 4, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.leaky_relu(self.gn(self.down(x)), 0.2)
        y = self.up(torch.nn.functional.silu(self.pointwise(self.depthwise(y))))
        return torch.cat((x, y), 1)


class NnxUnet(nnx.Module):
    def __init__(self, bug: str) -> None:
        make = partial(nnx.Conv, rngs=nnx.Rngs(0))
        self.down = make(3, 6, (4, 4), 2, padding=1)
        self.gn = nnx.GroupNorm(6, 3, epsilon=1e-5, rngs=nnx.Rngs(0))
        self.depthwise, self.pointwise = make(6, 6, (3, 3), feature_group_count=6), make(6, 5, (1, 1))
        turned = bug != "kernel of the transposed convolution not flipped"
        self.up = nnx.ConvTranspose(5, 4, (4, 4), 2, padding="SAME", transpose_kernel=turned, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        y = nnx.leaky_relu(self.gn(self.down(x)), 0.2)
        return jnp.concatenate([x, self.up(nnx.silu(self.pointwise(self.depthwise(y))))], -1)


UNET = Port(
    "down and up",
    "NNX",
    TorchUnet,
    NnxUnet,
    (IMAGES,),
    (
        Bug(
            "kernel of the transposed convolution not flipped",
            "up",
            "flipped",
            "Flax #3137, JAX #11252",
            {"layout": {"up.kernel": (2, 3, 0, 1), "*": "NHWC"}},
        ),
    ),
    NHWC,
)


# Causal convolutions, in Equinox


class TorchWave(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv1d(3, 8, 3, padding=4, dilation=2), torch.nn.Conv1d(4, 4, 3, groups=2)
        self.skip, self.fc = torch.nn.Conv1d(3, 4, 1), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.glu(self.conv1(x)[..., : x.shape[-1]], 1)
        y = self.conv2(torch.nn.functional.pad(y, (2, 0))) + self.skip(x)
        return self.fc(y.amax(-1))


class EqxWave(eqx.Module):
    conv1: eqx.nn.Conv1d
    conv2: eqx.nn.Conv1d
    skip: eqx.nn.Conv1d
    fc: eqx.nn.Linear
    bug: str = eqx.field(static=True)

    def __init__(self, bug: str) -> None:
        make, key = partial(eqx.nn.Conv1d, key=jax.random.key(0)), jax.random.key(0)
        self.conv1 = make(3, 8, 3, padding=4, dilation=2)
        self.conv2, self.skip = make(4, 4, 3, groups=2), make(3, 4, 1)
        self.fc, self.bug = eqx.nn.Linear(4, 2, key=key), bug

    def __call__(self, x: Any) -> Any:
        y, n = self.conv1(x), x.shape[-1]
        y = y[..., -n:] if self.bug == "cut at the front" else y[..., :n]
        value, gate = jnp.split(y, 2)
        y = self.conv2(jnp.pad(value * jax.nn.sigmoid(gate), ((0, 0), (2, 0)))) + self.skip(x)
        return self.fc(y.max(-1))


WAVE = Port(
    "causal convolutions",
    "Equinox",
    TorchWave,
    EqxWave,
    (SOUND,),
    (Bug("cut at the front", PROGRAM, "cut|front|shift|slice", "Flax #4188"),),
    {"jax_call": lambda module, x: jax.vmap(module)(x)},
)

PORTS = (RESNET, UNET, WAVE)
