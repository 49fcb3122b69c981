"""The ratios that are kept in the repository, and whether one has fallen since.

A ratio has fallen when it is worse than the kept one by more than the noise, as a share of the kept median:

    noise = max(10 %, quartile distance of the kept rounds + that of the rounds measured now)

The distance between the quartiles is two to three times the standard error of a median of five to eleven rounds, so
the sum of two of them is a wide margin for what one run sees of itself; 10 % is what the medians of separate runs on
one idle machine differ by. Ratios of memory have no spread, and are allowed 10 %.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parity_tests.speed.machine import same_kind
from parity_tests.speed.rounds import Spread
from parity_tests.speed.workload import Ratio

KEPT_FILE = Path(__file__).with_name("kept.json")
LEAST_NOISE = 0.1


class Comparison(NamedTuple):
    """A ratio now and then."""

    ratio: Ratio
    now: Spread
    kept: Spread

    @property
    def noise(self) -> float:
        """The share of the kept median by which it may be worse."""
        return max(LEAST_NOISE, (self.now.iqr + self.kept.iqr) / self.kept.median)

    @property
    def worse_by(self) -> float:
        """The share of the kept median by which it is worse; negative where it is better."""
        change = self.now.median / self.kept.median - 1
        return change if self.ratio.lower_is_better else -change

    @property
    def fell(self) -> bool:
        return not self.worse_by <= self.noise

    def __str__(self) -> str:
        verdict = "FELL" if self.fell else "holds"
        change = f"{-self.worse_by:+.0%}, noise {self.noise:.0%}"
        return f"{self.ratio.name}: {self.kept.median:.3g} kept, {self.now.median:.3g} now ({change}) {verdict}"


def keep(ratios: Mapping[str, Spread], machine: Mapping[str, Any], file: Path = KEPT_FILE) -> None:
    """Write the ratios beside the machine they come from."""
    numbers = {name: {"median": spread.median, "iqr": spread.iqr} for name, spread in ratios.items()}
    file.write_text(json.dumps({"machine": machine, "ratios": numbers}, indent=2) + "\n", encoding="utf-8")


def compare_with_kept(
    ratios: Mapping[Ratio, Spread], machine: dict[str, Any], file: Path = KEPT_FILE
) -> tuple[list[Comparison], str]:
    """Each ratio that was kept and is measured, and a warning if the machine is of another kind.

    Raises:
        FileNotFoundError: nothing was kept.
    """
    if not file.exists():
        raise FileNotFoundError(f"nothing was kept in {file}: run `python -m parity_tests.speed --keep` first")
    kept = json.loads(file.read_text(encoding="utf-8"))
    warning = ""
    if not same_kind(kept["machine"], machine):
        of, here = (f"{m['cpu']}, {m['cores']} cores, {m['gpu'] or 'no GPU'}" for m in (kept["machine"], machine))
        warning = f"the kept numbers come from another machine ({of}; this is {here}): compare with care"
    comparisons = [
        Comparison(ratio, now, Spread(kept["ratios"][ratio.name]["median"], kept["ratios"][ratio.name]["iqr"], ()))
        for ratio, now in ratios.items()
        if ratio.name in kept["ratios"]
    ]
    return comparisons, warning
