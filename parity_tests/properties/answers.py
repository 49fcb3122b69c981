"""The answers of either library: outputs, and the gradients of every floating input and parameter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import jax
import numpy as np
import optax
import torch

from parity_tests.case import Variant
from parity_tests.jax_side import Transform, run_jax
from parity_tests.numbers import given_numbers, rounded
from parity_tests.optimizers import JaxOptimizer, TorchOptimizer
from parity_tests.properties.subjects import SUBJECTS, Question
from parity_tests.torch_side import run_torch

Arrays = Mapping[str, np.ndarray]
Side = Literal["jax_attn", "torch_ref"]


@dataclass(frozen=True)
class Answer:
    """The results of one side, in float64 (which holds every number of the other dtypes)."""

    outputs: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    """Of the floating inputs."""
    weight_gradients: dict[str, np.ndarray]


def answer(side: Side, question: Question, transform: Transform = jax.jit, differentiate: bool = True) -> Answer:
    """Compute all outputs and gradients; `transform` is applied to JAX's program."""
    subject, dtype = question.subject, question.dtype
    title = {} if len(subject.results) > 1 else {"result": next(iter(subject.results))}  # a single result has no name
    directions = {name: rounded(question.directions[title.get(name, name)], dtype) for name in title or subject.results}
    weights, variant = question.weights, Variant(subject.name, question.inputs)
    numbers = given_numbers(subject.case, question.inputs, weights, lambda name, _: directions[name], dtype)
    if side == "torch_ref":
        run = run_torch(subject.case, variant, numbers, dtype)
    else:
        run = run_jax(subject.case, variant, numbers, dtype, directions if differentiate else {}, transform)
    outputs = {title.get(name, name): x.astype(np.float64) for name, x in run.outputs().items()}
    gradients = {name: x.astype(np.float64) for name, x in run.gradients().items()}
    return Answer(
        outputs,
        {name: x for name, x in gradients.items() if name not in weights},
        {name: x for name, x in gradients.items() if name in weights},
    )


def answer_for_example(side: Side, question: Question, example: int) -> Answer:
    """Answer for one example alone; outputs and gradients have no batch axis."""
    subject = question.subject
    if side not in subject.wants_batch:
        return answer(side, question.change("B", lambda name, array, axis: np.take(array, example, axis)))
    found = answer(side, question.change("B", lambda name, array, axis: np.take(array, [example], axis)))
    outputs, gradients = (
        subject.edit(arrays, "B", lambda name, array, axis: array.squeeze(axis))
        for arrays in (found.outputs, found.gradients)
    )
    return Answer(outputs, gradients, found.weight_gradients)


@cache
def over_examples(subject_name: str) -> Transform:
    """Map the program for one example over the batch by vmap; gradients of what examples share, for each example."""
    subject = SUBJECTS[subject_name]

    def axes(names: Any, shared: int | None) -> dict[str, int | None]:
        letters = {name: "" if name == "result" else subject.letters(name) for name in names}
        if "result" in letters:
            letters["result"] = next(iter(subject.results.values()))
        return {name: found.index("B") if "B" in found else shared for name, found in letters.items()}

    def transform(program: Callable[..., Any]) -> Callable[..., Any]:
        @jax.jit
        def run(weights: Any, moved: Any, fixed: Any, directions: Any) -> Any:
            return jax.vmap(
                program,
                in_axes=(None, axes(moved, None), axes(fixed, None), axes(directions, None)),
                out_axes=(axes(directions, 0), {**dict.fromkeys(weights, 0), **axes(moved, 0)}),
            )(weights, moved, fixed, directions)

        return run

    return transform


def descend(side: Side, weights: Arrays, gradients: Arrays) -> Arrays:
    """Return the weights after a first step of Adam."""
    if side == "torch_ref":
        return (
            TorchOptimizer(lambda parameters: torch.optim.Adam(parameters, 0.005), weights).step(gradients).parameters
        )
    return JaxOptimizer(_ADAM, weights).step(gradients).parameters


_ADAM = optax.adam(0.005)
