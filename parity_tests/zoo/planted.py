"""Plant every mistake of the table in PyTorch's own programs, and hold the wrong program against the right one.

The wrong program stands in JAX's place: a function of PyTorch's weights that calls PyTorch on the host. So each row of
the table is examined without a port that somebody wrote for it, and so are the rows that look alike.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from parity_tests.your_port.cause.mistakes import mistakes
from parity_tests.your_port.cause.planting import Hypothesis, Mistake, NotHereError, Planted, planted
from parity_tests.your_port.compare import compare
from parity_tests.your_port.measure.arrays import to_numpy
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.report import Report
from parity_tests.zoo.port import Port

SIZES = (2, 4, 8)
"""Of axes, for the rows about scales."""


class Found(NamedTuple):
    """What the comparison says of a mistake of the table."""

    mistake: Mistake
    port: Port
    report: Report

    @property
    def is_named(self) -> bool:
        """Whether the report names the mistake, alone or as one of several that explain the same."""
        causes = () if self.report.divergence is None else self.report.divergence.causes
        words = self.mistake.words.partition("{")[0]
        return any(words in cause.words for cause in causes)

    def __str__(self) -> str:
        causes = () if self.report.divergence is None else self.report.divergence.causes
        said = "; ".join(cause.words for cause in causes[:3]) or "no cause"
        return f"{'named' if self.is_named else 'NOT named'}: {self.mistake.words}, in {self.port.name} [{said}]"


def plant_all(ports: Sequence[Port], every: int = 1) -> Iterator[Found]:
    """Plant each mistake of functions, or one in `every`, in the first port in which it changes anything."""
    called = {port.name: {site[1] for site in _sites(port)} for port in ports}
    for mistake in [mistake for kind in mistakes(SIZES) for mistake in kind][::every]:
        for port in (port for port in ports if called[port.name] & mistake.wrong.keys()):
            report = _report(port, mistake)
            if report is not None and not report.agrees:
                yield Found(mistake, port, report)
                break


def _report(port: Port, mistake: Mistake) -> Report | None:
    """Compare the right program with the wrong one; None if the mistake cannot be made there."""
    try:
        wrong = in_place_of_jax(port, planted(mistake))
    except (NotHereError, RuntimeError, ValueError, IndexError, TypeError):  # PyTorch does not run with it
        return None
    options = {"torch_call": port.options["torch_call"]} if "torch_call" in port.options else {}
    return compare(port.torch(), wrong, port.inputs, dtypes=("float64",), **options)


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
    wrong = hypothesis.wrong(_right(port), [""])

    def run(weights: Any, inputs: Any) -> tuple[Any, Any, Any]:
        module = port.torch().eval().double()
        module.load_state_dict(module.state_dict() | {name: torch.tensor(np.asarray(x)) for name, x in weights.items()})
        tensors = [_tensor(x) for x in inputs]
        moved = {name: x for name, x in module.named_parameters() if name in weights}
        moved |= {place: x.requires_grad_() for place, x in enumerate(tensors) if x.is_floating_point()}
        return *flatten(plain(wrong(module, tensors))), moved

    drawn, rebuild, _ = run({}, port.inputs)
    if not all(bool(x.isfinite().all()) for x in drawn.values()):
        raise NotHereError  # everybody sees that
    like = [jax.ShapeDtypeStruct(tuple(x.shape), np.float64) for x in drawn.values()]

    def outputs(weights: Any, inputs: Any) -> list[np.ndarray]:
        return [np.asarray(to_numpy(x), np.float64) for x in run(weights, inputs)[0].values()]

    def gradients(weights: Any, inputs: Any, directions: Any) -> Any:
        results, _, moved = run(weights, inputs)
        pairs = [(x, torch.tensor(np.asarray(d))) for x, d in zip(results.values(), directions, strict=True)]
        ends, into = zip(*[(x, d) for x, d in pairs if x.requires_grad], strict=True)
        found = torch.autograd.grad(ends, [*moved.values()], into, materialize_grads=True)
        by_name = dict(zip(moved, map(to_numpy, found), strict=True))
        return {name: by_name.get(name, np.zeros(np.shape(x))) for name, x in weights.items()}, [
            by_name[place] for place in range(len(inputs)) if place in by_name
        ]

    @jax.custom_vjp
    def function(weights: Any, inputs: Any) -> Any:
        return jax.pure_callback(outputs, like, weights, inputs)

    def is_moved(x: Any) -> bool:
        return bool(jax.numpy.issubdtype(x.dtype, jax.numpy.floating))

    def backward(given: Any, directions: Any) -> Any:
        weights, inputs = given
        floating = [x for x in inputs if is_moved(x)]
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (weights, floating))
        by_weight, by_input = jax.pure_callback(gradients, shapes, weights, inputs, directions)
        moved = iter(by_input)
        none = jax.dtypes.float0
        return by_weight, [
            next(moved) if jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else np.zeros(x.shape, none)
            for x in inputs
        ]

    function.defvjp(lambda weights, inputs: (function(weights, inputs), (weights, inputs)), backward)

    def call(weights: Any, *inputs: Any) -> Any:
        return rebuild(dict(zip(drawn, function(dict(weights), list(inputs)), strict=True)))

    return call
