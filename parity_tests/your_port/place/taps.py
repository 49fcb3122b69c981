"""Intermediate tensors and their gradients by name, recorded in either framework.

What a submodule is given and what it returns are recorded under its path (`input of decoder.attention.W_q`,
`decoder.attention.W_q`), one entry a call: of each `forward` of an `nn.Module`, of each `__call__` of a Flax Linen
module, and of each `__call__` of the submodules of an NNX or Equinox model that runs inside `tapped(model)`. Other
tensors are recorded where a program asks for it, in both frameworks alike:

    gates = tap("gates", x @ kernel + bias)

A recording sees through `jax.vmap`, loops and rematerialisation: where JAX has no values yet, a callback records them.
Outside a recording `tap` is the identity, and costs nothing. This file imports no torch.
"""

import functools
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from parity_tests.your_port.measure.tree import flatten, is_mixed, name_of, plain

Arrays = Mapping[str, Sequence[Any]]
"""Tensors by name, call after call."""


def input_of(path: str) -> str:
    """Name what a submodule is given."""
    return f"input of {path}"


@dataclass
class Trace:
    """The tensors of one run under each name, call after call."""

    tensors: dict[str, list[np.ndarray]] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """In the order of the calls, as `tensors`."""
    parts: dict[str, list[str]] = field(default_factory=dict)
    """The name of a submodule, of its input or of a tap -> the names of its tensors."""
    makers: dict[str, str] = field(default_factory=dict)
    """The name of a tensor -> the submodule whose code computes it; "" is the program."""
    parents: dict[str, str] = field(default_factory=dict)
    """A submodule -> the one in which it was called."""
    events: list[tuple[str, int]] = field(default_factory=list)
    """The name and the call of each tensor, in the order of the computation."""
    forced: Arrays = field(default_factory=dict)
    """What takes the place of JAX's tensors, call by call, after they were recorded."""
    backward: bool = False
    """Whether the backward pass began."""
    open: list[str] = field(default_factory=lambda: [""])
    """The program and the submodules that run now, from the outermost to the innermost."""

    def enter(self, path: str) -> None:
        """Note that a submodule begins."""
        self.parents.setdefault(path, self.open[-1])
        self.open.append(path)

    def calls(self, names: Collection[str], kind: str = "tensors") -> list[np.ndarray]:
        """The tensors, or the gradients, of these names in the order of their calls."""
        found = getattr(self, kind)
        return [found[name][call] for name, call in self.events if name in names and call < len(found.get(name, ()))]

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
        full = f"{name}.{path}" if count > 1 else name
        parts = self.parts.setdefault(name, [])
        if full not in parts:
            parts.append(full)
        self.makers.setdefault(full, self.open[-1])
        return full


_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def tap(name: str, tree: Any) -> Any:
    """Record the floating tensors of a tree, and their gradients when they come; return the tree itself.

    What has the name of a submodule is left to the submodule's own record.
    """
    trace = _trace.get()
    if trace is None or name in trace.parents:
        return tree
    torch = sys.modules.get("torch")
    if torch is not None and _tap_torch(trace, torch, name, tree):
        return tree
    return _tap_jax(trace, name, tree)


@contextmanager
def hooked(module: Any) -> Iterator[None]:
    """Let the submodules of a PyTorch module (or None) record what they are given and what they return."""
    trace, torch = _trace.get() or Trace(), sys.modules["torch"]

    def before(path: str, _: Any, args: Any, kwargs: Any) -> None:
        _tap_torch(trace, torch, input_of(path), _by_position(args, kwargs), differentiable=False)
        trace.enter(path)

    def after(path: str, _: Any, __: Any, result: Any) -> None:
        _tap_torch(trace, torch, path, result)
        trace.open.pop()

    with ExitStack() as hooks:
        for path, part in [] if module is None or _trace.get() is None else module.named_modules():
            if path:
                given = functools.partial(before, path)
                hooks.callback(part.register_forward_pre_hook(given, with_kwargs=True).remove)
                hooks.callback(part.register_forward_hook(functools.partial(after, path)).remove)
        yield


def record_call(path: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a submodule of JAX; record what it is given and what it returns."""
    trace = _trace.get()
    if trace is None or trace.open[-1] == path:  # a method of the parent class
        return function(*args, **kwargs)
    given = _tap_jax(trace, input_of(path), _by_position(args, kwargs), differentiable=False)
    trace.enter(path)
    try:
        result = function(*(given[str(i)] for i in range(len(args))), **{key: given[key] for key in kwargs})
        return _tap_jax(trace, path, result)
    finally:
        trace.open.pop()


def _by_position(args: Any, kwargs: Any) -> dict[str, Any]:
    return {**{str(i): x for i, x in enumerate(args)}, **kwargs}


# PyTorch's tensors


def torch_leaves(torch: Any, tree: Any) -> list[tuple[str, Any]]:
    """Return the floating tensors of tuples, lists, mappings and dataclasses by name."""
    leaves = flatten(plain(tree))[0].items()
    return [(name, x) for name, x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _tap_torch(trace: Any, torch: Any, name: str, tree: Any, differentiable: bool = True) -> bool:
    """Record the floating tensors of a tree; return whether there are any."""
    found = torch_leaves(torch, tree)
    for path, x in found:
        part = trace.name_part(name, path, len(found))
        call = trace.note(part, x)
        if differentiable and x.requires_grad:
            x.register_hook(functools.partial(trace.note_gradient, part, call))
    return bool(found)


# JAX's arrays


def _tap_jax(trace: Trace, name: str, tree: Any, differentiable: bool = True) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_opaque)
    floating = [isinstance(x, jax.Array) and bool(jnp.issubdtype(x.dtype, jnp.floating)) for _, x in paths]
    leaves = [x for _, x in paths]
    for i in (i for i, wanted in enumerate(floating) if wanted):
        full = trace.name_part(name, name_of(paths[i][0]), sum(floating))
        leaves[i] = _identity(trace, full, differentiable)(leaves[i])
    return jax.tree_util.tree_unflatten(structure, leaves)


def _is_opaque(x: Any) -> bool:
    """Whether it is passed on as it is: modules, random streams, states, and a dict whose keys JAX cannot sort."""
    return x is None or is_mixed(x) or callable(x) or type(x).__module__.startswith(("flax.nnx", "equinox"))


def _identity(trace: Trace, name: str, differentiable: bool) -> Callable[[jax.Array], jax.Array]:
    """Make x -> x, recorded in the forward and in the backward pass."""

    def record(x: np.ndarray, again: bool = False) -> tuple[np.ndarray, int]:
        """Record a value; after the backward pass began, a loop's or block's forward pass may run `again`."""
        known = trace.tensors.get(name, []) if again and trace.backward else []
        call = next((i for i, old in enumerate(known) if np.array_equal(old, x)), None)
        call = trace.note(name, x) if call is None else call
        forced = next((y for y in trace.forced.get(name, ())[call:][:1] if y.shape == x.shape), None)
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

_PATH = "path_in_recording"
"""The attribute with the path of an NNX module; the copies that transformations make have it too."""


@contextmanager
def tapped(model: Any) -> Iterator[Any]:
    """Let the submodules of an NNX or Equinox model record their calls, while inside of both this and a recording.

    The classes' `__call__` are wrapped meanwhile.
    """
    modules = [] if _trace.get() is None else list(_submodules(model))
    copies = _Copies(modules)
    with ExitStack() as patches:
        for path, module in reversed(modules):  # of several paths of one module the first
            if isinstance(module, nnx.Module):
                setattr(module, _PATH, path)
                patches.callback(vars(module).pop, _PATH, None)
        for owner in {type(module) for _, module in modules if callable(module)}:
            patches.callback(_patch(owner, copies))
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


class _Copies:
    """Finds an Equinox module's path; a copy's where only one module has these weights, or weights of these shapes."""

    def __init__(self, modules: list[tuple[str, Any]]) -> None:
        self._modules = modules
        self._known = {id(module): (path, module) for path, module in reversed(modules)}

    def find(self, module: Any) -> str:
        if id(module) not in self._known:
            alike = [(path, jax.tree.leaves(m)) for path, m in self._modules if type(m) is type(module)]
            own = jax.tree.leaves(module)
            same = [path for path, leaves in alike if leaves and all(map(operator.is_, leaves, own))]
            shapes = [path for path, leaves in alike if _shapes(own) in (_shapes(leaves), _shapes(leaves, 1))]
            path = next((paths[0] for paths in (same, shapes) if len(paths) == 1), "")
            for inner, part in _in_tree(sys.modules["equinox"].Module, module, path) if path else ():
                self._known[id(part)] = (inner, part)
            self._known[id(module)] = (path, module)
        return self._known[id(module)][0]


def _shapes(leaves: Sequence[Any], start: int = 0) -> list[tuple[int, ...]]:
    return [np.shape(x)[start:] for x in leaves if hasattr(x, "shape")]


def _patch(owner: type, copies: _Copies) -> Callable[[], None]:
    """Wrap a class's `__call__`; return what undoes that."""
    own, original = owner.__dict__.get("__call__"), owner.__call__  # type: ignore[operator]

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = getattr(self, _PATH, "") if isinstance(self, nnx.Module) else copies.find(self)
        bound = functools.partial(original, self)
        return record_call(path, bound, args, kwargs) if path else bound(*args, **kwargs)

    owner.__call__ = call  # type: ignore[method-assign,assignment]
    return lambda: delattr(owner, "__call__") if own is None else setattr(owner, "__call__", own)
