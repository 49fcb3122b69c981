"""A whole corpus through both programs: the worst example of each output, and what the corpus never showed.

The first batch is compared as any other inputs are. The others run forward, with the same weights; JAX is compiled once
for each shape, and of each batch only numbers are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import numpy as np

from parity_tests.your_port.measure.arrays import flatten, is_floating
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.judge import Measurement, Runs
from parity_tests.your_port.weights.original import Inputs, Weight, read_inputs
from parity_tests.your_port.weights.weight_map import in_columns

QUANTILES = {"least": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}


@dataclass(frozen=True)
class Worst:
    """The batch with the largest share of the bound of an output."""

    batch: int
    row: int | None
    """The example in it; None where an output has no axis of examples."""
    measured: Measurement
    inputs: Inputs = field(repr=False)
    """The batch."""

    def __str__(self) -> str:
        place = f"batch {self.batch}" if self.row is None else f"batch {self.batch}, row {self.row}"
        return f"{self.measured.tensor} at {place}: {self.measured.difference}"


@dataclass(frozen=True)
class Corpus:
    """What all batches together show."""

    batches: int
    examples: int
    shares: Mapping[str, np.ndarray]
    """Of each output, the share of its bound that the error of each batch takes; more than 1 is a failure."""
    worst: Mapping[str, Worst]
    seen: tuple[str, ...]
    """Which ids and lengths were met."""
    unseen: tuple[str, ...]
    """Which were not."""

    @property
    def first_failure(self) -> Worst | None:
        """The failure with the largest share, if there is one."""
        failed = [worst for worst in self.worst.values() if worst.measured.failed]
        return max(failed, key=lambda worst: worst.measured.share, default=None)

    def table(self) -> str:
        """List how the shares of each output are distributed over the batches."""
        rows = [("output", *QUANTILES, "worst")]
        for name, shares in self.shares.items():
            rows.append((name, *(f"{x:.1e}" for x in _quantiles(shares).values()), str(self.worst[name])))
        return in_columns(rows)

    @property
    def facts(self) -> dict[str, Any]:
        """Everything for a record in JSON."""
        shares = {name: _quantiles(shares) for name, shares in self.shares.items()}
        worst = {name: str(worst) for name, worst in self.worst.items()}
        counts = {"batches": self.batches, "examples": self.examples}
        return {**counts, "shares": shares, "worst": worst, "seen": self.seen, "unseen": self.unseen}

    def __str__(self) -> str:
        most = max(self.worst.values(), key=lambda worst: worst.measured.share)
        text = f"{self.batches:,} batches, {self.examples:,} examples; worst: {most}"
        return f"{text}; met: {'; '.join(self.seen)}" if self.seen else text


def _quantiles(shares: np.ndarray) -> dict[str, float]:
    """Return shares of real batches, not numbers between two, since a share may be infinite."""
    return {text: float(np.quantile(shares, q, method="inverted_cdf")) for text, q in QUANTILES.items()}


def run_corpus(draw: Draw, first: Inputs, batches: Iterator[Any], program: Any, weights: Sequence[Weight]) -> Corpus:
    """Run all batches, of which `first` is the first one.

    Args:
        draw: of the pair, in the dtype of the runs.
        program: PyTorch's, whose arguments the batches are.
        weights: PyTorch's, which say how many ids there are.

    Raises:
        ValueError: a batch cannot be read, has another structure than the first, or is refused; the message says which.
    """
    shares, worst = dict[str, list[float]](), dict[str, Worst]()
    met, examples = _Met(), 0
    for number, batch in enumerate(chain([first], _read(batches, first, program))):
        here = _on(draw, batch)
        try:
            measured = here.compare(_forward(here))
        except Exception as error:
            raise ValueError(f"batch {number} cannot be run: {type(error).__name__}: {error}") from error
        for m in measured:
            shares.setdefault(m.tensor, []).append(m.share)
            if m.tensor not in worst or m.share > worst[m.tensor].measured.share:
                worst[m.tensor] = _find_row(here, m, number, batch)
        examples += _rows(batch) or 1
        met.note(batch)
    seen, unseen = met.words(weights)
    arrays = {name: np.array(values) for name, values in shares.items()}
    return Corpus(number + 1, examples, arrays, worst, tuple(seen), tuple(unseen))


def take_example(batch: Inputs, row: int | None) -> Any:
    """Cut an example out of a batch where all inputs have an axis of examples; return it as inputs of `compare`."""
    cut = row is not None and _rows(batch) is not None
    flat, rebuild = flatten(dict(batch.arrays))
    if row is not None and cut:
        flat = {name: x if x is None else x[row : row + 1] for name, x in flat.items()}
    positional, keywords = batch.as_arguments(rebuild(flat))
    return positional or keywords


def numbered_errors(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches; where the iterator raises, say at which one.

    Raises:
        ValueError: instead of what the iterator raises.
    """
    for number in count():
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            raise ValueError(f"the iterator raised at batch {number}: {type(error).__name__}: {error}") from error
        yield batch


def _read(batches: Iterator[Any], first: Inputs, program: Any) -> Iterator[Inputs]:
    for number, batch in enumerate(batches, 1):
        try:
            read = read_inputs(batch, program)
        except (TypeError, ValueError) as error:
            raise ValueError(f"batch {number} cannot be read: {error}") from error
        kinds = [
            {name: (x.ndim, is_floating(x)) for name, x in flatten(dict(inputs.arrays))[0].items() if x is not None}
            for inputs in (first, read)
        ]
        if kinds[0] != kinds[1]:
            texts = [", ".join(f"{n} with {r} axes" for n, (r, _) in kind.items()) for kind in kinds]
            raise ValueError(f"batch {number} is unlike the first one: it has {texts[1]}; the first has {texts[0]}")
        if read.others != first.others:
            raise ValueError(
                f"batch {number} has other arguments that are no arrays than the first one: {read.others!r}, not "
                f"{first.others!r}. Give compare each of them by itself"
            )
        yield read


def _on(draw: Draw, batch: Inputs) -> Draw:
    """Return the draw on a batch, without the gradients of inputs."""
    flat, _ = flatten(dict(batch.arrays))
    numbers = replace(draw.numbers, inputs=flat, differentiated=())
    return draw.on(numbers.rounded(draw.dtype))


def _forward(draw: Draw) -> Runs:
    """Run both programs without gradients."""
    import torch  # not where PyTorch's side is a file, which is no corpus

    with torch.no_grad():
        return draw.against(draw.in_jax(gradients=False))


def _rows(batch: Inputs) -> int | None:
    """Return the number of examples, if all inputs have as many along the first axis."""
    sizes = {x.shape[:1] for x in flatten(dict(batch.arrays))[0].values() if x is not None}
    (size,) = sizes if len(sizes) == 1 else ((),)
    return size[0] if size else None


def _find_row(draw: Draw, m: Measurement, number: int, batch: Inputs) -> Worst:
    """Find the row of an output that is the worst."""
    runs, worst = _forward(draw), Worst(number, None, m, batch)
    sides = [x for run in runs if (x := run.outputs.get(m.tensor)) is not None and x.ndim > 0]
    if m.mismatch or len(sides) < len(runs) or len({len(x) for x in sides}) > 1:
        return worst
    judge = draw.judge(runs.truth)
    rows = [judge.measure(m.tensor, *(x[row : row + 1] for x in sides)) for row in range(len(sides[0]))]
    return replace(worst, row=int(np.argmax([each.share for each in rows])))


@dataclass
class _Met:
    """The ids and lengths that were met."""

    ids: dict[str, set[int]] = field(default_factory=dict)
    lengths: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By the name of an input the shortest and the longest, and the longest that there could be."""

    def note(self, batch: Inputs) -> None:
        for name, x in flatten(dict(batch.arrays))[0].items():
            if x is None or is_floating(x) or x.size == 0:
                continue
            if x.ndim > 1 and x.max() > 1:
                self.ids.setdefault(name, set()).update(np.unique(x).tolist())
            elif x.ndim == 2 and "mask" in name:
                self._note(name, (x != 0).sum(-1), x.shape[-1])
            elif x.ndim == 1 and "len" in name:
                self._note(name, x, 0)

    def _note(self, name: str, lengths: np.ndarray, most: int) -> None:
        least, longest, whole = self.lengths.get(name, (int(lengths.min()), 0, 0))
        self.lengths[name] = (min(least, int(lengths.min())), max(longest, int(lengths.max())), max(whole, most))

    def words(self, weights: Sequence[Weight]) -> tuple[list[str], list[str]]:
        """Say what was met, and what was not."""
        tables = {w.shape[0] for w in weights if w.is_table}
        seen, unseen = list[str](), list[str]()
        for name, ids in self.ids.items():
            largest = max(ids)
            rows = [size for size in tables if size > largest]
            if len(rows) == 1:
                seen.append(f"{len(ids)} of the {rows[0]} ids of {name}")
                unseen += [f"{name} never is {each}" for each in sorted({0, rows[0] - 1} - ids)]
            elif rows:  # of words or of positions: nothing says which table is meant
                seen.append(f"{len(ids)} ids of {name} up to {largest}")
                unseen += [f"{name} never is above {largest}"] if largest + 1 not in rows else []
        for name, (least, longest, whole) in self.lengths.items():
            seen.append(f"lengths of {name} from {least} to {longest}")
            unseen += [f"{name} never is full"] if longest < whole else []
            unseen += [f"{name} never has padding"] if least == longest == whole else []
        return seen, unseen
