"""Move numbers between PyTorch's weights and the parameters of a JAX model, in both directions.

The user writes one function, which loads PyTorch's weights into JAX's parameters. It is called once with weights whose
numbers are their own positions: what comes out says where each number went. So whatever has the form of JAX's
parameters (gradients, moments) is known under PyTorch's names, however kernels are transposed, split or stacked.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

Arrays = dict[str, np.ndarray]


class Layout:
    """Where each number of PyTorch's weights stands in JAX's parameters."""

    def __init__(self, load: Callable[[Arrays], Any], weights: Mapping[str, np.ndarray], same: Mapping[str, str]):
        """Find it by `load` (weights -> parameters); `same` maps each parameter to itself, a tied one to its first."""
        self.shapes = {name: x.shape for name, x in weights.items() if x.dtype.kind == "f"}
        self.first: dict[str, int] = {}
        self.size = 1  # position 0 stands for no number of PyTorch's
        self.names = tuple(name for name in self.shapes if same.get(name, "") == name)
        for name, shape in self.shapes.items():
            self.first[name] = self.first.get(same.get(name, ""), self.size)
            self.size += int(np.prod(shape)) if self.first[name] == self.size else 0
        flat = np.arange(self.size, dtype=np.float64)
        positions = {name: flat[self._slice(name)].reshape(shape) for name, shape in self.shapes.items()}
        with jax.enable_x64(True):
            loaded = jax.tree_util.tree_leaves_with_path(load({**weights, **positions}))
        found = {jax.tree_util.keystr(path): np.asarray(leaf).astype(np.float64) for path, leaf in loaded}
        known = {path: bool(np.isin(x, np.arange(1, self.size)).all()) for path, x in found.items()}
        self.places = {path: x.astype(np.int64) for path, x in found.items() if known[path]}
        self.others = tuple(path for path in found if not known[path])
        """The parameters of JAX that are not PyTorch's weights, moved."""

    def _slice(self, name: str) -> slice:
        return slice(self.first[name], self.first[name] + int(np.prod(self.shapes[name])))

    def to_torch(self, leaves: Mapping[str, np.ndarray], added: bool = False) -> Arrays:
        """Give leaves by path PyTorch's names and layouts.

        A weight that JAX holds twice gets the mean of both; `added`: their sum, as a gradient does.
        """
        places = np.concatenate([self.places[path].ravel() for path in leaves])
        numbers = np.concatenate([leaf.ravel() for leaf in leaves.values()])
        total, count = np.bincount(places, numbers, self.size), np.bincount(places, minlength=self.size)
        flat = (total if added else total / np.maximum(count, 1)).astype(numbers.dtype)
        whole = (name for name in self.names if count[self._slice(name)].all())
        return {name: flat[self._slice(name)].reshape(self.shapes[name]) for name in whole}

    def to_jax(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Give arrays by PyTorch's names the form of JAX's leaves; a leaf of which a number is missing is left out."""
        flat, known = np.zeros(self.size), np.zeros(self.size, bool)
        for name, x in arrays.items():
            flat[self._slice(name)], known[self._slice(name)] = x.ravel(), True
        return {path: flat[place] for path, place in self.places.items() if known[place].all()}
