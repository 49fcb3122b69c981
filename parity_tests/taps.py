"""Intermediate tensors and their gradients by name, recorded in either framework.

The result of a submodule is recorded under the submodule's path (`decoder.attention.W_q`), one entry a call: of each
`forward` of an `nn.Module`, and of each `__call__` of a Flax Linen module, but of no other method. Other tensors are
recorded where a program asks for it, in both frameworks alike:

    gates = tap("gates", x @ kernel + bias)

Outside a recording `tap` is the identity, and costs nothing.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jax_attn.weights import to_numpy
from parity_tests.tree import flatten


@dataclass
class Trace:
    """The tensors of one run under each name, call after call, in the order of the last call."""

    tensors: dict[str, list[np.ndarray]] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """In the order of the calls, as `tensors`."""

    def note(self, name: str, tensor: Any) -> int:
        """Record a tensor; return which call of that name it was."""
        calls = self.tensors.pop(name, [])  # put back at the end
        self.tensors[name] = [*calls, to_numpy(tensor)]
        return len(calls)

    def note_gradient(self, name: str, call: int, gradient: Any) -> None:
        """Record the gradient of that call's tensor; the gradient of a call without one stays zero."""
        like = self.tensors[name]
        calls = self.gradients.setdefault(name, [np.zeros_like(tensor) for tensor in like])
        calls[call] = to_numpy(gradient)


_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def tap(name: str, tree: Any) -> Any:
    """Record the floating tensors of a tree, and their gradients when they come; return the tree itself."""
    trace = _trace.get()
    if trace is None:
        return tree
    flat, rebuild = flatten(tree)
    names = {part: f"{name}.{part}" if len(flat) > 1 else name for part in flat}
    return rebuild({part: _tap(trace, names[part], x) for part, x in flat.items()})


def _tap(trace: Trace, name: str, x: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.is_floating_point():
            call = trace.note(name, x)
            if x.requires_grad:
                x.register_hook(lambda gradient: trace.note_gradient(name, call, gradient))
        return x
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating):
        return _identity(trace, name)(x)
    return x


def _identity(trace: Trace, name: str) -> Callable[[jax.Array], jax.Array]:
    """Make x -> x, recorded in the forward and in the backward pass; tracers, which have no values, are not."""

    def note(x: jax.Array) -> int:
        return -1 if isinstance(x, jax.core.Tracer) else trace.note(name, x)

    @jax.custom_vjp
    def identity(x: jax.Array) -> jax.Array:
        note(x)
        return x

    def forward(x: jax.Array) -> tuple[jax.Array, int]:
        return x, note(x)

    def backward(call: int, gradient: jax.Array) -> tuple[jax.Array]:
        if not isinstance(gradient, jax.core.Tracer) and call >= 0:
            trace.note_gradient(name, call, gradient)
        return (gradient,)

    identity.defvjp(forward, backward)
    return identity


@contextmanager
def recording() -> Iterator[Trace]:
    """Record taps and Linen modules. JAX runs operation by operation meanwhile, loops included."""
    trace = Trace()
    token = _trace.set(trace)
    try:
        with jax.disable_jit(), nn.intercept_methods(_intercept):
            yield trace
    finally:
        _trace.reset(token)


def _intercept(next_function: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    result = next_function(*args, **kwargs)
    if context.method_name != "__call__" or not context.module.path:
        return result
    return tap(".".join(_path(context.module)), result)


def _path(module: nn.Module) -> tuple[str, ...]:
    """The module's path; a module that a loop took out of its model has its old path as its root's name."""
    root = module
    while isinstance(root.parent, nn.Module):
        root = root.parent
    return module.path if root.path or root.name is None else (root.name, *module.path)


@contextmanager
def hooked(module: Any) -> Iterator[None]:
    """Let the submodules of a PyTorch module tap their results."""

    def hook(name: str, _: Any, __: Any, result: Any) -> Any:
        return tap(name, result)

    with ExitStack() as hooks:
        for name, submodule in [] if module is None else module.named_modules():
            if name:
                hooks.callback(submodule.register_forward_hook(partial(hook, name)).remove)
        yield


@contextmanager
def tapped(module: Any, kind: str) -> Iterator[Any]:
    """Let the submodules of an NNX or Equinox module tap their results; yield the module to call."""
    yield module
