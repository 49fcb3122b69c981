"""Plant every mistake of the table in PyTorch's own programs, and hold the wrong program against the right one.

The wrong program stands in JAX's place: a function of PyTorch's weights that calls PyTorch on the host. So each row of
the table is examined without a port that somebody wrote for it, and so are the rows that look alike.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.your_port.cause.mistakes import mistakes
from parity_tests.your_port.cause.planting import Hypothesis, NotHereError, Planted, planted
from parity_tests.your_port.measure.arrays import to_numpy
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.zoo.port import Bug, Port, Result

SIZES = (2, 4, 8)
"""Of axes, for the rows about scales."""


def plant_all(ports: Sequence[Port]) -> Iterator[Result]:
    """Plant each mistake of functions in the first port in which it changes anything."""
    called = {port.name: {site[1] for site in _sites(port)} for port in ports}
    for mistake in itertools.chain.from_iterable(mistakes(SIZES)):
        bug = Bug(mistake.words, None, re.escape(mistake.words.partition("{")[0]), "#")
        for port in (port for port in ports if called[port.name] & mistake.wrong.keys()):
            try:
                wrong = in_place_of_jax(port, planted(mistake))
            except (NotHereError, RuntimeError, ValueError, IndexError, TypeError):  # PyTorch does not run with it
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
