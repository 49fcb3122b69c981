"""The kinds of JAX modules: what their weights are called, and how to call them with weights in place.

A module is made for one dtype and is run in others. So its weights are replaced by those of the run, its other floating
variables are cast, and where it has a field `dtype` or `param_dtype` of float32, that is set to the run's dtype.
"""

import copy
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity_tests.your_port.measure.arrays import is_floating, is_mixed
from parity_tests.your_port.measure.jax_side import Applied
from parity_tests.your_port.measure.taps import tapped
from parity_tests.your_port.weights.layouts import Layouts, Role
from parity_tests.your_port.weights.original import Arguments, Inputs, to_jax_layout
from parity_tests.your_port.weights.weight_map import Leaf

Arrays = Mapping[str, Any]
Call = Callable[..., Any] | None

EVALUATION = {
    **dict.fromkeys(("train", "training", "is_training"), False),
    **dict.fromkeys(("deterministic", "use_running_average", "inference"), True),
}
"""Arguments that turn training off, under the names that libraries use."""
DTYPE_FIELDS = ("dtype", "param_dtype")


@dataclass(frozen=True)
class JaxProgram:
    """A JAX program with named weights."""

    kind: str
    role: Role
    """How it stores the weights of its layers."""
    values: dict[str, Any]
    """Its own arrays by their JAX names; shapes, where it holds no numbers."""
    leaves: dict[str, Leaf]
    """Its weights by their JAX names, in order of definition."""
    run: Callable[[Arrays, Arguments, Any, bool], tuple[Any, dict[str, Any]]]
    """(weights, arguments, dtype, whether it trains) -> the results, and the running statistics afterwards."""
    read: Callable[[Any], dict[str, Any]]
    """What a converter returns -> its arrays by their JAX names."""


def make_port(
    model: Any, call: Call, variables: Any, inputs: Inputs, layouts: Layouts, torch_leaves: dict[str, Leaf]
) -> JaxProgram:
    """Choose the kind by the object; for the arguments see `compare`. The inputs are PyTorch's, in its layouts."""
    if variables is not None and not (isinstance(model, nn.Module) or _is_pretrained(model) or is_function(model)):
        raise TypeError(
            f"variables= is for a module of Linen or a function; {type(model).__name__} has weights of its own: leave "
            "it out, or give load="
        )
    if isinstance(model, nnx.Module):
        return _nnx(model, call)
    if _is_pretrained(model):
        return _linen(model.module, call, model.params if variables is None else variables, inputs, layouts, model)
    if isinstance(model, nn.Module):
        return _linen(model, call, variables, inputs, layouts)
    if type(model).__module__.startswith("keras."):
        raise TypeError(
            f"{type(model).__name__} is of Keras: give a function of (weights, inputs) that calls its stateless_call, "
            "with variables={variable.path: variable.value, …}"
        )
    if not callable(model) and call is None:
        raise TypeError(
            "jax_module must be a module of Flax NNX, Flax Linen or Equinox, or a function of (weights, inputs); "
            f"got {type(model).__name__}. Something else needs jax_call=lambda module, inputs: ..."
        )
    if is_function(model):
        return _function(model, call, variables, torch_leaves)
    return _equinox(model, call)


def is_function(model: Any) -> bool:
    """Whether it has no weights of its own."""
    if isinstance(model, nnx.Module | nn.Module) or _is_pretrained(model):
        return False
    wrapped = getattr(model, "__wrapped__", None)  # `eqx.filter_jit` makes a module of a function
    return jax.tree_util.all_leaves([model]) or (wrapped is not None and is_function(wrapped))


def _is_pretrained(model: Any) -> bool:
    """Whether it is one of the models of `transformers`, which hold a Linen module and its parameters."""
    return isinstance(getattr(model, "module", None), nn.Module) and hasattr(model, "params")


# How weights are stored


def flax_role(path: str, role: str) -> str:
    """Say how Flax stores a weight: only what is called a kernel has a layout of its own."""
    leaf = path.rpartition(".")[2]
    if leaf == "embedding":
        return "straight"
    return "unknown" if role in ("linear", "convolution") and "kernel" not in leaf else role


# Trees of arrays


def _text(path: tuple[Any, ...]) -> str:
    """Name a leaf of a tree: `layers.0.weight`. A slash within a key is a dot, as in Haiku's `net/~/linear`."""
    parts = [part for key in map(_key, path) for part in (key if isinstance(key, tuple) else (key,))]
    return ".".join(re.sub(r"[^\w.*~-]", "", str(part).replace("/", ".")) for part in parts)


def _key(key: Any) -> Any:
    """Return the name, key or number within a step of a path."""
    return getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))


def _named(tree: Any, name: Callable[[Any], str] = _text) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    found = {name(path): x for path, x in leaves}
    if len(found) < len(leaves):
        twice, _ = Counter(name(path) for path, _ in leaves).most_common(1)[0]
        raise ValueError(f"two of JAX's arrays are called {twice}: give one of them another name")
    return found


def _filled(tree: Any, weights: Arrays, dtype: Any, name: Callable[[Any], str] = _text) -> Any:
    """Put weights into a tree; cast what else is floating in it."""

    def fill(path: Any, x: Any) -> Any:
        x = weights.get(name(path), x)
        if not is_floating(x) or isinstance(x, jax.ShapeDtypeStruct) or x.dtype == dtype:
            return x
        return x.astype(dtype) if isinstance(x, jax.core.Tracer) else jnp.asarray(np.asarray(x).astype(dtype))

    return jax.tree_util.tree_map_with_path(fill, tree)


def _as_defined(tree: Any, module: Any) -> list[tuple[Any, Any]]:
    """Return paths and leaves in the order in which a module or a dict has them; JAX sorts them by name."""

    def places(path: Any) -> list[int]:
        found, held = list[int](), module
        for key in path:
            if isinstance(held, list | tuple):
                held = dict(enumerate(held))
            elif not isinstance(held, Mapping):
                held = getattr(held, "__dict__", {})
            parts, name = {str(name): x for name, x in held.items()}, str(_key(key))
            found.append([*parts].index(name) if name in parts else len(parts))
            held = parts.get(name)
        return found

    return sorted(jax.tree_util.tree_leaves_with_path(tree), key=lambda leaf: places(leaf[0]))


# Flax NNX


def _nnx(model: nnx.Module, call: Call) -> JaxProgram:
    graph, state = nnx.split(model)

    def name(path: Any) -> str:
        """Leave out the attribute of a variable in which its array is."""
        return _text(path[:-1] if isinstance(path[-1], jax.tree_util.GetAttrKey) else path)

    parameters = _named(nnx.state(model, nnx.Param), name)
    arrays = {name(path): x for path, x in _as_defined(state, model)}
    leaves = {path: Leaf.of(x, path not in parameters) for path, x in arrays.items() if is_floating(x)}

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        module = nnx.merge(graph, _filled(state, weights, dtype, name))
        module.set_attributes(deterministic=True, use_running_average=not train, raise_if_not_found=False)
        for _, part in nnx.iter_modules(module):
            _set_dtype(part, dtype, model)
            if train and isinstance(part, nnx.Dropout):
                part.rate = 0.0  # it is random
        with tapped(module) as module:
            results = _call(call, module, model, arguments, train)
        after = _named(nnx.state(module), name) if train else {}
        return results, {path: x for path, x in after.items() if path in leaves and leaves[path].is_buffer}

    def read(loaded: Any) -> dict[str, Any]:
        return _named(nnx.state(loaded) if isinstance(loaded, nnx.Module) else loaded, name)

    return JaxProgram("nnx", flax_role, arrays, leaves, run, read)


# Flax Linen


def _linen(
    model: nn.Module, call: Call, variables: Any, inputs: Inputs, layouts: Layouts, pretrained: Any = None
) -> JaxProgram:
    """Run a Linen module, or in its place the model that holds it, which fills in what its caller leaves out.

    Raises:
        ValueError: without `variables` it is initialised on the inputs, and refuses them.
    """
    given, order = to_jax_layout(inputs.arrays, layouts), list[str]()

    def name(path: Any) -> str:
        return _text(path[1:])

    def initialise(arrays: Any) -> Any:
        def enter(module: nn.Module) -> Any:
            return _call(call, module, model, inputs.as_arguments(arrays), False)

        keys = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
        created = model.init(keys, method=enter)
        unboxed = nn.meta.unbox(created)
        order.extend(name(path) for path, _ in _as_defined(unboxed, created))
        return unboxed

    def initialised() -> Any:
        """Return the variables as shapes. Those that no weight fills have values, and nothing else is computed."""
        shapes = jax.eval_shape(initialise, given)
        if all(map(is_floating, jax.tree.leaves(shapes))):
            return shapes
        kept = jax.jit(lambda given: jax.tree.map(lambda x: None if is_floating(x) else x, initialise(given)))(given)
        return jax.tree.map(lambda x, shape: shape if x is None else x, kept, shapes, is_leaf=lambda x: x is None)

    try:
        variables = _collections(initialised() if variables is None else nn.meta.unbox(variables))
    except Exception as error:
        raise ValueError(
            f"the Linen module cannot be initialised on these inputs: {type(error).__name__}: {error}. {inputs.advice}"
        ) from error
    arrays = _named(variables, name)
    buffers = _named({key: tree for key, tree in variables.items() if key != "params"}, name)
    leaves = {path: Leaf.of(arrays[path], path in buffers) for path in order or arrays if is_floating(arrays[path])}

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        filled = _filled(variables, weights, dtype, name)
        unknown = [path for path, x in _named(filled, name).items() if isinstance(x, jax.ShapeDtypeStruct)]
        if unknown:
            raise ValueError(f"JAX keeps its own value of {', '.join(unknown)}: give the module's variables=")
        bound = Applied(model, filled, [key for key in variables if key != "params"] if train else [])
        with nn.intercept_methods(_setting_up(dtype, model, train)):
            if pretrained is None or train:
                results = _call(call, bound, model, arguments, train)
            else:
                holder = copy.copy(pretrained)
                holder.params = filled if "params" in pretrained.params else filled["params"]
                results = _call(call, holder, pretrained, arguments, train)
        after = {**_named(filled, name), **_named(bound.updated, name)}
        return results, {path: after[path] for path in buffers}

    def read(loaded: Any) -> Any:
        return _named(_collections(nn.meta.unbox(loaded)), name)

    return JaxProgram("linen", flax_role, arrays, leaves, run, read)


def _collections(variables: Any) -> Any:
    return variables if "params" in variables else {"params": variables}


def _setting_up(dtype: Any, model: Any, train: bool) -> Callable[..., Any]:
    """Make an interceptor that lets every Linen module compute in the run's dtype, those built inside included.

    In a step of training it turns dropout off, which is random.
    """

    def intercept(next_function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if train and isinstance(context.module, nn.Dropout):
            object.__setattr__(context.module, "rate", 0.0)
        _set_dtype(context.module, dtype, model)
        for child in jax.tree.leaves(vars(context.module), is_leaf=lambda x: isinstance(x, nn.Module) or is_mixed(x)):
            if isinstance(child, nn.Module) and child is not context.module.parent:
                _set_dtype(child, dtype, model)  # a cell makes its first state before it is called
        return next_function(*args, **kwargs)

    return intercept


def _set_dtype(module: Any, dtype: Any, model: Any) -> None:
    """Set its fields of float32; in 16 bits a norm keeps the float32 that it asks for, unless the whole model does."""
    keeps = "Norm" in type(module).__name__ and jnp.dtype(dtype).itemsize == 2 and not _is_float32(model, "dtype")
    for name in DTYPE_FIELDS:
        if _is_float32(module, name) and not (keeps and name == "dtype"):
            object.__setattr__(module, name, dtype)  # a Linen module is frozen; this one lives for a call


def _is_float32(module: Any, field: str) -> bool:
    value = getattr(module, field, None)
    with suppress(TypeError):  # it is no dtype
        return value is not None and jnp.dtype(value) == jnp.float32
    return False


# Equinox, and any other callable tree


def _equinox(model: Any, call: Call) -> JaxProgram:
    values = _named(model)
    leaves = {path: Leaf.of(x) for path, x in values.items() if is_floating(x)}
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    own = {_text(path) for path in paths if type(_holder(model, path)).__module__.startswith("equinox.")}

    def role(path: str, role: str) -> str:
        if path in own:  # Equinox stores most as PyTorch does
            return role if role == "transposed convolution" else "straight"
        return flax_role(path.removesuffix(".value"), role)

    def set_other(path: Any, leaf: Any, dtype: Any, train: bool) -> Any:
        if _text(path[-1:]) == "inference" and isinstance(leaf, bool):
            return not train or "Dropout" in type(_holder(model, path)).__name__  # which is random
        if _text(path[-1:]) in DTYPE_FIELDS and leaf is jnp.float32:  # a field that is not static
            return dtype
        is_counter = jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.integer) and getattr(leaf, "weak_type", False)
        return jnp.asarray(leaf.item()) if is_counter else leaf  # in the width of the run

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        module = jax.tree_util.tree_map_with_path(lambda path, x: set_other(path, x, dtype, train), model)
        module = _filled(module, weights, dtype)
        with tapped(module) as module:
            results = _call(call, module, model, arguments, train)
        if not _returns_state(results, model):
            return results, {}
        return results[0], {f"1.{path}": x for path, x in _named(results[1]).items()}

    return JaxProgram("equinox", role, values, leaves, run, _named)


def _holder(held: Any, path: tuple[Any, ...]) -> Any:
    """Return the module that holds a leaf."""
    for key in map(_key, path[:-1]):
        inner = held[key] if isinstance(held, list | tuple | Mapping) else getattr(held, str(key), None)
        if isinstance(inner, nnx.Variable):
            break
        held = inner
    return held


def _returns_state(results: Any, model: Any) -> bool:
    """Whether a pair of module and state returns a pair of results and new state, as `eqx.nn.make_with_state` makes."""
    pairs = all(isinstance(x, tuple) and len(x) == 2 and not jax.tree_util.all_leaves(x[1:]) for x in (results, model))
    structures: list[Any] = [jax.tree.structure(x[1]) for x in (results, model)] if pairs else [0, 1]
    return structures[0] == structures[1]


# Functions


def _function(function: Any, call: Call, variables: Any, torch_leaves: dict[str, Leaf]) -> JaxProgram:
    """Run f(weights, inputs); without `variables` the weights are a dict with PyTorch's names and layouts."""
    named = _named(variables)
    in_order = (_text(path) for path, _ in _as_defined(variables, variables))
    own = {path: Leaf.of(named[path]) for path in in_order if is_floating(named[path])}
    leaves = torch_leaves if variables is None else own

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        args, kwargs = arguments
        tree = dict(weights) if variables is None else _filled(variables, weights, dtype)
        return _call(call, function, function, ((tree, *args) if leaves else args, kwargs), train), {}

    role: Role = flax_role if variables is not None else lambda path, role: "straight"
    return JaxProgram("function", role, named, leaves, run, _named)


def _call(call: Call, module: Any, original: Any, arguments: Arguments, train: bool) -> Any:
    """Call a module with training turned on or off by the arguments that it has for that."""
    args, kwargs = arguments
    function = original if call is None else call
    accepted = list[str]()
    with suppress(TypeError, ValueError):  # it has no signature
        parameters = inspect.signature(function).parameters.values()
        by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        given = by_place[: len(args) + (call is not None)]
        accepted = [p.name for p in parameters if p.name not in given]
    flags = {name: value != train for name, value in EVALUATION.items() if name in accepted}
    flags |= {"deterministic": True} if "deterministic" in flags else {}  # dropout stays off: it is random
    kwargs = {**flags, **kwargs}
    return module(*args, **kwargs) if call is None else call(module, *args, **kwargs)
