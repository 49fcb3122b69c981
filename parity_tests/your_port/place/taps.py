"""Intermediate tensors and their gradients by name, recorded in either framework.

What a submodule is given and what it returns are recorded under its path (`input of decoder.attention.W_q`,
`decoder.attention.W_q`), one entry a call: of each `forward` of an `nn.Module`, of each `__call__` of a Flax Linen
module, and of each `__call__` of the submodules of an NNX or Equinox model that runs inside `tapped(model)`. Other
tensors are recorded where a program asks for it, in both frameworks alike:

    gates = tap("gates", x @ kernel + bias)

A recording sees through `jax.vmap`, loops and rematerialisation: where JAX has no values yet, a callback records them.
Outside a recording `tap` is the identity, and costs nothing. This file imports no torch.
"""

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity_tests.your_port.measure.arrays import to_numpy

Arrays = Mapping[str, Sequence[Any]]
"""Tensors by name, call after call."""


@dataclass
class Trace:
    """The tensors of one run under each name, call after call."""

    tensors: dict[str, list[np.ndarray]] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """In the order of the calls, as `tensors`."""
    parts: dict[str, list[str]] = field(default_factory=dict)
    """The name of a submodule, of its input or of a tap -> the names of its tensors."""
    events: list[tuple[str, int]] = field(default_factory=list)
    """The name and the call of each tensor, in the order of the computation."""
    parents: dict[str, str] = field(default_factory=dict)
    """The name of a submodule or tap -> the submodule in which it was called; "" is the program."""
    forced: Arrays = field(default_factory=dict)
    """What takes the place of JAX's tensors, call by call, after they were recorded; None leaves JAX's."""
    backward: bool = False
    """Whether the backward pass began."""
    open: list[str] = field(default_factory=list)
    """The submodules that run now, from the outermost to the innermost."""

    def note(self, name: str, tensor: Any) -> int:
        """Record a copy of a tensor; return which call of that name it was."""
        calls = self.tensors.setdefault(name, [])
        calls.append(np.array(to_numpy(tensor)))  # a copy: PyTorch may change its tensor in place
        self.events.append((name, len(calls) - 1))
        return len(calls) - 1

    def note_gradient(self, name: str, call: int, gradient: Any) -> None:
        """Record the gradient of that call's tensor; the gradient of a call without one stays zero."""
        calls = self.gradients.setdefault(name, [])
        calls.extend(np.zeros_like(tensor) for tensor in self.tensors[name][len(calls) :])
        calls[call] = np.array(to_numpy(gradient))

    def name_part(self, name: str, path: str, count: int) -> str:
        """Name one of `count` tensors of a tree."""
        full = f"{name}.{path}" if count > 1 and path else name
        if full not in self.parts.setdefault(name, []):
            self.parts[name].append(full)
        return full

    def replacement(self, name: str, call: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return what takes the place of that call's tensor."""
        values = self.forced.get(name, ())
        value = values[call] if call < len(values) else None
        return value if value is not None and value.shape == shape else None


_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def tap(name: str, tree: Any, differentiable: bool = True) -> Any:
    """Record the floating tensors of a tree, and their gradients when they come; return the tree itself."""
    trace = _trace.get()
    if trace is None:
        return tree
    trace.parents.setdefault(name, trace.open[-1] if trace.open else "")
    torch = sys.modules.get("torch")
    found = list(torch_leaves(torch, tree)) if torch is not None else []
    for path, x in found:
        _tap_torch(trace, trace.name_part(name, path, len(found)), x, differentiable)
    return tree if found else _tap_jax(trace, name, tree, differentiable)


@contextmanager
def hooked(module: Any) -> Iterator[None]:
    """Let the submodules of a PyTorch module (or None) tap what they are given and what they return."""

    def before(name: str, _: Any, args: Any, kwargs: Any) -> None:
        tap(f"input of {name}", {**dict(enumerate(args)), **kwargs}, differentiable=False)

    def after(name: str, _: Any, __: Any, result: Any) -> None:
        tap(name, result)

    with ExitStack() as hooks:
        for name, submodule in [] if module is None else module.named_modules():
            if name:
                given = functools.partial(before, name)
                hooks.callback(submodule.register_forward_pre_hook(given, with_kwargs=True).remove)
                hooks.callback(submodule.register_forward_hook(functools.partial(after, name)).remove)
        yield


def record_call(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a submodule of JAX; record what it is given and what it returns."""
    trace = _trace.get()
    if trace is None or (trace.open and trace.open[-1] == name):  # a method of the parent class
        return function(*args, **kwargs)
    given = tap(f"input of {name}", {**{str(i): x for i, x in enumerate(args)}, **kwargs}, differentiable=False)
    trace.parents.setdefault(name, trace.open[-1] if trace.open else "")
    trace.open.append(name)
    try:
        result = function(*(given[str(i)] for i in range(len(args))), **{key: given[key] for key in kwargs})
    finally:
        trace.open.pop()
    return tap(name, result)


# PyTorch's tensors


def torch_leaves(torch: Any, tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the floating tensors of tuples, lists, mappings and dataclasses."""
    if isinstance(tree, torch.Tensor):
        if tree.is_floating_point():
            yield path, tree
        return
    if isinstance(tree, Mapping):
        parts = list(tree.items())
    elif isinstance(tree, tuple | list):
        parts = list(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        parts = [(part.name, getattr(tree, part.name)) for part in dataclasses.fields(tree)]
    else:
        return
    for key, part in parts:
        yield from torch_leaves(torch, part, f"{path}.{key}" if path else str(key))


def _tap_torch(trace: Trace, name: str, x: Any, differentiable: bool) -> None:
    call = trace.note(name, x)
    if differentiable and x.requires_grad:
        x.register_hook(lambda gradient: trace.note_gradient(name, call, gradient))


# JAX's arrays


def _tap_jax(trace: Trace, name: str, tree: Any, differentiable: bool) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_opaque)
    floating = [isinstance(x, jax.Array) and bool(jnp.issubdtype(x.dtype, jnp.floating)) for _, x in paths]
    leaves = [x for _, x in paths]
    for i in (i for i, wanted in enumerate(floating) if wanted):
        full = trace.name_part(name, _text(paths[i][0]), sum(floating))
        leaves[i] = _identity(trace, full, differentiable)(leaves[i])
    return jax.tree_util.tree_unflatten(structure, leaves)


def _is_opaque(x: Any) -> bool:
    """Whether it is passed on as it is: modules, random streams and states are no results."""
    return x is None or callable(x) or type(x).__module__.startswith(("flax.nnx", "equinox"))


def _text(path: tuple[Any, ...]) -> str:
    return ".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def _identity(trace: Trace, name: str, differentiable: bool) -> Callable[[jax.Array], jax.Array]:
    """Make x -> x, recorded in the forward and in the backward pass."""

    def record(x: np.ndarray, again: bool = False) -> tuple[np.ndarray, int]:
        """Record a value; after the backward pass began, a loop's or block's forward pass may run `again`."""
        known = trace.tensors.get(name, []) if again and trace.backward else []
        call = next((i for i, old in enumerate(known) if np.array_equal(old, x)), None)
        call = trace.note(name, x) if call is None else call
        forced = trace.replacement(name, call, x.shape)
        return x if forced is None else forced.astype(x.dtype), call

    def note(x: jax.Array) -> tuple[jax.Array, Any]:
        if not isinstance(x, jax.core.Tracer):
            value, call = record(np.asarray(x))
            return (x if value is x else jnp.asarray(value)), np.int32(call)

        def on_host(value: Any) -> tuple[np.ndarray, np.ndarray]:
            value, call = record(np.asarray(value), again=True)
            return value, np.full(value.shape[: value.ndim - x.ndim], call, np.int32)

        kinds = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), np.int32))
        return jax.pure_callback(on_host, kinds, x, vmap_method="broadcast_all")

    @jax.custom_vjp
    def identity(x: jax.Array) -> jax.Array:
        return note(x)[0]

    def backward(call: Any, gradient: jax.Array) -> tuple[jax.Array]:
        def on_host(gradient: Any, call: Any) -> np.ndarray:
            trace.note_gradient(name, int(np.asarray(call).flat[0]), np.asarray(gradient))
            return np.asarray(gradient)

        if not differentiable:
            return (gradient,)
        if isinstance(gradient, jax.core.Tracer) or isinstance(call, jax.core.Tracer):
            kind = jax.ShapeDtypeStruct(gradient.shape, gradient.dtype)
            return (jax.pure_callback(on_host, kind, gradient, call, vmap_method="broadcast_all"),)
        on_host(gradient, call)
        return (gradient,)

    identity.defvjp(note, backward)
    return identity


def begin_backward() -> None:
    """Say that the forward pass is over: what JAX computes again from here on is not another call."""
    trace = _trace.get()
    if trace is not None:
        trace.backward = True


@contextmanager
def recording(forced: Arrays | None = None) -> Iterator[Trace]:
    """Record taps and submodules. JAX runs operation by operation meanwhile, loops included.

    Args:
        forced: values that JAX's tensors of these names get after they were recorded.
    """
    trace = Trace(forced=forced or {})
    token = _trace.set(trace)
    # Under `jax.vmap` another thread records, which does not see `with jax.enable_x64(True)` of this one.
    with ThreadPoolExecutor(1) as other:
        x64 = other.submit(jax.config.read, "jax_enable_x64").result()
    jax.config.update("jax_enable_x64", True)
    try:
        with jax.disable_jit(), nn.intercept_methods(_intercept):
            yield trace
    finally:
        jax.config.update("jax_enable_x64", x64)
        _trace.reset(token)


# Submodules of Linen


def _intercept(next_function: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    if context.method_name != "__call__" or not context.module.path:
        return next_function(*args, **kwargs)
    return record_call(".".join(_path(context.module)), next_function, args, kwargs)


def _path(module: nn.Module) -> tuple[str, ...]:
    """The module's path; a module that a loop took out of its model has its old path as its root's name."""
    root = module
    while isinstance(root.parent, nn.Module):
        root = root.parent
    return module.path if root.path or root.name is None else (root.name, *module.path)


# Submodules of NNX and Equinox


@contextmanager
def tapped(model: Any) -> Iterator[Any]:
    """Let the submodules of an NNX or Equinox model record their calls, while inside of both this and a recording.

    The classes' `__call__` are wrapped meanwhile; the model is not touched.
    """
    modules = [] if _trace.get() is None else list(_submodules(model))
    names = _Names(modules)
    with ExitStack() as patches:
        for owner in {type(module): None for _, module in modules}:
            if any("__call__" in base.__dict__ for base in owner.__mro__):
                patches.callback(_patch(owner, names))
        yield model


def _submodules(model: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(model, nnx.Module):
        for path, module in nnx.iter_modules(model):
            if path:
                yield ".".join(map(str, path)), module
        return
    equinox = sys.modules.get("equinox")
    if equinox is not None:
        yield from _in_tree(equinox.Module, model, "")


def _in_tree(kind: type, node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the modules of a tree of modules, lists and mappings, but for the root."""
    if isinstance(node, kind):
        if path:
            yield path, node
        parts: Any = vars(node).items()
    elif isinstance(node, Mapping):
        parts = node.items()
    else:
        parts = enumerate(node) if isinstance(node, tuple | list) else ()
    for key, part in parts:
        yield from _in_tree(kind, part, f"{path}.{key}" if path else str(key))


class _Names:
    """Finds a module's path. A copy, which transformations make, has the path of the most alike and least called."""

    def __init__(self, modules: list[tuple[str, Any]]) -> None:
        self._modules, self._calls = modules, Counter[str]()
        self._paths = {id(module): path for path, module in reversed(modules)}

    def find(self, module: Any) -> str:
        path = self._paths.get(id(module), "")
        if not path:
            shapes = _shapes(module)
            alike = [p for p, m in self._modules if type(m) is type(module) and _shapes(m) == shapes]
            stacked = [p for p, m in self._modules if type(m) is type(module) and [s[1:] for s in _shapes(m)] == shapes]
            path = min(alike or stacked, key=self._calls.__getitem__, default="")
        self._calls[path] += 1
        return path


def _shapes(module: Any) -> list[tuple[int, ...]]:
    tree = nnx.state(module, nnx.Param) if isinstance(module, nnx.Module) else module
    return [np.shape(x) for x in jax.tree.leaves(tree) if hasattr(x, "shape")]


def _patch(owner: type, names: _Names) -> Callable[[], None]:
    """Wrap a class's `__call__`; return what undoes that."""
    own, original = owner.__dict__.get("__call__"), owner.__call__  # type: ignore[operator]

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = names.find(self)
        bound = functools.partial(original, self)
        return record_call(path, bound, args, kwargs) if path else bound(*args, **kwargs)

    owner.__call__ = call  # type: ignore[method-assign,assignment]
    return lambda: delattr(owner, "__call__") if own is None else setattr(owner, "__call__", own)
