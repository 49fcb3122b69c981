"""Plant every mistake of the table in PyTorch's own programs, and hold the wrong program against the right one.

The wrong program stands in JAX's place: a function of PyTorch's weights that calls PyTorch on the host. So each row of
the table is examined without a port that somebody wrote for it, and so are the rows that look alike.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from parity_tests.your_port.cause.mistakes import mistakes_in
from parity_tests.your_port.cause.planting import CANNOT_BE_MADE, Hypothesis, NotHereError, Planted, planted
from parity_tests.your_port.measure.arrays import flatten, plain, to_numpy
from parity_tests.zoo.port import Bug, Port, Result

SIZES = (2, 4, 8)
"""Of axes, for the rows about scales."""
RNG = np.random.default_rng(3)


class Program(torch.nn.Module):
    """A function of layers and an input."""

    def __init__(self, compute: Callable[[Any, Any], Any], **layers: torch.nn.Module) -> None:
        super().__init__()
        self.compute, self.layers = compute, torch.nn.ModuleDict(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self.layers, x)


def attend(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """Attend to the last three positions, with rotated queries and keys and a soft cap."""
    angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
    q, k = (rotate(F.rms_norm(layers[name](x), (4,), eps=1e-3), angles.cos(), angles.sin()) for name in "qk")
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    scores = 5 * torch.tanh(q @ k.mT / 5)
    seen = (distance >= 0) & (distance < 3) & torch.ones_like(scores[0]).bool().tril(1)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ x.clamp(-1, 1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def pool(layers: Any, x: torch.Tensor) -> torch.Tensor:
    y = F.avg_pool2d(layers["dilated"](x), 3, 2, 1) + F.max_pool2d(layers["reflected"](x), 3, 2, 1)
    y = torch.relu(layers["norm"](F.interpolate(y, (10, 8), mode="bilinear")))
    return layers["norm"](F.interpolate(y, (4, 3), mode="bicubic")).flip(-1).amax(-1)


def mix(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """Weigh two of four experts, by a softmax before and by one after the choice; add a KL divergence."""
    gates = layers["gates"](x)
    before, after = gates.softmax(-1).topk(2)[0], gates.topk(2)[0].softmax(-1)
    weights = before / before.sum(-1, keepdim=True) * after
    return weights * F.kl_div(gates.log_softmax(-1), x[..., :4].softmax(-1), reduction="sum") + gates[:, -1:, :2].abs()


def scan(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """Run two state spaces of three for each channel, of which only one has a zero-order hold."""
    step, rate = F.softplus(layers["step"](x))[..., None], -torch.arange(1, 4, dtype=x.dtype)
    decay, state = torch.exp(step * rate), torch.zeros(len(x), x.shape[2], 3, dtype=x.dtype)
    given, held = step * layers["b"](x)[:, :, None], (decay - 1) / rate
    for t in range(x.shape[1]):
        state = decay[:, t] * state + (given[:, t] + held[:, t]) * x[:, t, :, None]
    normed = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + 1e-3)
    return layers["norm"](torch.relu(normed))


def program(name: str, compute: Any, shape: tuple[int, ...], **layers: Any) -> Port:
    """Make a program of PyTorch, to which there is no port, of functions that make its layers."""

    def build() -> Program:
        return Program(compute, **{key: make() for key, make in layers.items()})

    return Port(name, build, lambda bug: None, (RNG.normal(size=shape),), ())


LINEAR, CONVOLUTION = torch.nn.Linear, partial(torch.nn.Conv2d, 3, 4, 3)
PROGRAMS = (
    program("attention", attend, (2, 5, 6), q=partial(LINEAR, 6, 4), k=partial(LINEAR, 6, 4)),
    program(
        *("pictures", pool, (2, 3, 9, 8)),
        dilated=partial(CONVOLUTION, padding=2, dilation=2),
        reflected=partial(CONVOLUTION, padding=1, padding_mode="reflect"),
        norm=partial(torch.nn.GroupNorm, 2, 4),
    ),
    program("mixture", mix, (2, 5, 6), gates=partial(LINEAR, 6, 4)),
    program(
        *("state space", scan, (2, 4, 6)),
        step=partial(LINEAR, 6, 6),
        b=partial(LINEAR, 6, 3),
        norm=partial(torch.nn.LayerNorm, 3, eps=1e-3),
    ),
)
"""What the ports of the zoo have not."""


def plant_all(ports: Sequence[Port]) -> Iterator[Result]:
    """Plant each mistake of functions in the first port in which it changes anything."""
    called = {port.name: {site[1] for site in _sites(port)} for port in ports}
    for mistake in itertools.chain.from_iterable(mistakes_in(set().union(*called.values()), SIZES)):
        bug = Bug(mistake.words, None, re.escape(mistake.words.partition("{")[0]), "#")
        for port in (port for port in ports if called[port.name] & mistake.wrong.keys()):
            try:
                wrong = in_place_of_jax(port, planted(mistake))
            except CANNOT_BE_MADE:
                continue
            options = {name: option for name, option in port.options.items() if name == "torch_call"}
            result = Result(replace(port, jax={bug.name: wrong}.__getitem__, options=options), bug).run()
            if result.caught or result.error:
                yield result
                break


def _sites(port: Port) -> Any:
    torch.manual_seed(0)
    module, mode = port.torch().eval().double(), Planted([""])
    with torch.no_grad(), mode.following(module):
        _right(port)(module, [_tensor(x) for x in port.inputs])
    return mode.sites


def _right(port: Port) -> Callable[[Any, Any], Any]:
    call = port.options.get("torch_call", lambda module, *inputs: module(*inputs))
    return lambda module, inputs: call(module, *inputs)


def _tensor(x: Any) -> torch.Tensor:
    tensor = torch.tensor(np.asarray(x))
    return tensor.double() if tensor.is_floating_point() else tensor


def in_place_of_jax(port: Port, hypothesis: Hypothesis) -> Callable[..., Any]:
    """Make a JAX function (weights by PyTorch's names, *inputs) that runs PyTorch with a mistake on the host."""
    wrong, like = hypothesis.wrong(_right(port), [""]), [_tensor(x) for x in port.inputs]

    def run(weights: Any, inputs: Any) -> tuple[dict[str, torch.Tensor], Any, dict[Any, torch.Tensor]]:
        """Return the results by name, how to put them together, and what has a gradient by its name or place."""
        module = port.torch().eval().double()
        module.load_state_dict(module.state_dict() | {name: torch.tensor(np.asarray(x)) for name, x in weights.items()})
        given = [torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in inputs]
        results = wrong(module, [x.to(right.dtype) for x, right in zip(given, like, strict=True)])
        moved = {name: x for name, x in module.named_parameters() if name in weights}
        return *flatten(plain(results)), {**moved, **dict(enumerate(given))}

    drawn, rebuild, _ = run({}, port.inputs)
    if not all(bool(x.isfinite().all()) for x in drawn.values()):
        raise NotHereError  # everybody sees that
    shapes = [jax.ShapeDtypeStruct(tuple(x.shape), np.float64) for x in drawn.values()]

    def outputs(*given: Any) -> list[np.ndarray]:
        return [np.asarray(to_numpy(x), np.float64) for x in run(*given)[0].values()]

    def gradients(weights: Any, inputs: Any, directions: Any) -> Any:
        results, _, moved = run(weights, inputs)
        pairs = [(x, torch.tensor(np.asarray(d))) for x, d in zip(results.values(), directions, strict=True)]
        ends, into = zip(*[(x, d) for x, d in pairs if x.requires_grad], strict=True)
        gradients = torch.autograd.grad(ends, [*moved.values()], into, materialize_grads=True)
        found: dict[Any, Any] = {name: np.zeros(np.shape(x)) for name, x in weights.items()}  # of running statistics
        found |= zip(moved, map(to_numpy, gradients), strict=True)
        return {name: found[name] for name in weights}, [found[place] for place in range(len(inputs))]

    @jax.custom_vjp
    def function(weights: Any, inputs: Any) -> Any:
        return jax.pure_callback(outputs, shapes, weights, inputs)

    def backward(given: Any, directions: Any) -> Any:
        return jax.pure_callback(gradients, jax.tree.map(jax.typeof, given), *given, directions)

    function.defvjp(lambda *given: (function(*given), given), backward)

    def call(weights: Any, *inputs: Any) -> Any:
        """All numbers are floating on their way, so that JAX asks for the gradient of each."""
        results = function(dict(weights), [jnp.asarray(x, jnp.float64) for x in inputs])
        return rebuild(dict(zip(drawn, results, strict=True)))

    return call
