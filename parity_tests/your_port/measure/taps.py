"""Intermediate tensors by name, recorded in either framework.

What a submodule is given and what it returns are recorded under its path (`input of decoder.attention.W_q`,
`decoder.attention.W_q`), call by call: of each module of PyTorch, of each Flax Linen module, and of the submodules of
an NNX or Equinox model that runs inside `tapped(model)`. Other tensors are recorded where a program asks for it, in
both frameworks alike:

    gates = tap("gates", x @ kernel + bias)

A recording sees through `jax.vmap`, loops and rematerialisation: where JAX has no values yet, a callback records them.
Outside a recording `tap` is the identity, and costs nothing. This file imports no torch.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity_tests.your_port.measure.arrays import flatten, plain, to_numpy


def input_of(path: str) -> str:
    """Name what a submodule is given."""
    return f"input of {path}"


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a run: what it belongs to, and where it was computed."""

    of: str
    """The path of a submodule that returns it, `input of` the one that is given it, or the name of a tap."""
    is_input: bool
    """Whether a submodule is given it."""
    part: str
    """Which of several tensors it is; "" for a single one."""
    inside: tuple[str, ...]
    """The submodules whose code computes it, from the outermost to the innermost; none is the program."""
    value: Any

    @property
    def name(self) -> str:
        return f"{self.of}.{self.part}" if self.part else self.of

    @property
    def is_result(self) -> bool:
        """Whether a submodule returns it; otherwise it is given to one, or tapped."""
        return self.inside[-1:] == (self.of,)


@dataclass
class Trace:
    """The tensors of a run, while it is recorded."""

    tensors: list[Tensor] = field(default_factory=list)
    """In the order of the computation."""
    forced: Mapping[str, Iterator[np.ndarray]] = field(default_factory=dict)
    """What takes the place of JAX's tensors, call by call, after they were recorded."""
    keep: Callable[[np.ndarray], np.ndarray] = lambda x: x
    """Puts a tensor elsewhere than into memory, such as into a file."""
    inside: tuple[str, ...] = ()
    """The submodules that run now, from the outermost to the innermost."""

    def note(self, of: str, is_input: bool, part: str, inside: tuple[str, ...], x: Any) -> Any:
        """Record a copy of a tensor; return what takes its place, by default the tensor itself."""
        copy = np.array(to_numpy(x))  # PyTorch may change its tensor in place
        self.tensors.append(Tensor(of, is_input, part, inside, self.keep(copy)))
        forced = next(self.forced.get(self.tensors[-1].name, iter(())), None)
        return x if forced is None or forced.shape != copy.shape else forced.astype(copy.dtype)


_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def tap(name: str, tree: Any) -> Any:
    """Record the floating tensors of a tree; return the tree itself.

    What has the name of a submodule is left to the submodule's own record.
    """
    trace = _trace.get()
    if trace is None or name in trace.inside or any(name in x.inside for x in trace.tensors):
        return tree
    return (_record_torch if torch_leaves(tree) else _record_jax)(trace, name, tree)


@contextmanager
def recording(
    forced: Mapping[str, Sequence[np.ndarray]] | None = None,
    keep: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    in_python: bool = True,
) -> Iterator[list[Tensor]]:
    """Record taps and submodules. JAX runs operation by operation meanwhile.

    Args:
        forced: values that JAX's tensors of these names get after they were recorded, call by call.
        keep: puts a tensor elsewhere, such as into a file, and returns it.
        in_python: run the Python code of loops at each step. False compiles it, and callbacks record.
    """
    trace = Trace(forced={name: iter(calls) for name, calls in (forced or {}).items()}, keep=keep)
    token = _trace.set(trace)
    # Under `jax.vmap` another thread records, which does not see `with jax.enable_x64(True)` of this one.
    with ThreadPoolExecutor(1) as other:
        x64 = other.submit(jax.config.read, "jax_enable_x64").result()
    jax.config.update("jax_enable_x64", True)
    try:
        with jax.disable_jit(in_python), nn.intercept_methods(_intercept):
            yield trace.tensors
    finally:
        jax.config.update("jax_enable_x64", x64)
        _trace.reset(token)


def _record_call(
    record: Callable[..., Any], path: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a submodule of the framework whose tensors `record` notes; record what it is given and what it returns."""
    trace = _trace.get()
    if trace is None or path in trace.inside[-1:]:  # a method of the parent class
        return function(*args, **kwargs)
    around = trace.inside
    given = record(trace, input_of(path), {**{str(i): x for i, x in enumerate(args)}, **kwargs}, is_input=True)
    trace.inside = (*around, path)
    try:
        result = function(*(given[str(i)] for i in range(len(args))), **{key: given[key] for key in kwargs})
        return record(trace, path, result)
    finally:
        trace.inside = around


# PyTorch


@contextmanager
def hooked(module: Any) -> Iterator[None]:
    """Let the submodules of a PyTorch module (or None) record their calls, while inside of a recording."""
    with ExitStack() as undo:
        for path, part in [] if module is None or _trace.get() is None else module.named_modules():
            if path:
                call = functools.partial(_record_call, _record_torch, path, part.forward)
                undo.enter_context(patch.object(part, "forward", functools.wraps(part.forward)(call)))
        yield


def torch_leaves(tree: Any) -> dict[str, Any]:
    """Return PyTorch's floating tensors in tuples, lists, mappings and dataclasses by name."""
    torch: Any = sys.modules.get("torch")
    leaves = {} if torch is None else flatten(plain(tree))[0]
    return {name: x for name, x in leaves.items() if holds_numbers(x)}


def holds_numbers(x: Any, *, or_complex: bool = False) -> bool:
    """Whether it is a floating tensor of PyTorch with a storage: none inside of `torch.vmap` or `torch.func.grad`."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return False
    if not (x.is_floating_point() or (or_complex and x.is_complex())):
        return False
    try:
        x.untyped_storage()
    except NotImplementedError:
        return False
    return True


def _record_torch(trace: Trace, of: str, tree: Any, is_input: bool = False) -> Any:
    """Record the floating tensors of a tree; return the tree."""
    found = torch_leaves(tree)
    for part, x in found.items():
        trace.note(of, is_input, part if len(found) > 1 else "", trace.inside, x)
    return tree


# JAX


def _record_jax(trace: Trace, of: str, tree: Any, is_input: bool = False) -> Any:
    """Record the floating arrays of a tree; return a tree of what is computed with after them."""
    leaves, rebuild = flatten(tree, is_leaf=_is_opaque)
    found = {
        part: x for part, x in leaves.items() if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
    }
    for part, x in found.items():
        note = functools.partial(trace.note, of, is_input, part if len(found) > 1 else "", trace.inside)
        leaves[part] = _noted(note, x)
    return rebuild(leaves)


def _is_opaque(x: Any) -> bool:
    """Whether it is passed on as it is: modules, random streams and states."""
    return callable(x) or type(x).__module__.startswith(("flax.nnx", "equinox"))


def _noted(note: Callable[[Any], np.ndarray], x: jax.Array) -> jax.Array:
    """Return what takes the place of an array that is noted, with the array's own gradient."""

    @jax.custom_jvp
    def identity(x: jax.Array) -> jax.Array:
        if not isinstance(x, jax.core.Tracer):
            return jnp.asarray(note(x))
        return jax.pure_callback(note, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="broadcast_all")

    identity.defjvp(lambda given, tangents: (identity(*given), *tangents))
    return identity(x)


def _intercept(next_function: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    """Record the call of a submodule of Linen."""
    if context.method_name != "__call__" or not context.module.path:
        return next_function(*args, **kwargs)
    return _record_call(_record_jax, _path(context.module), next_function, *args, **kwargs)


def _path(module: nn.Module) -> str:
    """The module's path; a module that a loop took out of its model has its old path as its root's name."""
    root = module
    while isinstance(root.parent, nn.Module):
        root = root.parent
    return ".".join(module.path if root.path or root.name is None else (root.name, *module.path))


@contextmanager
def tapped(model: Any) -> Iterator[Any]:
    """Let the submodules of an NNX or Equinox model record their calls, while inside of both this and a recording.

    Meanwhile each is of a class that knows the submodule's path, as are the copies that transformations make of it.
    """
    kinds = (nnx.Module, getattr(sys.modules.get("equinox"), "Module", nnx.Module))
    with ExitStack() as undo:
        for keys, module in [] if _trace.get() is None else [*nnx.iter_graph(model)]:
            if keys and isinstance(module, kinds) and callable(module):
                kind: Any = type(module)
                object.__setattr__(module, "__class__", _recording(kind, ".".join(map(str, keys))))
                undo.callback(object.__setattr__, module, "__class__", kind)
        yield model


@functools.cache
def _recording(kind: Any, path: str) -> type:
    """Make a class whose calls are recorded; the same one for the same path, since programs are kept by class."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _record_call(_record_jax, path, functools.partial(kind.__call__, self), *args, **kwargs)

    return type(kind)(kind.__name__, (kind,), {"__call__": functools.wraps(kind.__call__)(call)})
