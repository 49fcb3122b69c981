"""The kinds of JAX modules: what their weights are called, and how to call them with weights in place.

A module is made for one dtype and is run in others. So its weights are replaced by those of the run, its other floating
variables are cast, and where it has a field `dtype` or `param_dtype` of float32, that is set to the run's dtype.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from parity_tests.your_port.measure.jax_side import Applied
from parity_tests.your_port.place.taps import tapped
from parity_tests.your_port.weights.original import Arguments
from parity_tests.your_port.weights.weight_map import Leaf

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Port:
    """A JAX program with named weights."""

    kind: str
    model: Any
    leaves: dict[str, Leaf]
    """Its weights by their JAX names, in order of definition."""
    run: Callable[[Arrays, Arguments, Any, bool], tuple[Any, dict[str, Any]]]
    """(weights, arguments, dtype, whether it trains) -> the results, and the running statistics afterwards."""
    cast: str = ""
    """How it comes to run in another dtype, in words."""


Call = Callable[..., Any] | None

EVALUATION = {
    **dict.fromkeys(("train", "training", "is_training"), False),
    **dict.fromkeys(("deterministic", "use_running_average", "inference"), True),
}
"""Arguments that turn training off, under the names that libraries use."""


def make_port(model: Any, call: Call, variables: Any, arguments: Arguments, torch_leaves: dict[str, Leaf]) -> Port:
    """Choose the kind by the object."""
    if isinstance(model, nnx.Module):
        return _nnx(model, call)
    if isinstance(model, nn.Module):
        return _linen(model, call, variables, arguments)
    if not callable(model) and call is None:
        raise TypeError(
            "jax_module must be a module of Flax NNX, Flax Linen or Equinox, or a function of (weights, inputs); "
            f"got {type(model).__name__}. Something else needs jax_call=lambda module, inputs: ..."
        )
    if not jax.tree_util.all_leaves([model]):
        return _pytree(model, call)
    return _function(model, call, variables, torch_leaves)


def _nnx(model: nnx.Module, call: Call) -> Port:
    graph, state = nnx.split(model)
    variables = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    leaves = {
        path: Leaf(tuple(variable.shape), not isinstance(variable, nnx.Param))
        for path, variable in variables.items()
        if jnp.issubdtype(variable.dtype, jnp.floating)
    }

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        flat = [
            (path, _replaced(v, weights.get(".".join(map(str, path))), dtype)) for path, v in nnx.to_flat_state(state)
        ]
        module = nnx.merge(graph, nnx.from_flat_state(flat))
        module.set_attributes(deterministic=True, use_running_average=not train, raise_if_not_found=False)
        for _, part in nnx.iter_modules(module):
            _set_dtype(part, dtype)
        with tapped(module) as module:
            results = _call(call, module, model, arguments, train)
        after = {".".join(map(str, path)): v for path, v in nnx.to_flat_state(nnx.state(module))}
        return results, {path: after[path][...] for path, leaf in leaves.items() if leaf.is_buffer}

    fields = any(_dtype_fields(part) for _, part in nnx.iter_modules(model))
    return Port("nnx", model, leaves, run, "its weights are cast" + " and its dtype fields set" * fields)


def _replaced(variable: Any, weight: Any, dtype: Any) -> Any:
    if weight is not None:
        return variable.replace(weight.astype(dtype))
    if jnp.issubdtype(variable.dtype, jnp.floating):
        return variable.replace(variable[...].astype(dtype))
    return variable.replace(variable[...])  # a copy, which belongs to the present trace


def _linen(model: nn.Module, call: Call, variables: Any, arguments: Arguments) -> Port:
    args, kwargs = arguments
    order: list[tuple[str, ...]] = []

    def initialise(*args: Any, **kwargs: Any) -> Any:
        def enter(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return _call(call, module, model, (args, kwargs), False)

        keys = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
        created = model.init(keys, *args, **kwargs, method=enter)
        order.extend(flatten_dict(created))
        return created

    if variables is None:
        variables = jax.eval_shape(initialise, *args, **kwargs)
    elif not {"params"} & set(variables):
        variables = {"params": variables}
    flat = flatten_dict(variables)
    flat = {path: flat[path] for path in order or flat}
    names = {path: ".".join(path[1:]) for path in flat}
    leaves = {names[path]: Leaf(tuple(x.shape), path[0] != "params") for path, x in flat.items()}
    collections = [name for name in variables if name != "params"]

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        filled = {path: weights[names[path]].astype(dtype) if names[path] in weights else x for path, x in flat.items()}
        unknown = [names[path] for path, x in filled.items() if isinstance(x, jax.ShapeDtypeStruct)]
        if unknown:
            raise ValueError(f"JAX keeps its own value of {', '.join(unknown)}: give the module's variables=")
        bound = Applied(model, unflatten_dict(filled), collections if train else [])
        with nn.intercept_methods(_setting_dtype(dtype)):
            results = _call(call, bound, model, arguments, train)
        after = {**filled, **flatten_dict(bound.updated)}
        return results, {names[path]: x for path, x in after.items() if path[0] != "params"}

    return Port("linen", model, leaves, run, "its weights are cast and its dtype fields set")


def _setting_dtype(dtype: Any) -> Callable[..., Any]:
    """Make an interceptor that lets every Linen module compute in the run's dtype, those built inside included."""

    def intercept(next_function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        _set_dtype(context.module, dtype)
        for child in jax.tree.leaves(vars(context.module), is_leaf=lambda x: isinstance(x, nn.Module)):
            if isinstance(child, nn.Module) and child is not context.module.parent:
                _set_dtype(child, dtype)  # a cell makes its first state before it is called
        return next_function(*args, **kwargs)

    return intercept


def _dtype_fields(module: Any) -> list[str]:
    return [name for name in ("dtype", "param_dtype") if _is_float32(getattr(module, name, None))]


def _set_dtype(module: Any, dtype: Any) -> None:
    for name in _dtype_fields(module):
        object.__setattr__(module, name, dtype)  # a Linen module is frozen; this one lives for a call


def _is_float32(value: Any) -> bool:
    try:
        return value is not None and jnp.dtype(value) == jnp.float32
    except TypeError:
        return False


def _pytree(model: Any, call: Call) -> Port:
    """Run an Equinox module, or any other callable pytree."""
    paths, structure = jax.tree_util.tree_flatten_with_path(model)
    named = {_path_text(path): leaf for path, leaf in paths}
    leaves = {
        path: Leaf(tuple(x.shape))
        for path, x in named.items()
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
    }

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        filled = []
        for path, leaf in named.items():
            if path in leaves:
                leaf = weights.get(path, leaf).astype(dtype)
            elif path.rpartition(".")[2] == "inference" and isinstance(leaf, bool):
                leaf = not train
            elif isinstance(leaf, jax.Array) and leaf.weak_type:
                leaf = jnp.asarray(leaf.item())  # a counter in the width of the run
            filled.append(leaf)
        module = jax.tree_util.tree_unflatten(structure, filled)
        with tapped(module) as module:
            results = _call(call, module, model, arguments, train)
        if not _returns_state(results, model):
            return results, {}
        after = jax.tree_util.tree_flatten_with_path(results[1])[0]
        return results[0], {f"1.{_path_text(path)}": x for path, x in after}

    return Port("equinox", model, leaves, run, "its weights are cast")


def _returns_state(results: Any, model: Any) -> bool:
    """Whether a pair of module and state returns a pair of results and new state, as `eqx.nn.make_with_state` makes."""
    pairs = all(isinstance(x, tuple) and len(x) == 2 for x in (results, model))
    structures: list[Any] = [jax.tree.structure(x[1]) for x in (results, model)] if pairs else [0, 1]
    return structures[0] == structures[1]


def _path_text(path: tuple[Any, ...]) -> str:
    keys = (str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)
    return ".".join(re.sub(r"[^\w*-]", "", key) for key in keys)


def _function(function: Any, call: Call, variables: Any, torch_leaves: dict[str, Leaf]) -> Port:
    """Run f(weights, inputs); without `variables` the weights are a dict with PyTorch's names and layouts."""
    paths, structure = jax.tree_util.tree_flatten_with_path(variables)
    leaves = torch_leaves if variables is None else {_path_text(path): Leaf(np.shape(x)) for path, x in paths}

    def run(weights: Arrays, arguments: Arguments, dtype: Any, train: bool) -> tuple[Any, dict[str, Any]]:
        args, kwargs = arguments
        tree = dict(weights)
        if variables is not None:
            tree = jax.tree_util.tree_unflatten(structure, [weights[path] for path in leaves])
        return _call(call, function, function, ((tree, *args) if leaves else args, kwargs), train), {}

    return Port("identity" if variables is None else "function", function, leaves, run, "its weights are cast")


def _call(call: Call, module: Any, original: Any, arguments: Arguments, train: bool) -> Any:
    """Call a module with training turned on or off by the arguments that it has for that."""
    args, kwargs = arguments
    function = original if call is None else call
    flags = {name: value != train for name, value in EVALUATION.items() if _accepts(function, name)}
    flags |= {"deterministic": True} if "deterministic" in flags else {}  # dropout stays off: it is random
    kwargs = {**flags, **kwargs}
    return module(*args, **kwargs) if call is None else call(module, *args, **kwargs)


def _accepts(function: Any, name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
