"""The PyTorch side of `compare`: a module or a function with inputs, checked, and its weights described."""

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from parity_tests.your_port.measure.arrays import flatten, is_floating, plain, to_numpy
from parity_tests.your_port.measure.case import AFTER_A_STEP, Case, TorchSide
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.numbers import Numbers, state_of
from parity_tests.your_port.measure.torch_side import default_dtype, in_dtype, to_tensor
from parity_tests.your_port.weights.original import Inputs, Original, Weight, in_given_order, read_inputs


def read_program(
    program: Any,
    inputs: Any,
    *,
    call: Callable[..., Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    gradients: bool = True,
    name: str = "",
    train: bool = False,
) -> Original:
    """Read a module or a function and its inputs, and see that it can be compared; for the arguments see `compare`.

    Args:
        train: take a step of training, and return the running statistics after it, too.

    Raises:
        ValueError: it cannot; the message says what to do.
    """
    given = read_inputs(inputs, program)
    if not isinstance(weights, Mapping | None):
        raise ValueError(
            f"weights must be a state dict of the PyTorch module; got {weights!r:.80}: read the file first"
        )
    values = None if weights is None else {name: to_numpy(weight) for name, weight in weights.items()}
    is_module = isinstance(program, torch.nn.Module)
    _require_readable(program)
    if values is not None and is_module:
        program = copied(program)
        try:
            program.load_state_dict({name: to_tensor(x, None) for name, x in values.items()})
        except RuntimeError as error:
            raise ValueError(f"weights must be a state dict of the PyTorch module: {error}") from error
    side = torch_side(program, call, given, train=train, gradients=gradients)
    described = describe_weights(program) if is_module else ()
    integers = integers_of(program) if is_module else {}
    name = name or (type(program).__name__ if is_module else getattr(program, "__name__", "function"))
    original = Original(
        f"{name}, a training step" if train else name, side, given, described, values, integers=integers
    )
    draw = original.draw("float64")
    _check_run(draw.case, draw.numbers, given, gradients)
    _check_results(draw, gradients)
    return original


# The program


def torch_side(module: Any, call: Any, given: Inputs, *, train: bool, gradients: bool) -> TorchSide:
    """Make the side that calls the module or the function."""
    is_module = isinstance(module, torch.nn.Module)

    def run(built: Any, inputs: Any, _: Any) -> Any:
        args, kwargs = given.as_arguments(in_given_order(inputs, given.arrays))
        target = built if is_module else module
        if train:  # but without dropout, which is random
            built.train()
            for part in (x for x in built.modules() if isinstance(x, torch.nn.modules.dropout._DropoutNd)):
                part.eval()
        before = {name: x.clone() for name, x in built.named_buffers()} if train else {}
        with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
            results = target(*args, **kwargs) if call is None else call(target, *args, **kwargs)
        if not gradients:  # without a graph, but the program may return its input itself, or a weight
            flat, rebuild = flatten(plain(results))
            results = rebuild({n: x.detach() if getattr(x, "requires_grad", False) else x for n, x in flat.items()})
        if not train:
            return results
        moved = {name: x for name, x in built.named_buffers() if x.is_floating_point() and not x.equal(before[name])}
        return {"result": plain(results), **{f"{name}{AFTER_A_STEP}": x.clone() for name, x in moved.items()}}

    return TorchSide(run, (lambda options, inputs: copied(module).cpu()) if is_module else None)


class _Detaching(TorchFunctionMode):
    """Copy tensors that were computed, such as a weight of `weight_norm` or attention weights that a module keeps."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            x, memo = args
            return memo.setdefault(id(x), x.detach().clone())
        return function(*args, **(kwargs or {}))


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """Copy a module. Functions that it holds, such as hooks, and that know the module get to know the copy."""
    memo: dict[int, Any] = {}
    with _Detaching():
        found = copy.deepcopy(module, memo)

    def renewed(x: Any) -> Any:
        if isinstance(x, MethodType):
            return MethodType(x.__func__, renewed(x.__self__))
        if id(x) in memo or not isinstance(x, FunctionType) or not x.__closure__:
            return memo.get(id(x), x)
        cells = tuple(CellType() for _ in x.__closure__)
        made = memo[id(x)] = FunctionType(x.__code__, x.__globals__, x.__name__, x.__defaults__, cells)
        made.__kwdefaults__ = x.__kwdefaults__
        for cell, before in zip(cells, x.__closure__, strict=True):
            with suppress(ValueError):  # it is empty
                cell.cell_contents = renewed(before.cell_contents)
        return made

    for part in found.modules():
        for held in (vars(part), *(x for x in vars(part).values() if isinstance(x, dict))):  # hooks are in dicts
            held.update({key: renewed(x) for key, x in held.items() if isinstance(x, FunctionType)})
    return found


# The weights


def describe_weights(module: torch.nn.Module) -> tuple[Weight, ...]:
    """Describe every parameter, under each of its names, and every floating buffer, in order of definition."""
    parameters = {n: x for n, x in module.named_parameters(remove_duplicate=False) if x.is_floating_point()}
    state = {name: x for name, x in state_of(module).items() if x.is_floating_point()}
    held = parameters | dict(module.named_buffers(remove_duplicate=False))
    first = {id(x): name for name, x in (*module.named_parameters(), *module.named_buffers())}
    described = []
    for name, tensor in {**parameters, **state}.items():
        part, own = module.get_submodule(name.rpartition(".")[0]), first.get(id(held.get(name)), name)
        of_layer = next(role for role, kinds in ROLES.items() if isinstance(part, kinds))
        role = of_layer if tensor.ndim > 1 else "unknown"  # a bias stands as it is, whatever its layer
        dtype = str(tensor.dtype).removeprefix("torch.")
        described.append(Weight(name, tuple(tensor.shape), own, role, name not in parameters, dtype))
    return tuple(described)


def integers_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the integers and booleans of a module's state, by name."""
    others = (torch.is_floating_point, torch.is_complex, lambda x: x.is_quantized)
    return {name: to_numpy(x) for name, x in state_of(module).items() if not any(test(x) for test in others)}


ROLES: dict[str, Any] = {
    "transposed convolution": torch.nn.modules.conv._ConvTransposeNd,
    "convolution": torch.nn.modules.conv._ConvNd,
    "embedding": (torch.nn.Embedding, torch.nn.EmbeddingBag),
    "linear": (torch.nn.Linear, torch.nn.MultiheadAttention, torch.nn.RNNBase, torch.nn.RNNCellBase),
    "unknown": torch.nn.Module,
}


# Checks: what cannot be compared is an error that says what to do


def _require_readable(program: Any) -> None:
    """Raise ValueError for what is compiled, or has no numbers: it cannot be copied, converted and looked into."""
    parts = [*program.modules()] if isinstance(program, torch.nn.Module) else [program]
    tensors = [
        x for part in parts[: isinstance(program, torch.nn.Module)] for x in (*part.parameters(), *part.buffers())
    ]
    if any(map(torch.nn.parameter.is_lazy, tensors)):
        raise ValueError("PyTorch's module is lazy and has no weights yet: call it once before")
    if any(x.is_meta for x in tensors):
        raise ValueError("PyTorch's module is on the device meta and has no numbers: module.to_empty(device='cpu')")
    if any(hasattr(part, name) for part in parts for name in ("_orig_mod", "_torchdynamo_orig_callable")):
        raise ValueError("PyTorch's side is compiled by torch.compile: give the module or function itself")
    if any(isinstance(part, torch.jit.ScriptModule | torch.jit.ScriptFunction) for part in parts):
        raise ValueError("PyTorch's side is one of TorchScript: give the module or function from which it was made")


def _check_run(case: Case, numbers: Numbers, given: Inputs, gradients: bool) -> None:
    """Raise ValueError if PyTorch cannot be run, returns what is no tensor, or writes into its inputs."""
    tensors = {name: to_tensor(x, "float64") for name, x in numbers.inputs.items()}
    before = {name: x.clone() for name, x in tensors.items() if x is not None}
    differentiated = numbers.differentiated if gradients else ()
    for name in differentiated:  # as in a run, but no leaf: what is written in place is said below
        tensors[name] = tensors[name].requires_grad_().clone()
    module = None if case.torch.build is None else case.torch.build({}, {}).eval()
    state = {} if module is None else state_of(module)
    _require_real(state, "leave it out, or keep its two parts as two parameters")
    _require_real(tensors, "give its real and its imaginary part")
    module = module and in_dtype(module, torch.float64)
    try:
        with default_dtype("float64"):
            results = case.torch.call(module, numbers.rebuild(tensors), {})
    except Exception as error:
        advice = f"If it needs other arguments, give them in inputs, or torch_call=lambda {given.parameters}: …"
        if module is None:  # what a function holds is not converted
            advice += " If the function calls a module, give that instead, and the call as torch_call"
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"PyTorch's module cannot be run in float64 on these inputs: {reason}. {advice}") from error
    named = flatten(plain(results))[0]
    if all(x is None for x in named.values()):
        raise ValueError("PyTorch returns no tensor: return the tensors to be compared by torch_call and jax_call")
    for name, x in named.items():
        if x is not None and not isinstance(x, torch.Tensor):
            raise ValueError(f"PyTorch's {name} is no tensor but {type(x).__name__}: leave it out by torch_call")
        _require_real({name: x}, "return its real and its imaginary part by torch_call and jax_call")
    for name, x in before.items():
        is_written = name in differentiated and tensors[name]._version > 0
        if is_written or not torch.equal(torch.nan_to_num(tensors[name]), torch.nan_to_num(x)):
            first = name.partition(".")[0]
            names = given.positional or (*given.others, *given.arrays)
            passed = {x: f"{x}.clone()" if x == first == name else x for x in names}
            call = ", ".join(passed.values() if given.positional else (f"{x}={text}" for x, text in passed.items()))
            raise ValueError(
                f"PyTorch's module changes its input {name} in place, so its gradient has no meaning. Give it a copy: "
                f"torch_call=lambda module, {', '.join(passed)}: module({call})"
            )


def _require_real(tensors: Mapping[str, Any], remedy: str) -> None:
    """Raise ValueError for a complex tensor, which would be cast to its real part."""
    for name, x in tensors.items():
        if x is not None and x.is_complex():
            raise ValueError(f"PyTorch's {name} is complex, and only real numbers are compared: {remedy}")


def _check_results(draw: Draw, gradients: bool) -> None:
    """Run PyTorch alone, twice: raise ValueError for random layers, NaN, and no gradient."""
    run, repeated = draw.in_torch(), draw.on(draw.numbers).in_torch().tensors
    for name, x in run.tensors.items():
        again: Any = repeated[name]
        if x is None:
            continue
        if not np.array_equal(x, again, equal_nan=is_floating(x)):
            raise ValueError(
                f"PyTorch's {name} is not the same in two runs on the same numbers: a random layer, such as "
                "dropout, is on. Set its probability to 0, or turn it off in torch_call"
            )
    run.require_defined()
    if gradients and (draw.numbers.weights or draw.numbers.differentiated) and not run.gradients:
        raise ValueError(
            "no result of PyTorch has a gradient path to a weight or an input: torch.no_grad, detach or integer "
            "results. Return what is before them by torch_call and jax_call, or compare results alone: gradients=False"
        )
