"""A model that generates, run on its prompts in one of the two frameworks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.your_port.generation.decoder import Decoder
from parity_tests.your_port.measure.arrays import is_floating, to_numpy
from parity_tests.your_port.measure.torch_side import TORCH_DTYPES, Observer, default_dtype, in_dtype
from parity_tests.your_port.measure.width import enable_x64
from parity_tests.your_port.weights.torch_program import copied


@dataclass(frozen=True)
class Side:
    """A decoder with its prompts, in the arrays of its framework."""

    name: str
    decoder: Decoder
    inputs: Mapping[str, Any]
    dtype: str
    as_array: Callable[[np.ndarray], Any]
    context: Callable[[], AbstractContextManager[Any]]
    observer: Observer | None = None

    @classmethod
    def of_torch(
        cls, decoder: Decoder, inputs: Mapping[str, np.ndarray], module: Any, dtype: str, moved_by: Any = None
    ) -> "Side":
        """Copy the module in a dtype; with `moved_by`, (unit, seed), each weight is moved by a unit at random."""
        module = in_dtype(copied(module).eval(), TORCH_DTYPES[dtype])
        if moved_by is not None:
            unit, draw = moved_by
            generator = torch.Generator().manual_seed(draw)
            with torch.no_grad():
                for x in module.parameters():
                    x.mul_(1 + unit * torch.randint(-1, 2, x.shape, generator=generator))

        functions = Decoder(*(partial(f, module) for f in (decoder.prefill, decoder.step, decoder.full)))

        observer = Observer()

        @contextmanager
        def context() -> Iterator[None]:
            with torch.no_grad(), default_dtype(dtype), observer:
                yield

        def as_tensor(x: np.ndarray) -> torch.Tensor:
            if is_floating(x):
                return torch.tensor(x).to(TORCH_DTYPES[dtype])
            return torch.tensor(x if x.dtype == bool else x.astype(np.int64))

        given = {key: as_tensor(x) for key, x in inputs.items()}
        return cls("PyTorch", functions, given, dtype, as_tensor, context, observer)

    @classmethod
    def of_jax(cls, decoder: Decoder, inputs: Mapping[str, np.ndarray], dtype: str) -> "Side":
        def context() -> AbstractContextManager[Any]:
            return enable_x64(dtype == "float64")

        def as_array(x: np.ndarray) -> Any:
            return jnp.asarray(x, jnp.dtype(dtype) if is_floating(x) else bool if x.dtype == bool else jnp.int32)

        with context():
            given = {key: as_array(x) for key, x in inputs.items()}
        return cls("JAX", decoder, given, dtype, as_array, context)

    @property
    def is_narrow_inside(self) -> bool:
        """Whether PyTorch computed something in float32, whatever the dtype of the run."""
        return self.observer is not None and self.observer.saw_float32

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            with self.context():
                return getattr(self.decoder, function)(*arguments)
        except Exception as error:
            raise ValueError(f"{self.name}'s {function} raised {type(error).__name__}: {error}") from error

    def _logits(self, function: str, logits: Any, *shape: int) -> np.ndarray:
        found = to_numpy(logits)
        is_other_dtype = self.observer is None and str(found.dtype) != self.dtype  # PyTorch's may end in float32
        if found.ndim != len(shape) + 1 or found.shape[:-1] != shape or is_other_dtype:
            sizes = ", ".join(map(str, (*shape, "vocabulary")))
            raise ValueError(
                f"{self.name}'s {function} must return logits [{sizes}] in {self.dtype}; "
                f"got {list(found.shape)} in {found.dtype}"
            )
        wide = found.astype(np.float64)
        if self.observer is not None and (undefined := np.isnan(wide.reshape(len(wide), -1)).any(1)).any():
            raise ValueError(
                f"{self.name}'s {function} in {self.dtype} has NaN for prompt {undefined.argmax()}. If a mask hides a "
                "whole row, as padding on the left does, give a model of transformers attn_implementation='sdpa'"
            )
        return wide

    @property
    def _prompts(self) -> int:
        return len(next(iter(self.inputs.values())))

    def full(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits [B, n + 1, N] without a cache, given new tokens [B, n]."""
        made = self._call("full", self.inputs, self.as_array(tokens))
        return self._logits("full", made, self._prompts, tokens.shape[1] + 1)

    def steps(self, choose: Callable[[int, np.ndarray], np.ndarray], count: int) -> Iterator[np.ndarray]:
        """Yield the logits [B, N] of `count` tokens, given the number and logits of each -> what is chosen."""
        logits, cache = self._call("prefill", self.inputs)
        for number in range(count):
            yield (found := self._logits("step" if number else "prefill", logits, self._prompts))
            if number < count - 1:
                logits, cache = self._call("step", self.as_array(choose(number, found)), cache)

    def stepped(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits [B, n + 1, N] of prefill and steps, given new tokens [B, n]."""
        return np.stack([*self.steps(lambda number, _: tokens[:, number], tokens.shape[1] + 1)], 1)

    def greedy(self, count: int) -> np.ndarray:
        """Return the likeliest tokens [B, n], one after the other."""
        return np.stack([x.argmax(-1) for x in self.steps(lambda _, logits: logits.argmax(-1), count)], 1)

    def generated(self, count: int) -> np.ndarray:
        """Return what the side's own loop generates."""
        tokens = to_numpy(self._call("generate", self.inputs, count))
        if tokens.ndim != 2 or len(tokens) != self._prompts or not 0 < tokens.shape[1] <= count:
            raise ValueError(
                f"{self.name}'s generate must return tokens [{self._prompts}, up to {count}]; got {list(tokens.shape)}"
            )
        return tokens
