"""The record of a comparison for other programs: as JSON, and as Markdown for a pull request (see docs/parity.md)."""

import json
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from parity_tests.your_port.cause.cause import Blind
from parity_tests.your_port.corpus import Corpus
from parity_tests.your_port.divergence import Divergence
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.precision import Precision
from parity_tests.your_port.weights.weight_map import WeightMap

SCHEMA = 1
"""Of the JSON: another number where a field goes or means something else. A new field keeps it."""
PACKAGES = ("jax-attn", "jax", "flax", "equinox", "torch", "numpy")
SHOWN = 50
"""How many tensors the Markdown lists: a comment on GitHub has at most 65,536 characters."""


class Verdict(StrEnum):
    """What a comparison says, in the order of the command's exit status: 0, 1, 2."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class Record:
    """Everything that a comparison found."""

    name: str
    lines: Sequence[str]
    """The verdict as it is printed; of what could not be compared, the error."""
    measurements: Sequence[Measurement] = ()
    divergence: Divergence | None = None
    map: WeightMap | None = None
    blind: Blind | None = None
    precision: Sequence[Precision] = ()
    corpus: Corpus | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the two agree; without a measurement they were not compared."""
        if not self.measurements:
            return Verdict.NOT_COMPARED
        return Verdict.DIFFERS if any(m.failed for m in self.measurements) else Verdict.AGREES

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Python and of the packages that are installed."""
        found = {"python": platform.python_version()}
        for name in PACKAGES:
            with suppress(PackageNotFoundError):
                found[name] = version(name)
        return found

    def to_json(self) -> str:
        """Write it as JSON."""
        first, places = self.divergence, ("phase", "tensor", "module", "in_jax", "difference", "agreed", "symptoms")
        causes = () if first is None else first.causes
        placed = () if self.map is None else self.map.lines()
        facts = {
            "schema": SCHEMA,
            "name": self.name,
            "verdict": self.verdict,
            "lines": self.lines,
            "first_place": None if first is None else {name: getattr(first, name) for name in places},
            "causes": [{"words": c.words, "confirmed": c.confirmed, "explains": c.explains.value} for c in causes],
            "tensors": [{"failed": m.failed, **asdict(m)} for m in self.measurements],
            "weights": [dict(zip(("jax", "shape", "torch", "layout"), line, strict=True)) for line in placed],
            "blind": None if self.blind is None else asdict(self.blind),
            "precision": [{**asdict(found), "ratio": found.ratio} for found in self.precision],
            "corpus": None if self.corpus is None else self.corpus.facts,
            "versions": self.versions,
        }
        return json.dumps(_finite(facts), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def to_markdown(self) -> str:
        """Write it as Markdown, with what failed first."""
        lines = [printable(line) for line in self.lines]
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", "".join(lines))), default=0))
        blocks = [f"### {_escaped(self.name)}: {self.verdict}", "\n".join([fence, *lines, fence])]
        rows = [_row(m) for m in sorted(self.measurements, key=lambda m: not m.failed)]
        if rows:
            head = "| tensor | dtype | error | bound | PyTorch's own | |\n|---|---|---|---|---|---|"
            blocks.append("\n".join([head, *rows[:SHOWN]]))
        if len(rows) > SHOWN:
            blocks.append(f"… and {len(rows) - SHOWN} more")
        blocks.append(", ".join(f"{name} {number}" for name, number in self.versions.items()))
        return "\n\n".join(blocks) + "\n"

    def write(self, json_file: Path | None, markdown_file: Path | None) -> None:
        """Write the files that are wanted."""
        if json_file is not None:
            json_file.write_text(self.to_json(), encoding="utf-8")
        if markdown_file is not None:
            markdown_file.write_text(self.to_markdown(), encoding="utf-8")


class Findings:
    """What a comparison found, in a few lines; it is true where the two agree: `assert compare(…)`."""

    name: str
    measurements: tuple[Measurement, ...]

    def _lines(self) -> Iterator[str]:
        raise NotImplementedError

    @property
    def failed(self) -> list[Measurement]:
        """The tensors outside of their bounds."""
        return [m for m in self.measurements if m.failed]

    @property
    def agrees(self) -> bool:
        """Whether every tensor stays within its bound."""
        return bool(self.measurements) and not self.failed

    @property
    def record(self) -> Record:
        """Everything that was found, for other programs."""
        return Record(self.name, str(self).splitlines(), self.measurements)

    def to_json(self) -> str:
        """Write everything as JSON."""
        return self.record.to_json()

    def to_markdown(self) -> str:
        """Write the verdict and a table of the tensors for a pull request, those that failed first."""
        return self.record.to_markdown()

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines()))


def _finite(facts: Any) -> Any:
    """Put None for infinity and NaN, which JSON has not."""
    if isinstance(facts, Mapping):
        return {name: _finite(x) for name, x in facts.items()}
    if isinstance(facts, list | tuple):
        return [_finite(x) for x in facts]
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts


def printable(text: str) -> str:
    """Replace what is no printable character, such as a line's end or a terminal's commands."""
    return "".join(x if x.isprintable() else "�" for x in text)


def _escaped(text: str) -> str:
    """Escape what means something in Markdown or HTML."""
    return re.sub(r"([\\`*_<>|\[\]#&])", r"\\\1", printable(text))


def _row(m: Measurement) -> str:
    numbers = ("" if m.mismatch else f"{x:.1e}" for x in (m.error, m.bound, m.torch_error))
    verdict = f"**{_escaped(m.mismatch) or 'DIFFERS'}**" if m.failed else "agrees"
    name = printable(m.tensor)
    name = _escaped(name) if set(name) & set("`|\\") else f"`{name}`"
    return f"| {' | '.join((name, m.dtype, *numbers, verdict))} |"
