"""How each library answers a question: outputs, and the gradients of every floating input and parameter."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

import jax_attn
import torch_ref
from jax_attn.weights import from_torch, to_torch
from parity_tests.properties.subjects import SUBJECTS, Answer, Question, Subject

Arrays = Mapping[str, np.ndarray]


class Side(Protocol):
    """One library."""

    name: str

    def __call__(self, question: Question) -> Answer:
        """All outputs and gradients."""

    def descend(self, weights: Arrays, gradients: Arrays) -> dict[str, np.ndarray]:
        """Weights after a first step of Adam."""


@cache
def weight_shapes(subject_name: str) -> dict[str, tuple[int, ...]]:
    """Of the parameters, by PyTorch name."""
    build = SUBJECTS[subject_name].torch_module
    return {} if build is None else {name: tuple(x.shape) for name, x in build().state_dict().items()}


def of_example(side: Side, question: Question, example: int) -> Answer:
    """The answer for one example alone, its outputs and gradients without the batch axis."""
    subject = question.subject
    if side.name not in subject.wants_batch:
        return side(question.change("B", lambda name, array, axis: np.take(array, example, axis)))
    answer = side(question.change("B", lambda name, array, axis: np.take(array, [example], axis)))

    def squeezed(arrays: Arrays) -> dict[str, np.ndarray]:
        letters = {name: subject.letters_of(name) for name in arrays}
        return {name: x.squeeze(letters[name].index("B")) if "B" in letters[name] else x for name, x in arrays.items()}

    return Answer(squeezed(answer.outputs), squeezed(answer.gradients), answer.weight_gradients)


def _is_floating(array: np.ndarray) -> bool:
    return array.dtype == np.float64


def _wide(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array).astype(np.float64) for name, array in arrays.items()}


class JaxSide:
    name = "jax_attn"

    def __call__(self, question: Question) -> Answer:
        return self._answer(question, lambda subject, dtype: _jitted(subject.name, dtype))

    def without_jit(self, question: Question) -> Answer:
        """Operation by operation; the outputs alone."""
        parameters, moved, fixed, _ = self._arguments(question)
        with jax.enable_x64(question.dtype == "float64"):
            call = _call(question.subject, question.dtype)
            return Answer(_wide(call(parameters, _on_device(moved), _on_device(fixed))), {}, {})

    def vmapped(self, question: Question) -> Answer:
        """The program for one example, over the batch by vmap; gradients of what examples share, for each example."""
        return self._answer(question, lambda subject, dtype: _vmapped(subject.name, dtype), over_examples=True)

    def _answer(
        self, question: Question, program: Callable[[Subject, str], Any], over_examples: bool = False
    ) -> Answer:
        with jax.enable_x64(question.dtype == "float64"):
            found = program(question.subject, question.dtype)(*self._arguments(question))
        outputs, gradients, weight_gradients = jax.device_get(found)
        if weight_gradients and not over_examples:
            weight_gradients = to_torch(weight_gradients)
        elif weight_gradients:  # a kernel is transposed example by example
            count = len(jax.tree.leaves(weight_gradients)[0])
            examples = [to_torch(jax.tree.map(lambda x, i=i: x[i], weight_gradients)) for i in range(count)]
            weight_gradients = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
        return Answer(_wide(outputs), _wide(gradients), _wide(weight_gradients))

    def _arguments(self, question: Question) -> tuple[Any, Any, Any, Any]:
        dtype = jnp.dtype(question.dtype)
        moved = {name: x.astype(dtype) for name, x in question.inputs.items() if _is_floating(x)}
        fixed = {name: x for name, x in question.inputs.items() if not _is_floating(x)}
        directions = {name: x.astype(dtype) for name, x in question.directions.items()}
        parameters: Any = {}
        if question.weights:
            with jax.enable_x64(question.dtype == "float64"):
                template = _template(question.subject.name, question.dtype)
                parameters = from_torch({name: x.astype(dtype) for name, x in question.weights.items()}, template)
        return parameters, moved, fixed, directions

    def descend(self, weights: Arrays, gradients: Arrays) -> dict[str, np.ndarray]:
        with jax.enable_x64(True):
            return _wide(_adam(dict(weights), dict(gradients)))


def _on_device(arrays: Arrays) -> dict[str, Any]:
    return {name: jnp.asarray(array) for name, array in arrays.items()}


@jax.jit
def _adam(weights: Any, gradients: Any) -> Any:
    optimizer = optax.adam(0.005)
    updates, _ = optimizer.update(gradients, optimizer.init(weights))
    return optax.apply_updates(weights, updates)


def _call(subject: Subject, dtype: str) -> Callable[..., dict[str, Any]]:
    """(parameters, floating inputs, other inputs) -> results by name."""
    module = None if subject.jax_module is None else subject.jax_module(jnp.dtype(dtype))

    def call(parameters: Any, moved: Any, fixed: Any) -> dict[str, Any]:
        inputs = {**moved, **fixed}
        if module is None:
            found = subject.call(jax_attn, None, inputs)
        else:
            found = module.apply(parameters, inputs, method=lambda bound, given: subject.call(jax_attn, bound, given))
        found = found if isinstance(found, tuple) else (found,)
        return dict(zip(subject.results, found, strict=True))

    return call


def _differentiated(subject: Subject, dtype: str) -> Callable[..., Any]:
    call = _call(subject, dtype)

    def answer(parameters: Any, moved: Any, fixed: Any, directions: Any) -> Any:
        outputs, pull_back = jax.vjp(lambda parameters, moved: call(parameters, moved, fixed), parameters, moved)
        directions = {name: directions[name].astype(x.dtype) for name, x in outputs.items()}
        weight_gradients, gradients = pull_back(directions)
        return outputs, gradients, weight_gradients

    return answer


@cache
def _jitted(subject_name: str, dtype: str) -> Any:
    return jax.jit(_differentiated(SUBJECTS[subject_name], dtype))


@cache
def _vmapped(subject_name: str, dtype: str) -> Any:
    subject = SUBJECTS[subject_name]

    def axes(letters: str, shared: int | None) -> int | None:
        return letters.index("B") if "B" in letters else shared

    def axes_of(names: Any, shared: int | None) -> dict[str, int | None]:
        return {name: axes(subject.letters_of(name), shared) for name in names}

    @jax.jit
    def program(parameters: Any, moved: Any, fixed: Any, directions: Any) -> Any:
        return jax.vmap(
            _differentiated(subject, dtype),
            in_axes=(None, axes_of(moved, None), axes_of(fixed, None), axes_of(directions, None)),
            out_axes=(axes_of(subject.results, 0), axes_of(moved, 0), 0),
        )(parameters, moved, fixed, directions)

    return program


def forget_programs() -> None:
    """Drop every compiled program: a process has room for so many."""
    _jitted.cache_clear()
    _vmapped.cache_clear()
    jax.clear_caches()


@cache
def _template(subject_name: str, dtype: str) -> Any:
    """The parameters' names, shapes and dtypes on the side of JAX."""
    subject = SUBJECTS[subject_name]
    assert subject.jax_module is not None
    module = subject.jax_module(jnp.dtype(dtype))
    inputs = {
        name: jnp.zeros(subject.shape(letters, 3), _kind(name, dtype)) for name, letters in subject.inputs.items()
    }
    return jax.eval_shape(
        lambda: module.init(jax.random.key(0), inputs, method=lambda bound, given: subject.call(jax_attn, bound, given))
    )


def _kind(name: str, dtype: str) -> Any:
    if name == "mask":
        return bool
    return jnp.int32 if name in INTEGERS else jnp.dtype(dtype)


INTEGERS = frozenset({"tokens", "targets", "labels", "valid_lens", "source_lens"})


TORCH_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class TorchSide:
    name = "torch_ref"

    def __call__(self, question: Question) -> Answer:
        dtype = TORCH_DTYPES[question.dtype]
        inputs = {name: torch.tensor(x) for name, x in question.inputs.items()}
        moved = {name: x.to(dtype).requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
        module = _torch_module(question.subject.name, question.dtype)
        parameters = {} if module is None else dict(module.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.tensor(question.weights[name]))
        found = question.subject.call(torch_ref, module, {**inputs, **moved})
        found = found if isinstance(found, tuple) else (found,)
        outputs = dict(zip(question.subject.results, found, strict=True))
        sources = {**moved, **parameters}
        gradients = torch.autograd.grad(
            list(outputs.values()),
            list(sources.values()),
            [torch.tensor(question.directions[name]).to(x.dtype) for name, x in outputs.items()],
            materialize_grads=True,
        )
        named = {name: x.double().numpy() for name, x in zip(sources, gradients, strict=True)}
        return Answer(
            {name: x.detach().double().numpy() for name, x in outputs.items()},
            {name: named[name] for name in moved},
            {name: named[name] for name in parameters},
        )

    def descend(self, weights: Arrays, gradients: Arrays) -> dict[str, np.ndarray]:
        parameters = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in weights.items()}
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name])
        torch.optim.Adam(parameters.values(), 0.005).step()
        return {name: x.detach().numpy() for name, x in parameters.items()}


@cache
def _torch_module(subject_name: str, dtype: str) -> Any:
    build = SUBJECTS[subject_name].torch_module
    return None if build is None else build().to(TORCH_DTYPES[dtype]).eval()


JAX, TORCH = JaxSide(), TorchSide()
