"""Run a training of either framework step by step, and record what each step computes under PyTorch's names."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import jax
import numpy as np
import torch

from parity_tests.your_port.measure.arrays import to_numpy
from parity_tests.your_port.measure.programs import draws_numbers
from parity_tests.your_port.measure.torch_side import TORCH_DTYPES, default_dtype
from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.weights.positions import Arrays, Layout

Record = dict[str, Arrays]
"""What one step computed: quantity -> tensor -> array. A quantity that is one number has one tensor, called ""."""

TorchStart = Callable[[Mapping[str, torch.Tensor]], tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[Any], Any]]]
"""weights -> (model, optimizer, step), and step(batch) -> what is to be compared."""
JaxStart = Callable[[Mapping[str, np.ndarray]], tuple[Any, Any, Callable[..., Any]]]
"""weights -> (params, opt_state, step), and step(params, opt_state, batch) -> (params, opt_state, what is compared)."""

MOMENTS = {"mu": ("exp_avg",), "nu": ("exp_avg_sq", "square_avg"), "trace": ("momentum_buffer",)}
MOMENTS["sum_of_squares"] = ("sum",)
"""Optax's names -> PyTorch's. Everything else in the optimiser's state has one name in both.

But the `trace` of Optax's RMSprop has the learning rate in it, and the momentum of PyTorch's has not.
"""


class TorchTraining:
    """PyTorch's training, recorded as far as it is read."""

    def __init__(self, start: TorchStart, weights: Mapping[str, np.ndarray], batches: Sequence[Any], dtype: str):
        self.start, self.weights, self.batches, self.dtype = start, weights, batches, dtype
        self.records: list[Record] = []
        with default_dtype(dtype):
            started = start({name: torch.tensor(x) for name, x in weights.items()})
            if not (isinstance(started, tuple) and len(started) == 3):
                raise TypeError("PyTorch's function must return (model, optimizer, step)")
            self.model, self.optimizer, self.step = started
            self.model.to(TORCH_DTYPES[dtype])
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.record: Record = {}
        self.given: Arrays = {}
        """Gradients that are taken in the place of its own, as they are before clipping."""
        for parameter in self.names:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._after_backward)
        self.optimizer.register_step_pre_hook(self._before_update)

    @property
    def tied(self) -> dict[str, str]:
        """The name of each parameter; of the second name of a tied weight, its first."""
        return {name: self.names[p] for name, p in self.model.named_parameters(remove_duplicate=False)}

    def __getitem__(self, number: int) -> Record:
        while len(self.records) <= number:
            self.records.append(self.run(self.batches[len(self.records)]))
        return self.records[number]

    def anew(self, weights: Mapping[str, np.ndarray] | None = None, batches: Sequence[Any] = ()) -> "TorchTraining":
        """Return the same training at its start, by default from the same weights."""
        return TorchTraining(self.start, self.weights if weights is None else weights, batches, self.dtype)

    def before(self, number: int) -> Arrays:
        """Return the parameters before a step."""
        return self[number - 1]["parameters"] if number else {name: self.weights[name] for name in self.names.values()}

    def set_parameters(self, parameters: Arrays) -> None:
        """Put other numbers into the model."""
        with torch.no_grad():
            for parameter, name in self.names.items():
                parameter.copy_(torch.tensor(parameters[name]))

    def run(self, batch: Any) -> Record:
        """Train on a batch; record what the step returns, the gradients, the optimiser's state and the parameters."""
        self.record = {}
        tensors = jax.tree.map(lambda x: torch.tensor(x) if isinstance(x, np.ndarray) else x, batch)
        read = digest(tensors)
        with default_dtype(self.dtype):
            returned = dict(self.step(tensors))
        if digest(tensors) != read:
            raise ValueError("PyTorch's step changes its batch in place; let it work on a copy")
        gradients = self.record.get("gradients", {})  # which came from the outputs back
        self.record["gradients"] = {name: gradients[name] for name in self.names.values() if name in gradients}
        self.record |= self.state()
        return self.record | {quantity: _named(quantity, value) for quantity, value in returned.items()}

    def state(self) -> Record:
        """Return the optimiser's moments, and the parameters."""
        found: Record = {}
        for parameter, name in self.names.items():
            for quantity, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape and quantity != "step":
                    found.setdefault(quantity, {})[name] = _copy(value)
        return found | {"parameters": {name: _copy(parameter) for parameter, name in self.names.items()}}

    def _after_backward(self, parameter: torch.Tensor) -> None:
        if (name := self.names[parameter]) in self.given:  # type: ignore[index]
            parameter.grad = torch.tensor(self.given[name])
        self._note_gradient("gradients", parameter)

    def _note_gradient(self, quantity: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            name = self.names[parameter]  # type: ignore[index]
            self.record.setdefault(quantity, {})[name] = _copy(parameter.grad)

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in self.names:
            self._note_gradient("clipped", parameter)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.record["rates"] = {"": np.array(rates)}
        if len(set(rates)) == 1:
            self.record["learning_rate"] = {"": np.array(rates[0])}


class JaxTraining:
    """JAX's training, which can go on from PyTorch's parameters and moments."""

    def __init__(self, start: JaxStart, in_torch: TorchTraining):
        weights, dtype = in_torch.weights, in_torch.dtype
        self.start, self.scaled_trace = start, isinstance(in_torch.optimizer, torch.optim.RMSprop)
        self.wide, self.frozen = dtype == "float64", {name for p, name in in_torch.names.items() if not p.requires_grad}
        with jax.enable_x64(self.wide):
            started = start(dict(weights))
            if not (isinstance(started, tuple) and len(started) == 3):
                raise TypeError("JAX's function must return (params, opt_state, step)")
            *self.first, self.first_step = started
        narrow = {leaf.dtype.name for leaf in jax.tree.leaves(self.first[0]) if leaf.dtype.kind == "f"} - {dtype}
        if narrow:
            raise TypeError(f"JAX's parameters are {', '.join(sorted(narrow))}; keep the weights' own dtype, {dtype}")
        self.own: set[str] = set()
        """The quantities that the step returns in another form than its state has them, such as a corrected average."""
        self.layout = Layout(lambda weights: start(weights)[0], weights, in_torch.tied)
        self.restart()

    def restart(self, weights: Mapping[str, np.ndarray] | None = None) -> None:
        """Go back to the first step, or start from other weights.

        The state is copied, since a step may donate its arguments.
        """
        with jax.enable_x64(self.wide):
            (*first, self.step) = (*self.first, self.first_step) if weights is None else self.start(dict(weights))
            self.params, self.opt_state = jax.tree.map(_new, tuple(first))

    def run(self, batch: Any) -> Record:
        """Train on a batch; record what the step returns, the moments that the state holds, and the parameters."""
        with jax.enable_x64(self.wide):
            self.params, self.opt_state, returned = self.step(self.params, self.opt_state, batch)
        read = {quantity: self._read(quantity, value) for quantity, value in returned.items()}
        parameters = self._read("parameters", self.params)
        state = self._state()
        self.own = {q for q in read.keys() & state.keys() if _differ(read[q], state[q])}
        return state | read | {"parameters": parameters} | self._copies(parameters)

    def _state(self) -> Record:
        """Return the moments that the optimiser's state holds."""
        record: Record = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.opt_state):
            for quantity, parameter in self._moments(path, leaf):
                record.setdefault(quantity, {})[parameter] = np.asarray(leaf)
        return {quantity: self._trained(self.layout.to_torch(leaves)) for quantity, leaves in record.items()}

    def _trained(self, arrays: Arrays) -> Arrays:
        """Leave out what belongs to frozen parameters: PyTorch has no gradients of them, and no moments."""
        return {name: x for name, x in arrays.items() if name not in self.frozen}

    def _copies(self, parameters: Arrays) -> Record:
        """Return the parameters of which JAX holds copies that differ, each with what it differs by."""
        means = self.layout.to_jax(parameters)
        leaves = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(self.params)}
        apart = {path: np.abs(np.asarray(leaves[path]) - mean) for path, mean in means.items()}
        apart = self.layout.to_torch(apart) if any(x.any() for x in apart.values()) else {}
        copies = {name: parameters[name] + x for name, x in apart.items() if x.any() and name in parameters}
        return {"copies": copies} if copies else {}

    def draws(self, batch: Any) -> bool:
        """Whether the step draws random numbers, as dropout does; False where it cannot be traced."""
        with jax.enable_x64(self.wide):
            try:
                program = jax.make_jaxpr(lambda params, state: self.step(params, state, batch))(*self.first)
            except TypeError:  # it needs the values of its arguments
                return False
        return draws_numbers(program)

    def take_over(self, record: Record) -> None:
        """Go on from the parameters and moments that PyTorch has after as many steps."""
        given = {
            quantity: self.layout.to_jax(arrays)
            for quantity, arrays in record.items()
            if arrays.keys() <= self.layout.shapes.keys() and quantity not in self.own
        }

        def put(quantities: list[tuple[str, str]], leaf: Any) -> Any:
            new = [given[quantity][at] for quantity, at in quantities if at in given.get(quantity, {})]
            return jax.device_put(new[0].astype(leaf.dtype)) if new else leaf

        in_tree = jax.tree_util.tree_map_with_path
        with jax.enable_x64(self.wide):
            self.params = in_tree(lambda p, x: put([("parameters", jax.tree_util.keystr(p))], x), self.params)
            self.opt_state = in_tree(lambda p, x: put(self._moments(p, x), x), self.opt_state)

    def _moments(self, path: tuple[Any, ...], leaf: Any) -> list[tuple[str, str]]:
        """PyTorch's names of a leaf of the optimiser's state that belongs to a parameter, and that parameter's path."""
        for at, key in enumerate(path):
            parameter, name = jax.tree_util.keystr(path[at + 1 :]), getattr(key, "name", getattr(key, "key", None))
            if parameter in self.layout.places and isinstance(name, str):
                known = () if name == "trace" and self.scaled_trace else MOMENTS.get(name, (name,))
                return [
                    (quantity, parameter) for quantity in known if self.layout.places[parameter].shape == np.shape(leaf)
                ]
        return []

    def _read(self, quantity: str, value: Any) -> Arrays:
        leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(value)}
        if leaves and leaves.keys() <= self.layout.places.keys():
            arrays = {path: np.asarray(leaf) for path, leaf in leaves.items()}
            is_gradient = quantity in ("gradients", "clipped")
            found = self.layout.to_torch(arrays, added=is_gradient)
            return self._trained(found) if is_gradient else found
        return _named(quantity, value, without=self.layout.others)


def _named(quantity: str, value: Any, without: Sequence[str] = ()) -> Arrays:
    if quantity == "batch":
        return {"": np.frombuffer(digest(value), np.uint8)}
    if not isinstance(value, Mapping):
        return {"": _copy(value)}
    return {name: _copy(x) for name, x in value.items() if x is not None}


def _differ(a: Arrays, b: Arrays) -> bool:
    return any(not np.array_equal(a[name], b[name]) for name in a.keys() & b.keys())


def _new(x: Any) -> Any:
    """Copy a JAX array by way of NumPy: JAX's own copy compiles a program for each shape."""
    plain = isinstance(x, jax.Array) and not jax.numpy.issubdtype(x.dtype, jax.dtypes.extended)
    return jax.device_put(np.array(x)) if plain else x


def _copy(value: Any) -> np.ndarray:
    """A copy, since PyTorch goes on to write into its own tensors."""
    return np.array(to_numpy(value.detach()) if isinstance(value, torch.Tensor) else value)


def digest(batch: Any) -> bytes:
    """Hash the numbers of a batch, whichever framework holds them. Integers of any width count as the same."""
    whole = sha256()
    for name, leaf in sorted(flatten(batch)[0].items()):
        x = np.asarray(_copy(leaf))
        x = x.astype(np.float64 if x.dtype.kind == "f" else np.int64) if x.dtype.kind in "fiub" else x
        whole.update(f"{name} {x.shape}".encode() + x.tobytes())
    return whole.digest()
