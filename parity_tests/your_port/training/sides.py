"""Run a training of either framework step by step, and record what each step computes under PyTorch's names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import jax
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from parity_tests.your_port.measure.arrays import Arrays, flatten, is_floating, to_numpy
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.op_by_op import trace
from parity_tests.your_port.measure.torch_side import TORCH_DTYPES, default_dtype, state_in_dtype
from parity_tests.your_port.measure.width import enable_x64
from parity_tests.your_port.weights.positions import Places

StepRecord = dict[str, Arrays]
"""What one step computed: quantity -> tensor -> array. A quantity that is one number has one tensor, called ""."""

TorchStart = Callable[[Mapping[str, torch.Tensor]], tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[Any], Any]]]
"""weights -> (model, optimizer, step), and step(batch) -> what is to be compared."""
JaxStart = Callable[[Mapping[str, np.ndarray]], tuple[Any, Any, Callable[..., Any]]]
"""weights -> (params, opt_state, step), and step(params, opt_state, batch) -> (params, opt_state, what is compared)."""
AroundStep = Callable[["TorchTraining"], Iterator[None]]
"""A generator around a step of PyTorch's optimiser."""

GRADIENTS = ("gradients", "clipped")
MOMENTS = {
    "mu": "exp_avg", "grad_avg": "exp_avg", "nu": "exp_avg_sq", "square_avg": "exp_avg_sq",
    "trace": "momentum_buffer", "sum_of_squares": "sum",
}  # fmt: skip
"""Other names of what an optimiser keeps for each parameter -> the name in a record."""


class _Training:
    """What both sides have."""

    def __init__(self, weights: Mapping[str, np.ndarray]):
        self.weights = weights
        self.records: list[StepRecord] = []
        """Of the steps that were taken."""

    def before(self, number: int) -> Arrays:
        """Return the parameters before a step."""
        return self.records[number - 1]["parameters"] if number else dict(self.weights)


class TorchTraining(_Training):
    """PyTorch's training, recorded as far as it is read."""

    def __init__(self, start: TorchStart, weights: Mapping[str, np.ndarray], batches: Sequence[Any], dtype: str):
        super().__init__(weights)
        self.start, self.batches, self.dtype = start, batches, dtype
        with default_dtype(dtype):
            started = start({name: torch.tensor(x) for name, x in weights.items()})
            self.model, self.optimizer, self.step = _checked(started, "PyTorch's function", "model, optimizer, step")
            state_in_dtype(self.model, TORCH_DTYPES[dtype])
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            kind = type(self.optimizer).__name__
            raise TypeError(f"PyTorch's function must return one optimizer of torch.optim; got {kind}")
        if unknown := [name for name in self.names.values() if name not in weights]:
            raise TypeError(
                f"the model's {unknown[0]} is no name of weights, such as {next(iter(weights))}: return the module "
                "whose state dict they are, and not one around it"
            )
        self.record: StepRecord = {}
        self.read: Callable[[Any], Any] = lambda batch: batch
        """What is read instead of a batch."""
        self.given: Arrays = {}
        """Gradients that are taken instead of its own, as they are before clipping."""
        self.clips = False
        """Whether anything writes into gradients between the backward pass and the optimiser."""
        self._versions: dict[str, int] = {}
        self._runs = False
        """Another training may have the same module, and its hooks."""
        self._taken = set[torch.Tensor]()
        """The parameters that another optimiser has moved in this step, as that of a GAN's discriminator."""
        for parameter in self.names:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._after_backward)
        self._changed, self.changes = ExitStack(), list[AroundStep]()
        """What is done otherwise in each step of the optimiser."""
        self.optimizer.register_step_pre_hook(self._before_update)
        self.optimizer.register_step_post_hook(self._after_update)

    @property
    def tied(self) -> dict[str, str]:
        """The name of each parameter; of the second name of a tied weight, its first."""
        return {name: self.names[p] for name, p in self.model.named_parameters(remove_duplicate=False)}

    @property
    def groups(self) -> list[list[str]]:
        """The names of the parameters of each of the optimiser's groups."""
        return [[self.names[p] for p in group["params"] if p in self.names] for group in self.optimizer.param_groups]

    def __getitem__(self, number: int) -> StepRecord:
        while len(self.records) <= number:
            self.records.append(self.run(self.batches[len(self.records)]))
        return self.records[number]

    def anew(self, weights: Mapping[str, np.ndarray] | None = None, batches: Sequence[Any] = ()) -> Self:
        """Return the same training at its start, by default from the same weights."""
        return type(self)(self.start, self.weights if weights is None else weights, batches, self.dtype)

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Put other numbers into the model."""
        with torch.no_grad():
            for parameter, name in self.names.items():
                if name in parameters:
                    parameter.copy_(torch.tensor(parameters[name]))

    def run(self, batch: Any) -> StepRecord:
        """Train on a batch; return what the step returns, the gradients, the optimiser's state and the parameters."""
        self.record, read = {}, self.read(batch)
        tensors = jax.tree.map(lambda x: torch.tensor(x) if isinstance(x, np.ndarray) else x, read)
        self._taken = set()
        with default_dtype(self.dtype):
            self._runs, hook = True, register_optimizer_step_pre_hook(self._before_other_update)
            try:
                returned = _returned(self.step(tensors), "PyTorch")
            finally:
                self._runs = False
                hook.remove()
        _require_unchanged("PyTorch", read, tensors)
        gradients = self.record.get("gradients", {})  # which came from the outputs back
        if gradients:
            self.record["gradients"] = {name: gradients[name] for name in self.names.values() if name in gradients}
        again = {name for name, first in self.tied.items() if name != first}
        named = {quantity: _named(value).items() for quantity, value in returned.items()}
        found = {quantity: {name: x for name, x in held if name not in again} for quantity, held in named.items()}
        return self.record | self.state() | found

    def state(self) -> StepRecord:
        """Return the optimiser's moments, and the parameters."""
        found: StepRecord = {}
        for parameter, name in self.names.items():
            for quantity, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape and quantity != "step":
                    found.setdefault(MOMENTS.get(quantity, quantity), {})[name] = _copy(value)
        return found | {"parameters": {name: _copy(parameter) for parameter, name in self.names.items()}}

    def _after_backward(self, parameter: torch.Tensor) -> None:
        if not self._runs or parameter in self._taken:
            return  # what later losses add is cleared before it is used
        if (name := self.names[parameter]) in self.given:  # type: ignore[index]
            parameter.grad = torch.tensor(self.given[name])
        self._note_gradient("gradients", parameter)
        self._versions[name] = parameter.grad._version  # type: ignore[union-attr]

    def _note_gradient(self, quantity: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            name = self.names[parameter]  # type: ignore[index]
            self.record.setdefault(quantity, {})[name] = _copy(parameter.grad)

    def _after_update(self, *_: Any) -> None:
        for parameter, name in self.names.items():
            if name not in self.record.get("clipped", {}):  # a closure has computed it meanwhile
                self._note_gradient("clipped", parameter)
        self._changed.close()

    def _before_other_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        own = {p for group in self.optimizer.param_groups for p in group["params"]}
        for p in {p for group in optimizer.param_groups for p in group["params"]} & self.names.keys() - own:
            self._note_gradient("clipped", p)
            self._taken.add(p)

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        has_closure = len(args) > 1 or "closure" in kwargs  # the optimiser itself is the first argument
        for parameter in () if has_closure else [p for p in self.names if p not in self._taken]:
            self._note_gradient("clipped", parameter)
            if parameter.grad is not None:
                self.clips |= parameter.grad._version != self._versions.get(self.names[parameter])
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.record["rates"] = {"": np.array(rates)}
        if len(set(rates)) == 1:
            self.record["learning_rate"] = {"": np.array(rates[0])}
        for change in self.changes:
            self._changed.enter_context(contextmanager(change)(self))


class JaxTraining(_Training):
    """JAX's training from the weights of PyTorch's. It can go on from PyTorch's parameters and moments."""

    def __init__(self, start: JaxStart, beside: TorchTraining, places: Places | None = None):
        super().__init__(beside.weights)
        self.start, self.beside, self.wide = start, beside, beside.dtype == "float64"
        with enable_x64(self.wide):
            started = start({name: x.copy() for name, x in beside.weights.items()})
            self.params, self.opt_state, self.step = _checked(started, "JAX's function", "params, opt_state, step")
        narrow = {x.dtype.name for x in jax.tree.leaves(self.params) if is_floating(x)} - {beside.dtype}
        if narrow:
            raise TypeError(
                f"JAX's parameters are {', '.join(sorted(narrow))}; keep the weights' own dtype, {beside.dtype}"
            )
        self.places = places or Places(lambda weights: start(weights)[0], beside.weights, beside.tied)
        if not self.places.moved:
            raise TypeError("JAX's parameters hold none of the weights")

    def anew(self, beside: TorchTraining) -> Self:
        """Return the same training, from the weights of another one of PyTorch's."""
        return type(self)(self.start, beside, self.places)

    def run(self, batch: Any) -> StepRecord:
        """Train on a batch; return what the step returns, the moments that the state holds, and the parameters."""
        read = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, batch)  # a step may write into it
        with enable_x64(self.wide):
            made = self.step(self.params, self.opt_state, read)
        self.params, self.opt_state, returned = _checked(made, "JAX's step", "params, opt_state, mapping")
        returned = _returned(returned, "JAX")
        _require_unchanged("JAX", batch, read)
        leaves: StepRecord = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(self._trees):
            quantity, parameter = self._place(path, leaf)
            if quantity:
                leaves.setdefault(quantity, {})[parameter] = np.asarray(leaf)
        if "parameters" not in leaves:
            raise TypeError("JAX's step returns params of another form than JAX's function: the same tree is needed")
        record = {quantity: self.places.to_torch(arrays) for quantity, arrays in leaves.items()}
        record |= {quantity: self._read(quantity, value) for quantity, value in returned.items()}
        copies = self._copies(leaves["parameters"], record["parameters"])
        self.records.append(record | ({"copies": copies} if copies else {}))
        return self.records[-1]

    def take_over(self, record: StepRecord) -> None:
        """Go on from the parameters and moments that PyTorch has after as many steps."""
        quantities = [quantity for quantity in (*MOMENTS.values(), "parameters") if quantity in record]
        given = {quantity: self.places.to_jax(record[quantity]) for quantity in quantities}

        def new(path: tuple[Any, ...], leaf: Any) -> Any:
            quantity, parameter = self._place(path, leaf)
            x = given.get(quantity, {}).get(parameter)
            return leaf if x is None else jax.device_put(x.astype(leaf.dtype))

        with enable_x64(self.wide):
            params, self.opt_state = jax.tree_util.tree_map_with_path(new, self._trees)
        self.params = params["parameters"]

    def draws(self, batch: Any) -> bool:
        """Whether the step draws random numbers, as dropout does; False where it cannot be traced."""
        with enable_x64(self.wide):
            try:
                return trace(lambda *given: self.step(*given, batch), self.params, self.opt_state)[0].draws_numbers
            except TypeError:  # it needs the values of its arguments
                return False

    @property
    def _trees(self) -> Any:
        return {"parameters": self.params}, self.opt_state

    def _place(self, path: tuple[Any, ...], leaf: Any) -> tuple[str, str]:
        """Find the quantity that a leaf belongs to, and the path of its parameter; "" where it is of none."""
        for at, key in enumerate(path):
            name = getattr(key, "name", getattr(key, "key", None))
            if not isinstance(name, str):
                continue
            # several optimisers may each have a state, at the place of its parameters: {"generator": …, "critic": …}
            for start in range(1, at + 1 if name in MOMENTS else 2):
                parameter = jax.tree_util.keystr((*path[1:start], *path[at + 1 :]))
                if self.places.has(parameter, leaf):
                    # the trace of Optax's RMSprop has the learning rate in it, and PyTorch's momentum has not
                    scaled = name == "trace" and isinstance(self.beside.optimizer, torch.optim.RMSprop)
                    return name if scaled else MOMENTS.get(name, name), parameter
        return "", ""

    def _copies(self, leaves: Arrays, parameters: Arrays) -> Arrays:
        """Return the parameters of which JAX holds copies that differ, each with what it differs by."""
        means = self.places.to_jax(parameters)
        apart = self.places.to_torch({path: np.abs(leaves[path] - mean) for path, mean in means.items()})
        return {name: parameters[name] + x for name, x in apart.items() if x.any()}

    def _read(self, quantity: str, value: Any) -> Arrays:
        """Give what has the form of the parameters PyTorch's names."""
        leaves = {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(value)}
        known = {path: x for path, x in leaves.items() if self.places.has(path, x)}
        if not known or leaves.keys() - known.keys() - {*self.places.others}:
            named = _named(value)
            if quantity in GRADIENTS and not named.keys() <= self.places.shapes.keys():
                names = ", ".join([*named][:3])
                raise TypeError(f"JAX's {quantity} have neither the form of params nor PyTorch's names: {names} …")
            return named
        return self.places.to_torch(known, added=quantity in GRADIENTS)


def _checked(started: Any, side: str, form: str) -> Any:
    if not (isinstance(started, tuple) and len(started) == 3):
        raise TypeError(f"{side} must return ({form})")
    return started


def _returned(found: Any, side: str) -> dict[str, Any]:
    """Return what a step returns, by name; a step may return nothing."""
    if found is not None and not isinstance(found, Mapping):
        kind = type(found).__name__
        raise TypeError(
            f"{side}'s step must return a mapping of what is compared, such as {{'loss': loss}}; got {kind}"
        )
    return dict(found or {})


def _require_unchanged(side: str, given: Any, read: Any) -> None:
    before = _named(given)
    if any(relative_error(x, before[name]) for name, x in _named(read).items()):
        raise ValueError(f"{side}'s step changes its batch in place; let it work on a copy")


def _named(value: Any) -> Arrays:
    """Name the parts of a value; a single number or array is called ""."""
    parts = {"": value} if jax.tree_util.all_leaves([value]) else flatten(value)[0]
    return {name: _copy(x) for name, x in parts.items() if x is not None and not isinstance(x, str)}


def _copy(value: Any) -> np.ndarray:
    """A copy, since PyTorch goes on to write into its own tensors."""
    return np.array(to_numpy(value.detach()) if isinstance(value, torch.Tensor) else value)
