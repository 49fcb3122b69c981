"""What a comparison found: a verdict of at most ten lines, and everything on request."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from parity_tests.your_port.cause.cause import Blind
from parity_tests.your_port.compiled import CompiledReport
from parity_tests.your_port.corpus import Corpus
from parity_tests.your_port.divergence import Divergence
from parity_tests.your_port.measure.arrays import flatten
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.precision import Precision
from parity_tests.your_port.pair import Pair
from parity_tests.your_port.record import Findings, Record, printable
from parity_tests.your_port.trained import differing_dtypes
from parity_tests.your_port.weights.weight_map import WeightMap, in_columns

LINES = 10
ROUNDING = "zero except for rounding in both"


@dataclass(frozen=True)
class Report(Findings):
    """A comparison of a PyTorch module with its JAX port."""

    name: str
    pair: Pair
    """Both programs, with the weights in place."""
    measurements: tuple[Measurement, ...]
    """Every tensor in every dtype, and those that only jit or only its absence makes wrong."""
    divergence: Divergence | None = None
    """Where the two part, and why."""
    compiled: CompiledReport | None = None
    """How the compiled program differs from its own operations, if that explains the difference."""
    trouble: str = ""
    """Why the search for the place and the cause failed, if it did."""
    notes: tuple[str, ...] = ()
    """What is not computed alike though it may agree: in a training, inside of a program, or in one draw."""
    weak: tuple[str, ...] = ()
    """What these inputs and weights cannot show."""
    corpus: Corpus | None = None
    """What the batches of an iterator show."""
    precision: tuple[Precision, ...] = ()
    """How good the outputs are in 16 bits, beside PyTorch's own."""

    @property
    def map(self) -> WeightMap:
        """Which weight stands where; `print(report.map)` shows it."""
        return self.pair.map

    @property
    def case(self) -> Case:
        """The comparison as a case, for `find_divergence` and for the fixture `parity`."""
        return self.pair.case

    @cached_property
    def blind(self) -> Blind:
        """The known mistakes that would not have been seen with these inputs and weights; found when first asked for.

        They are made in PyTorch, one by one, for at most 20 seconds of computing. The verdict then has a line on them.
        """
        from parity_tests.your_port.cause.blind import find_blind  # it needs PyTorch

        return find_blind(self.case)

    @property
    def _blind(self) -> Blind | None:
        """The blind spots, once they were asked for."""
        return vars(self).get("blind")

    @property
    def record(self) -> Record:
        """Everything that was found, for other programs."""
        found = self.divergence, self.map, self._blind, self.precision, self.corpus
        return Record(self.name, str(self).splitlines(), self.measurements, *found)

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in islice(self._lines(), LINES))

    def _lines(self) -> Iterator[str]:
        if differing := differing_dtypes(self.pair):
            yield f"NOT THE SAME DTYPE: {differing}; both ran on the same numbers"
        names = {(m.case, m.tensor): m.is_gradient for m in self.measurements}
        gradients, dtypes = sum(names.values()), dict.fromkeys(m.run_dtype for m in self.measurements)
        what = f"{_count(len(names) - gradients, 'output')}, {_count(gradients, 'gradient')}; {' and '.join(dtypes)}"
        failed = len({(m.case, m.tensor) for m in self.failed})
        verdict = "agrees" if self.agrees else f"DIFFERS in {failed} of {len(names)} tensors"
        yield f"{self.name} {verdict} ({what})"
        yield f"  worst: {_in_words(max(self.measurements, key=lambda m: (m.share, not m.only_rounding)))}"
        if self.corpus is not None:
            yield f"  corpus: {self.corpus}"
        if self.precision:
            shown = max(
                self.precision, key=lambda found: (bool(found.lost_at), found.jax.best is not None, found.ratio)
            )
            yield f"  precision: in {shown.dtype} {shown}"
        if self.compiled is not None:
            yield from self.compiled.explain()
        if self.divergence is not None:
            yield from (f"  {line}" for line in self.divergence.lines())
        if self.trouble:
            yield f"  the search for the place failed: {self.trouble}; please report it"
        for note in [*self.notes[:2], *[f"and {len(self.notes) - 2} more"] * (len(self.notes) > 2)]:
            yield f"  note: {note}"
        if left_out := sorted(self.case.constants.intersection(flatten(dict(self.case.variants[0].inputs))[0])):
            yield f"  note: no gradient of {', '.join(left_out)} is compared, which is not finite everywhere"
        for m in [m for m in self.measurements if m.dtype.endswith("without jit")][:1]:
            yield f"  jit: {m.tensor} is {'wrong' if m.failed else 'right'} only without jit"
        if self.weak:
            more = " …" * (len(self.weak) > 3)
            yield f"  weak: {'; '.join(self.weak[:3])}{more}"
        if self._blind is not None:
            yield f"  blind: {self._blind}"
        yield from self._weights("float64" in dtypes)

    def _weights(self, wide: bool) -> Iterator[str]:
        left = list(self.map.left_in_torch)
        if left:
            more = " …" * (len(left) > 3)
            yield f"  left over in PyTorch: {', '.join(left[:3])}{more}; if JAX has it, give load= or names="
        if self.failed and self.map.remarks:
            yield f"  load: {'; '.join(self.map.remarks[:3])}{' …' * (len(self.map.remarks) > 3)}"
        causes = () if self.divergence is None else self.divergence.causes
        explained = any(cause.explains.everything for cause in causes)  # then the map is right, too
        is_open = self.failed and not explained
        guesses = {path: entry for path, entry in self.map.entries.items() if entry.guessed and is_open}
        guessed = "".join(
            f", {len(guesses)} guessed ({entry.guessed}), such as {path} from {entry.source}"
            for path, entry in [*guesses.items()][:1]
        )
        fields = " and its dtype fields set" * (self.pair.port.kind in ("nnx", "linen"))
        cast = f"; for float64 its weights are cast{fields}" if wide else ""
        placed = sum(bool(x.source.names) or x.is_computed for x in self.map.entries.values())
        yield f"  weights: {placed} placed{guessed} (print(report.map) shows how){cast}"

    def table(self) -> str:
        """List every tensor with its error, its bound and PyTorch's own error."""
        rows = [("dtype", "tensor", "error", "bound", "PyTorch's own", "verdict")]
        for m in self.measurements:
            verdict = m.mismatch or ("FAILED" if m.failed else ROUNDING if m.only_rounding else "agrees")
            rows.append((m.dtype, m.tensor, f"{m.error:.1e}", f"{m.bound:.1e}", f"{m.torch_error:.1e}", verdict))
        return in_columns(rows)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _in_words(m: Measurement) -> str:
    if m.mismatch or m.only_rounding:
        return f"{m.tensor}, {m.dtype}: {m.mismatch or ROUNDING}"
    times = f"{m.share:.1%} of" if m.share < 100 else f"{m.share:.1g} times"
    return f"{m.tensor}, {m.dtype}: error {m.error:.2g}, {times} its bound {m.bound:.2g}"
