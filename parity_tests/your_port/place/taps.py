"""Intermediate tensors by name, recorded in either framework.

What a submodule is given and what it returns are recorded under its path (`input of decoder.attention.W_q`,
`decoder.attention.W_q`), one entry a call: of each `forward` of an `nn.Module`, of each `__call__` of a Flax Linen
module, and of each `__call__` of the submodules of an NNX or Equinox model that runs inside `tapped(model)`. Other
tensors are recorded where a program asks for it, in both frameworks alike:

    gates = tap("gates", x @ kernel + bias)

A recording sees through `jax.vmap`, loops and rematerialisation: where JAX has no values yet, a callback records them.
Outside a recording `tap` is the identity, and costs nothing. This file imports no torch.
"""

import functools
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


def _in_memory(x: np.ndarray) -> np.ndarray:
    return x


@dataclass
class Trace:
    """The tensors of one run under each name, call after call."""

    tensors: dict[str, list[np.ndarray]] = field(default_factory=dict)
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
    open: list[str] = field(default_factory=lambda: [""])
    """The program and the submodules that run now, from the outermost to the innermost."""
    keep: Callable[[np.ndarray], np.ndarray] = field(default=_in_memory, repr=False)
    """Puts a tensor elsewhere than into memory, such as into a file."""

    def enter(self, path: str) -> None:
        """Note that a submodule begins."""
        self.parents.setdefault(path, self.open[-1])
        self.open.append(path)

    def calls(self, names: Collection[str]) -> list[np.ndarray]:
        """The tensors of these names in the order of their calls."""
        return [self.tensors[name][call] for name, call in self.events if name in names]

    def note(self, name: str, tensor: Any) -> np.ndarray | None:
        """Record a copy of a tensor; return what is to take its place, if anything is."""
        calls = self.tensors.setdefault(name, [])
        x = np.array(to_numpy(tensor))  # a copy: PyTorch may change its tensor in place
        call = len(calls)
        calls.append(self.keep(x))
        self.events.append((name, call))
        return next((y.astype(x.dtype) for y in self.forced.get(name, ())[call:][:1] if y.shape == x.shape), None)

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
    """Record the floating tensors of a tree; return the tree itself.

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
def recording(forced: Arrays | None = None, keep: Callable[[np.ndarray], np.ndarray] = _in_memory) -> Iterator[Trace]:
    """Record taps and submodules. JAX runs operation by operation meanwhile, loops included.

    Args:
        forced: values that JAX's tensors of these names get after they were recorded.
        keep: puts a tensor elsewhere, such as into a file, and returns it.
    """
    trace = Trace(forced=forced or {}, keep=keep)
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


def _by_position(args: Any, kwargs: Any) -> dict[str, Any]:
    return {**{str(i): x for i, x in enumerate(args)}, **kwargs}


# PyTorch


@contextmanager
def hooked(module: Any) -> Iterator[None]:
    """Let the submodules of a PyTorch module (or None) record what they are given and what they return."""
    trace, torch = _trace.get() or Trace(), sys.modules["torch"]

    def before(path: str, _: Any, args: Any, kwargs: Any) -> None:
        _tap_torch(trace, torch, input_of(path), _by_position(args, kwargs))
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


def torch_leaves(torch: Any, tree: Any) -> list[tuple[str, Any]]:
    """Return the floating tensors of tuples, lists, mappings and dataclasses by name."""
    leaves = flatten(plain(tree))[0].items()
    return [(name, x) for name, x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _tap_torch(trace: Trace, torch: Any, name: str, tree: Any) -> bool:
    """Record the floating tensors of a tree; return whether there are any."""
    found = torch_leaves(torch, tree)
    for path, x in found:
        trace.note(trace.name_part(name, path, len(found)), x)
    return bool(found)


# JAX


def _tap_jax(trace: Trace, name: str, tree: Any) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_opaque)
    floating = [isinstance(x, jax.Array) and bool(jnp.issubdtype(x.dtype, jnp.floating)) for _, x in paths]
    leaves = [x for _, x in paths]
    for i in (i for i, wanted in enumerate(floating) if wanted):
        leaves[i] = _recorded(trace, trace.name_part(name, name_of(paths[i][0]), sum(floating)), leaves[i])
    return jax.tree_util.tree_unflatten(structure, leaves)


def _is_opaque(x: Any) -> bool:
    """Whether it is passed on as it is: modules, random streams, states, and a dict whose keys JAX cannot sort."""
    return x is None or is_mixed(x) or callable(x) or type(x).__module__.startswith(("flax.nnx", "equinox"))


def _recorded(trace: Trace, name: str, x: jax.Array) -> jax.Array:
    """Record an array; return it, or what takes its place, with the array's own gradient."""

    def on_host(x: Any) -> np.ndarray:
        forced = trace.note(name, x)
        return np.asarray(x) if forced is None else forced

    @jax.custom_jvp
    def identity(x: jax.Array) -> jax.Array:
        if not isinstance(x, jax.core.Tracer):
            forced = trace.note(name, x)
            return x if forced is None else jnp.asarray(forced)
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="broadcast_all")

    identity.defjvp(lambda given, tangents: (identity(*given), *tangents))
    return identity(x)


def record_call(path: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a submodule of JAX; record what it is given and what it returns."""
    trace = _trace.get()
    if trace is None or trace.open[-1] == path:  # a method of the parent class
        return function(*args, **kwargs)
    given = _tap_jax(trace, input_of(path), _by_position(args, kwargs))
    trace.enter(path)
    try:
        result = function(*(given[str(i)] for i in range(len(args))), **{key: given[key] for key in kwargs})
        return _tap_jax(trace, path, result)
    finally:
        trace.open.pop()


def _intercept(next_function: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    """Record the call of a submodule of Linen."""
    if context.method_name != "__call__" or not context.module.path:
        return next_function(*args, **kwargs)
    return record_call(_path(context.module), next_function, *args, **kwargs)


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
    with ExitStack() as undo:
        for path, module in [] if _trace.get() is None else [*_submodules(model, "")]:
            kind: Any = type(module)
            if path and callable(module) and not hasattr(kind, _PATH):  # of several paths of one module the first
                object.__setattr__(module, "__class__", _recording(kind, path))
                undo.callback(object.__setattr__, module, "__class__", kind)
        yield model


_PATH = "path_in_recording"


@functools.cache
def _recording(kind: Any, path: str) -> type:
    """Make a class whose calls are recorded; the same one for the same path, since programs are kept by class."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return record_call(path, functools.partial(kind.__call__, self), *args, **kwargs)

    return type(kind)(kind.__name__, (kind,), {"__call__": functools.wraps(kind.__call__)(call), _PATH: path})


def _submodules(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield an NNX model's modules, or those in a tree of Equinox's modules, lists and mappings."""
    if isinstance(node, nnx.Module):
        yield from ((".".join(map(str, keys)), module) for keys, module in nnx.iter_modules(node))
        return
    parts: Any = enumerate(node) if isinstance(node, tuple | list) else ()
    if isinstance(node, Mapping):
        parts = node.items()
    elif isinstance(node, getattr(sys.modules.get("equinox"), "Module", ())):
        parts = vars(node).items()
        yield path, node
    for key, part in parts:
        yield from _submodules(part, f"{path}.{key}" if path else str(key))
