"""Compare two models that generate, token by token: `compare_generation`. This module imports torch.

Full forward passes, steps with a cache, and free-running generation are three programs of one model, and each may be
wrong alone. All are held to PyTorch's full forward pass in float64, on the tokens that it chooses itself. With u the
unit roundoff of the run's dtype, a logit may be off by

    float64     1e-10 size
    narrower    8 u size + 2 e

where size is the largest logit of the position, and e the most that PyTorch's own logits are off there: in this dtype,
or in float64 with each weight moved by u at random. Where a router's choice is within rounding, e is as large as the
jump. Logits that a softmax makes 0, such as the −1e9 of a token that is never to be chosen, count as equal, and not as
a size. In free-running generation, another token is a tie if PyTorch's logits of the two are within twice the bound.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.your_port.measure.arrays import is_floating, to_numpy
from parity_tests.your_port.measure.errors import unit_roundoff
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.torch_side import TORCH_DTYPES, Observer, default_dtype
from parity_tests.your_port.measure.width import enable_x64, own_tables
from parity_tests.your_port.record import Findings

MOVED_RUNS = 3
REACH = 745.0
"""How far below the largest logit of a position a probability is above 0, in float64."""
FULL, STEPS, FREE, OWN = "full forward", "prefill and steps", "free-running", "generate"


@dataclass(frozen=True)
class Decoder:
    """A model that generates, as functions: of PyTorch's tensors on one side, of JAX's arrays on the other.

    B prompts get up to n new tokens, each of N that there are. For PyTorch, the module is the first argument of each.
    """

    prefill: Callable[..., Any]
    """(inputs) -> logits of the first new token [B, N], and a cache."""
    step: Callable[..., Any]
    """(tokens [B], cache) -> logits of the next tokens [B, N], and the cache."""
    full: Callable[..., Any]
    """(inputs, new tokens [B, n]) -> logits [B, n + 1, N] without a cache; entry t belongs to new token t."""
    generate: Callable[..., Any] | None = None
    """(inputs, n) -> the likeliest tokens [B, at most n], one after the other, by a loop of its own."""


@own_tables(has_tables=True)
def compare_generation(
    torch_side: Any,
    jax_side: Decoder,
    inputs: Mapping[str, Any],
    *,
    tokens: int = 32,
    end: int | Sequence[int] | None = None,
    dtype: str = "float64",
    name: str = "",
) -> "GenerationReport":
    """Compare a model of PyTorch that generates with its JAX port: full forward, prefill and steps, free-running.

        print(compare_generation(llama, Decoder(prefill, step, full), {"input_ids": ids, "attention_mask": mask}))

    Args:
        torch_side: a model of Hugging Face's transformers, or (module, Decoder).
        jax_side: the port, with weights of the dtype.
        inputs: the prompts for both sides, NumPy's arrays by name. Prompts of several lengths show more: padding on the
            left, and an `attention_mask` of it.
        tokens: how many new tokens there are. More than a window or the steps of a cache show more.
        end: the token that ends a text, or several of which each does.
        dtype: float64, or a narrower one. PyTorch's module is copied and converted.
        name: what the report calls the two.

    Raises:
        ValueError: a side raises, or returns logits of another shape or dtype, or PyTorch's are NaN; the message says
            which.
    """
    if tokens < 1 or dtype not in TORCH_DTYPES:
        raise ValueError(
            f"tokens must be 1 or more, and dtype one of {', '.join(TORCH_DTYPES)}; got {tokens}, {dtype!r}"
        )
    if not isinstance(jax_side, Decoder) or not inputs:
        raise ValueError("jax_side must be a Decoder(prefill, step, full), and inputs a dict that holds the prompts")
    module, decoder = torch_side if isinstance(torch_side, tuple) else (torch_side, hugging_face(torch_side))
    given = {key: np.asarray(x) for key, x in inputs.items()}
    truth = _Side.of_torch(decoder, given, module, "float64")
    chosen = truth.greedy(tokens)
    full, stepped = truth.full(chosen), truth.stepped(chosen)
    size = _size(full)
    bounds = exact = 1e-10 * size
    rule = "float32" if dtype == "float64" and truth.is_narrow_inside else dtype
    if rule != "float64":
        noise = np.zeros_like(size)
        if dtype != "float64":
            own = _Side.of_torch(decoder, given, module, dtype)
            noise = np.maximum(_apart(own.full(chosen), full), _apart(own.stepped(chosen), full))
        for draw in range(MOVED_RUNS):
            moved = _Side.of_torch(decoder, given, module, "float64", moved_by=(unit_roundoff(rule), draw))
            noise = np.maximum(noise, _apart(moved.full(chosen), full))
        bounds = 8 * unit_roundoff(rule) * size + 2 * noise
    in_jax = _Side.of_jax(jax_side, given, dtype)
    judge = _Judge(name or type(module).__name__, dtype, rule, given, chosen, full)
    judge.logits("PyTorch", STEPS, stepped, bounds if truth.is_narrow_inside else exact)
    in_full = in_jax.full(chosen)
    if in_full.shape[-1] != full.shape[-1]:
        raise ValueError(f"JAX's logits are of {in_full.shape[-1]} tokens, and PyTorch's of {full.shape[-1]}")
    judge.logits("JAX", FULL, in_full, bounds)
    judge.logits("JAX", STEPS, in_jax.stepped(chosen), bounds)
    judge.tokens(FREE, in_jax.greedy(tokens), bounds, end)
    if jax_side.generate is not None:
        judge.tokens(OWN, in_jax.generated(tokens), bounds, end)
    return judge.report(bounds)


@dataclass(frozen=True)
class GenerationReport(Findings):
    """What `compare_generation` found."""

    name: str
    measurements: tuple[Measurement, ...]
    """For each program and each new token the worst prompt."""
    difference: tuple[str, ...] = ()
    """Where the two part first, and what that looks like."""
    notes: tuple[str, ...] = ()

    def _lines(self) -> Iterator[str]:
        failed = dict.fromkeys(m.variant for m in self.failed)
        verdict = f"DIFFERS in {' and '.join(failed)}" if failed else "agrees"
        prompts = sum(m.variant.endswith(FREE) for m in self.measurements)
        tokens = sum(m.variant.endswith(FULL) for m in self.measurements) - 1  # logits go one further
        dtype = self.measurements[0].dtype
        yield f"{self.name}, generating, {verdict} ({prompts} prompts, {tokens} new tokens; {dtype})"
        worst = max(self.measurements, key=lambda m: m.share)
        yield f"  worst: {worst.tensor}, {worst.variant}: {worst.difference}"
        yield from (f"  {line}" for line in self.difference)
        yield from (f"  note: {note}" for note in self.notes)


@dataclass(frozen=True)
class _Side:
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
    ) -> "_Side":
        """Copy the module in a dtype; with `moved_by`, (unit, seed), each weight is moved by a unit at random."""
        module = copy.deepcopy(module).eval().to(TORCH_DTYPES[dtype])
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
    def of_jax(cls, decoder: Decoder, inputs: Mapping[str, np.ndarray], dtype: str) -> "_Side":
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


@dataclass(frozen=True)
class _Judge:
    """Holds programs to PyTorch's full forward pass in float64, and remembers where one parts first."""

    case: str
    dtype: str
    rule: str
    """The dtype by whose rounding it judges."""
    inputs: Mapping[str, np.ndarray]
    chosen: np.ndarray
    """PyTorch's tokens."""
    truth: np.ndarray
    """Its logits."""
    measurements: list[Measurement] = field(default_factory=list)
    difference: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def logits(self, side: str, program: str, logits: np.ndarray, bounds: np.ndarray) -> None:
        """Measure the logits of a program, each position by its worst prompt."""
        errors, size = _apart(logits, self.truth), _size(self.truth)
        shares = errors / bounds
        for number in range(errors.shape[1]):
            row = int(shares[:, number].argmax())
            error, bound = (float(x[row, number] / size[row, number]) for x in (errors, bounds))
            place = f"new token {number}"
            names = (self.case, f"{side}'s {program}", self.dtype, place)
            self.measurements.append(Measurement(*names, error, bound, rule=self.rule))
        wrong = ~(errors <= bounds)
        if wrong.any():
            number = int(wrong.any(0).argmax())
            row = int(wrong[:, number].argmax())
            error, bound = (x[row, number] / size[row, number] for x in (errors, bounds))
            words = f"{side}'s {program}, prompt {row} at new token {number}: error {error:.3g}, bound {bound:.3g}"
            self._first(words, *self._symptoms(side, program, wrong))

    def _symptoms(self, side: str, program: str, wrong: np.ndarray) -> Iterator[str]:
        """Say which prompts and positions part."""
        if program == STEPS:
            yield f"{side}'s full forward is right: it is the cache, or what prefill and step do otherwise"
        lengths = self._lengths
        padded, rows, first = lengths < lengths.max(), wrong.any(1), wrong.argmax(1)
        if padded.any() and np.array_equal(rows, padded):
            yield "only the prompts with padding part: positions, or the mask, count the padding"
        starts, lengths = first[rows], (lengths + first)[rows]
        cache = "a cache or " * (program == STEPS)
        if wrong.sum() > 1 and (starts > 2).all() and len({*lengths.tolist()}) == 1:
            yield f"from a length of {lengths[0]} on, padding not counted: positions, {cache}a window end there"
        elif wrong.sum() > 1 and (starts > 2).all() and len({*starts.tolist()}) == 1:
            length = self._lengths.max() + starts[0]
            yield f"from new token {starts[0]} on, a length of {length} with padding: {cache}a window ends there"
        elif not wrong[:, 1:].any():
            yield "only the first new token parts" + ": it is prefill" * (program == STEPS)

    @property
    def _lengths(self) -> np.ndarray:
        """The length of each prompt, without its padding."""
        mask = self.inputs.get("attention_mask")
        first = np.asarray(next(iter(self.inputs.values())))
        whole = first.shape[1] if first.ndim > 1 else 1  # prompts of one axis are one token each
        return np.full(len(first), whole) if mask is None else (np.asarray(mask) != 0).sum(-1)

    def tokens(self, program: str, tokens: np.ndarray, bounds: np.ndarray, end: Any) -> None:
        """Measure tokens, until a text ends: the first that is not PyTorch's has to be a tie."""
        size, ties = _size(self.truth), list[str]()
        for row, (mine, theirs) in enumerate(zip(tokens, self.chosen, strict=True)):
            ends = np.isin(theirs, [] if end is None else end)
            length = 1 + int(ends.argmax()) if ends.any() else len(theirs)
            found = Measurement(self.case, f"JAX's {program}", self.dtype, f"prompt {row}", 0.0, 0.0, rule=self.rule)
            shared = min(length, len(mine))
            apart = np.flatnonzero(mine[:shared] != theirs[:shared])
            if len(apart):
                at = int(apart[0])
                if not 0 <= mine[at] < self.truth.shape[-1]:
                    words = (
                        f"prompt {row} has {mine[at]} at new token {at}, and there are {self.truth.shape[-1]} tokens"
                    )
                    raise ValueError(f"JAX's {program}: {words}")
                margin = float(self.truth[row, at, theirs[at]] - self.truth[row, at, mine[at]])
                bound = float(2 * bounds[row, at])
                found = replace(found, error=margin / size[row, at], bound=bound / size[row, at])
                words = f"prompt {row} at new token {at}, {mine[at]} instead of {theirs[at]}: margin {margin:.3g}"
                if margin <= bound:
                    ties.append(f"{words}, within {bound:.3g}")
                else:
                    self._first(f"JAX's {program}, {words}, which is no tie: {bound:.3g}")
            elif len(mine) < length:
                found = replace(found, mismatch=f"stops after {len(mine)} of {length} tokens")
            elif program == OWN and len(set(mine[length:].tolist())) > 1:
                found = replace(found, mismatch=f"goes on after its end, new token {length - 1}")
            if found.mismatch:
                self._first(f"JAX's {program}, prompt {row}: it {found.mismatch}")
            self.measurements.append(found)
        if ties:
            more = f" and {len(ties) - 1} more" * (len(ties) > 1)
            self.notes.append(f"{program}: another token by a tie in {ties[0]}{more}")

    def _first(self, words: str, *symptoms: str) -> None:
        """Remember a difference, if it is the first one."""
        if not self.difference:
            self.difference.extend((f"first difference: {words}", *(f"looks like: {x}" for x in symptoms)))

    def report(self, bounds: np.ndarray) -> GenerationReport:
        """Return what was found. Where rounding is as large as the choice of a token, logits show nothing."""
        lost = bounds > self.truth.max(-1) - np.maximum(self.truth, _least(self.truth)).mean(-1)
        if lost.any():
            share = f"{lost.mean():.0%} of the positions"
            self.notes.append(
                f"in {self.dtype}, rounding may make any token the best one at {share}: they show nothing"
            )
        return GenerationReport(self.case, tuple(self.measurements), tuple(self.difference), tuple(self.notes))


def _least(truth: np.ndarray) -> np.ndarray:
    """Return the logit whose probability is 0, for each prompt and position."""
    return np.where(np.isfinite(truth), truth, -np.inf).max(-1, keepdims=True) - REACH


def _apart(logits: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return how far logits are apart at most, for each prompt and position; those of probability 0 are equal."""
    logits, truth = (np.maximum(x, _least(truth)) for x in (logits, truth))
    with np.errstate(invalid="ignore"):  # inf − inf
        apart = np.where(logits == truth, 0.0, np.abs(logits - truth))
    return np.where(np.isnan(apart), np.inf, apart).max(-1)


def _size(logits: np.ndarray) -> np.ndarray:
    """Return the largest finite logit of each prompt and position, without those of probability 0."""
    seen = np.isfinite(logits) & (logits > _least(logits))
    return np.abs(np.where(seen, logits, 0.0)).max(-1) + np.finfo(float).tiny


# The models of transformers


def hugging_face(model: Any) -> Decoder:
    """Return how a model of Hugging Face's transformers generates: a decoder alone, or an encoder and a decoder."""
    if not hasattr(model, "config") or not hasattr(model, "generate"):
        raise ValueError(
            f"torch_side must be a model of transformers, or (module, Decoder(prefill, step, full)); "
            f"got {type(model).__name__}"
        )
    return _encoder_and_decoder() if model.config.is_encoder_decoder else _decoder_alone()


def _decoder_alone() -> Decoder:
    def call(module: Any, ids: Any, mask: Any, cache: Any = None) -> Any:
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]  # as `generate` counts them
        accepts = "position_ids" in inspect.signature(module.forward).parameters
        more = {"position_ids": positions} if accepts else {}
        return module(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **more)

    def prefill(module: Any, inputs: Any) -> Any:
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        made = call(module, inputs["input_ids"], mask)
        return made.logits[:, -1], (mask, made.past_key_values)

    def step(module: Any, tokens: Any, cache: Any) -> Any:
        mask = torch.cat([cache[0], torch.ones_like(cache[0][:, :1])], 1)
        made = call(module, tokens[:, None], mask, cache[1])
        return made.logits[:, -1], (mask, made.past_key_values)

    def full(module: Any, inputs: Any, tokens: Any) -> Any:
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask", torch.ones_like(ids))
        made = call(module, torch.cat([ids, tokens], 1), torch.cat([mask, torch.ones_like(tokens)], 1))
        return made.logits[:, ids.shape[1] - 1 :]

    return Decoder(prefill, step, full)


def _encoder_and_decoder() -> Decoder:
    def start(module: Any, inputs: Any) -> Any:
        first = module.config.decoder_start_token_id
        return torch.full((len(inputs["input_ids"]), 1), first), module.get_encoder()(**inputs)

    def call(module: Any, ids: Any, encoded: Any, inputs: Any, cache: Any = None) -> Any:
        given = {"attention_mask": inputs.get("attention_mask"), "encoder_outputs": encoded, "past_key_values": cache}
        return module(decoder_input_ids=ids, use_cache=True, **given)

    def prefill(module: Any, inputs: Any) -> Any:
        ids, encoded = start(module, inputs)
        made = call(module, ids, encoded, inputs)
        return made.logits[:, -1], (encoded, inputs, made.past_key_values)

    def step(module: Any, tokens: Any, cache: Any) -> Any:
        encoded, inputs, past = cache
        made = call(module, tokens[:, None], encoded, inputs, past)
        return made.logits[:, -1], (encoded, inputs, made.past_key_values)

    def full(module: Any, inputs: Any, tokens: Any) -> Any:
        ids, encoded = start(module, inputs)
        return call(module, torch.cat([ids, tokens], 1), encoded, inputs).logits

    return Decoder(prefill, step, full)
