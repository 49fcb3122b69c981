"""The ratios kept in the repository (`kept.json`), and whether one has fallen since.

A ratio has fallen if it is worse than the kept one by more than the noise, as a share of the kept median:

    noise = max(10 %, the kept quartile distance + the quartile distance measured now)

The quartile distance is two to three times the standard error of a median of five to eleven rounds, so the sum of two
is a wide margin. Medians of separate runs on one idle machine differ by about 10 %.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from parity_tests.speed.measure import Spread
from parity_tests.speed.records import Ratio

KEPT_FILE = Path(__file__).with_name("kept.json")
LEAST_NOISE = 0.1


class Comparison(NamedTuple):
    """A ratio now and when it was kept."""

    ratio: Ratio
    now: Spread
    kept: Spread

    @property
    def noise(self) -> float:
        """The share of the kept median by which it may be worse."""
        return max(LEAST_NOISE, (self.now.iqr + self.kept.iqr) / self.kept.median)

    @property
    def worse_by(self) -> float:
        """The share of the kept median by which it is worse; negative if it is better."""
        change = self.now.median / self.kept.median - 1
        return change if self.ratio.lower_is_better else -change

    @property
    def fell(self) -> bool:
        return not self.worse_by <= self.noise

    def __str__(self) -> str:
        change = f"{-self.worse_by:+.0%}, noise {self.noise:.0%}"
        verdict = "FELL" if self.fell else "holds"
        return f"{self.ratio.name}: {self.kept.median:.3g} kept, {self.now.median:.3g} now ({change}) {verdict}"


def keep(ratios: Mapping[Ratio, Spread], machine: Mapping[str, Any], file: Path) -> None:
    """Write the ratios and the machine on which they were measured."""
    numbers = {ratio.name: spread._asdict() for ratio, spread in ratios.items()}
    file.write_text(json.dumps({"machine": machine, "ratios": numbers}, indent=2) + "\n", encoding="utf-8")


def compare_with_kept(
    ratios: Mapping[Ratio, Spread], machine: Mapping[str, Any], file: Path
) -> tuple[list[Comparison], list[str]]:
    """Compare the ratios with those in the file; warn of another machine, and of ratios that were not kept."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    there, here = kept["machine"], machine
    warnings = [f"{ratio.name}: not kept, so there is nothing to compare with" for ratio in ratios]
    warnings = [text for text, ratio in zip(warnings, ratios, strict=True) if ratio.name not in kept["ratios"]]
    if any(there[part] != here[part] for part in ("cpu", "cores", "device", "gpu")):
        names = (f"{m['cpu']}, {m['cores']} cores, {m['gpu'] or 'no GPU'}" for m in (there, here))
        warnings.append("the kept ratios come from another machine ({}; this is {}): read with care".format(*names))
    return [
        Comparison(ratio, now, Spread(**kept["ratios"][ratio.name]))
        for ratio, now in ratios.items()
        if ratio.name in kept["ratios"]
    ], warnings


def describe_machine(device: str) -> dict[str, Any]:
    """Describe what the numbers are measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": device,
        "gpu": None if device == "cpu" else _gpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "torch", "numpy")},
        },
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or "unknown"


def _gpu_name() -> str:
    asked = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return asked.stdout.splitlines()[0].strip() if asked.returncode == 0 and asked.stdout else "unknown"
