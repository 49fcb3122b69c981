"""Convolutions: a residual network with batch norm, an up-and-down network, causal convolutions, LeNet."""

import math
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity_tests.your_port.place.taps import tap
from parity_tests.zoo.parts import dense
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
        if self.bug == "statistics not loaded":
            mu, sigma = jnp.zeros_like(mean.value), jnp.ones_like(var.value)
        else:
            mu, sigma = mean.value, var.value
        if self.train or self.bug == "the batch's statistics in evaluation":
            mu, sigma, n = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size / x.shape[-1]
        if self.train:
            keep = {"PyTorch's momentum passed to Flax": 0.1, "momentum of Flax's default": 0.99}.get(self.bug, 0.9)
            correction = 1 if self.bug == "biased running variance" else n / (n - 1)
            mean.value = keep * mean.value + (1 - keep) * mu
            var.value = keep * var.value + (1 - keep) * sigma * correction
            if self.bug == "no gradient through the statistics":
                mu, sigma = jax.lax.stop_gradient((mu, sigma))
        eps = {"epsilon of Keras": 1e-3}.get(self.bug, 1e-5)
        return (x - mu) * jax.lax.rsqrt(sigma + eps) * scale + bias


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
        if self.bug == "relu before the sum":
            return nn.relu(y) + x
        return y + x if self.bug == "no relu after the sum" else nn.relu(y + x)


class LinenResnet(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        padding: Any = "SAME" if self.bug in ("SAME at stride 2", "SAME in the stem") else 1
        x = nn.Conv(4, (3, 3), (2, 2), padding=padding, use_bias=False, name="conv")(x)
        x = LinenBatchNorm(train, self.bug, name="bn")(x)
        x = LinenBlock(4, 1, train, self.bug, name="layer1")(nn.relu(x))
        x = LinenBlock(6, 2, train, self.bug, name="layer2")(x)
        return nn.Dense(5, name="fc")(x.max((1, 2)) if self.bug == "maximum for the mean" else x.mean((1, 2)))


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
        Bug("statistics not loaded", "*bn*", "not loaded|statistics"),
        Bug("the batch's statistics in evaluation", "*bn*", "batch's statistics"),
        Bug("epsilon of Keras", "*bn*", "epsilon is 0.001"),
        Bug("PyTorch's momentum passed to Flax", STEP, "momentum", "transformers #19454"),
        Bug("momentum of Flax's default", STEP, "momentum", "scvi-tools #2309"),
        Bug("biased running variance", "@*running_var after a step", "n − 1|biased", "PyTorch #19916"),
        Bug("no gradient through the statistics", "@gradient of *", "gradient", "Equinox #659"),
        Bug("relu before the sum", "layer?", "relu"),
        Bug("no relu after the sum", "layer?", "relu"),
        Bug("maximum for the mean", PROGRAM, "mean|max"),
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
        groups = 6 if bug == "one group a channel" else 3
        self.gn = nnx.GroupNorm(6, groups, epsilon=1e-6 if bug == "Flax's epsilon" else 1e-5, rngs=nnx.Rngs(0))
        self.depthwise, self.pointwise = make(6, 6, (3, 3), feature_group_count=6), make(6, 5, (1, 1))
        turned = bug != "kernel of the transposed convolution not flipped"
        self.up = nnx.ConvTranspose(5, 4, (4, 4), 2, padding="SAME", transpose_kernel=turned, rngs=nnx.Rngs(0))
        self.bug = bug

    def __call__(self, x: Any) -> Any:
        slope = 0.01 if self.bug == "JAX's slope" else 0.2
        y = nnx.leaky_relu(self.gn(self.down(x)), slope)
        y = self.pointwise(self.depthwise(y))
        y = self.up(nnx.relu(y) if self.bug == "relu for silu" else nnx.silu(y))
        return jnp.concatenate([y, x] if self.bug == "skip connection last" else [x, y], -1)


UNET = Port(
    "down and up",
    "NNX",
    TorchUnet,
    NnxUnet,
    (IMAGES,),
    (
        Bug("Flax's epsilon", "gn", "epsilon is 1e-06"),
        Bug("one group a channel", "gn", "group"),
        Bug("JAX's slope", PROGRAM, "slope 0.01"),
        Bug("relu for silu", PROGRAM, "silu is ReLU"),
        Bug(
            "kernel of the transposed convolution not flipped",
            "up",
            "flipped",
            "Flax #3137, JAX #11252",
            {"layout": {"up.kernel": (2, 3, 0, 1), "*": "NHWC"}},
        ),
        Bug("skip connection last", PROGRAM, "order"),
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
        dilation = 1 if bug == "dilation forgotten" else 2
        self.conv1 = make(3, 8, 3, padding=2 * dilation, dilation=dilation)
        self.conv2, self.skip = make(4, 4, 3, groups=2), make(3, 4, 1, use_bias=bug != "no bias in the skip")
        self.fc, self.bug = eqx.nn.Linear(4, 2, key=key), bug

    def __call__(self, x: Any) -> Any:
        y, n = self.conv1(x), x.shape[-1]
        y = y[..., -n:] if self.bug == "cut at the front" else y[..., :n]
        value, gate = jnp.split(y, 2)
        value, gate = (gate, value) if self.bug == "gate before the value" else (value, gate)
        y = value * jax.nn.sigmoid(gate)
        y = self.conv2(jnp.pad(y, ((0, 0), (1, 1) if self.bug == "padding on both sides" else (2, 0)))) + self.skip(x)
        return self.fc(y.mean(-1) if self.bug == "mean for the maximum" else y.max(-1))


WAVE = Port(
    "causal convolutions",
    "Equinox",
    TorchWave,
    EqxWave,
    (SOUND,),
    (
        Bug("dilation forgotten", "conv1", "dilation"),
        Bug("cut at the front", PROGRAM, "cut|front|shift|slice", "Flax #4188"),
        Bug("gate before the value", PROGRAM, "gate|order|exchanged|halves"),
        Bug("padding on both sides", PROGRAM, "padding|shift"),
        Bug("mean for the maximum", PROGRAM, "mean|max"),
        Bug("no bias in the skip", "skip", "skip.bias.*missing"),
    ),
    {"jax_call": lambda module, x: jax.vmap(module)(x)},
)


# LeNet, as a function with taps


class TorchLenet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 5, 3)
        self.fc1, self.fc2 = torch.nn.Linear(20, 7), torch.nn.Linear(7, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x)).flatten(1)
        return torch.log_softmax(self.fc2(torch.tanh(self.fc1(x))), -1)


def lenet(weights: Any, x: Any, bug: str) -> Any:
    def conv(name: str, x: Any, padding: str) -> Any:
        x, kernel = tap(f"input of {name}", x), weights[f"{name}.weight"]
        kernel = kernel.swapaxes(2, 3) if bug == "height and width of the kernels exchanged" else kernel
        kernel = kernel[:, :, ::-1, ::-1] if bug == "kernels flipped, as a true convolution" else kernel
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), padding)
        return tap(name, y + weights[f"{name}.bias"][:, None, None])

    x = jax.nn.relu(conv("conv1", x, "VALID" if bug == "no padding" else "SAME"))
    reduce, start = (jax.lax.add, 0.0) if bug == "mean for the maximum" else (jax.lax.max, -math.inf)
    x = jax.lax.reduce_window(x, np.asarray(start, x.dtype), reduce, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(conv("conv2", x / 4 if bug == "mean for the maximum" else x, "VALID"))
    x = x.transpose(0, 2, 3, 1) if bug == "flattened with the channels last" else x
    x = x.transpose(0, 1, 3, 2) if bug == "flattened with width before height" else x
    x = x.reshape(x.shape[0], -1)
    logits = dense(weights, "fc2", jnp.tanh(dense(weights, "fc1", x)), turned=bug == "square matrix not transposed")
    axis = 0 if bug == "softmax over the batch" else -1
    return logits if bug == "no log_softmax" else jax.nn.log_softmax(logits, axis)


LENET = Port(
    "LeNet",
    "function",
    TorchLenet,
    lambda bug: partial(lenet, bug=bug),
    (IMAGES,),
    (
        Bug("flattened with the channels last", "@input of fc1", "channels (come )?last"),
        Bug("flattened with width before height", "@input of fc1", "flatten|order|width"),
        Bug("height and width of the kernels exchanged", "@conv1", "height and width"),
        Bug("kernels flipped, as a true convolution", "@conv1", "flipped"),
        Bug("mean for the maximum", "@input of conv2", "mean"),
        Bug("square matrix not transposed", "@fc2", "transposed"),
        Bug("softmax over the batch", "@result", "softmax goes over"),
        Bug("no log_softmax", "@result", "softmax is missing"),
    ),
)

PORTS = (RESNET, UNET, WAVE, LENET)
