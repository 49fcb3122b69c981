"""The measurements as tables for the terminal and as JSON, and the comparison with an earlier run.

A ratio has fallen if it is worse than the earlier one by more than the noise, as a share of the earlier median:

    noise = max(10 %, the earlier quartile distance + the one measured now)

The quartile distance is two to three times the standard error of a median of five to eleven rounds, so the sum of two
is a wide margin. Medians of separate runs on one idle machine differ by about 10 %.
"""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks import limits
from benchmarks.records import WITHOUT, Entry, Ratio, Run, Spread
from benchmarks.workloads import WORKLOADS

LEAST_NOISE = 0.1

RATIOS = {ratio.name: ratio for workload in WORKLOADS.values() for ratio in workload.ratios}


def ratios_of(run: Run) -> dict[Ratio, Spread]:
    """Compute the ratios of what was measured."""
    found = {ratio: ratio.of(entries) for name, entries in run.results.items() for ratio in WORKLOADS[name].ratios}
    return {ratio: spread for ratio, spread in found.items() if spread is not None}


def shares_of_limit(run: Run, workload: str) -> dict[str, float]:
    """Return the workload's least time divided by the measured ones, without what is not comparable."""
    least = limits.least_seconds(WORKLOADS[workload].needs, run.speeds)
    entries = run.results[workload] if least else {}
    return {name: least / entry.spread.median for name, entry in entries.items() if least and name != WITHOUT}


def make_tables(run: Run) -> Iterator[Table | str]:
    """Make what is printed: times, the speeds of this machine at each workload's operations, and ratios."""
    times = _table(
        "time and memory", "implementation", "median", "per\nsecond", "spread", "of the\nlimit", "peak\nmemory"
    )
    for heading in ("compile", "error"):
        times.add_column(heading, justify="right", no_wrap=True)
    for workload, entries in run.results.items():
        shares = shares_of_limit(run, workload)
        times.add_row(f"[bold]{workload}[/bold] (one {WORKLOADS[workload].unit})")
        for name, entry in entries.items():
            times.add_row(f"  {name}", *_cells(entry, shares.get(name)))
        times.add_section()
    yield times
    for workload, entries in run.results.items():
        for each in WORKLOADS[workload].implementations:
            if each.name not in entries:
                yield f"left out of {workload}: {each.name} (no C++ compiler)"
    headings = {"product": "products\nGFLOP/s", "tanh": "tanh\nG/s", "exp": "exp\nG/s", "copy": "copies\nGB/s"}
    speeds = _table("speeds of this machine, JAX / PyTorch", "at the shapes of", *headings.values())
    for workload in run.results:
        found = (limits.rates(WORKLOADS[workload].needs, run.speeds, name) for name in headings)
        cells = [" / ".join(f"{rate / 1e9:.3g}" for rate in rates.values()) for rates in found]
        if any(cells):
            speeds.add_row(workload, *cells)
    if run.speeds:
        yield speeds
    ratios = _table("ratios", "ratio", "measured", "spread", "goal", "")
    for ratio, (median, iqr) in ratios_of(run).items():
        unit = " s" if ratio.below is None else "×"
        goal = f"{'≤' if ratio.lower_is_better else '≥'} {ratio.goal:g}{unit}"
        verdict = "met" if ratio.met(median) else "[red]missed[/red]"
        ratios.add_row(ratio.name, f"{median:.3g}{unit}", f"{iqr / median:.0%}", goal, verdict)
    yield ratios


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(entry: Entry, share: float | None) -> Iterator[str]:
    median, iqr = entry.spread
    scale, unit = (1, "s") if median >= 1 else (1e3, "ms") if median >= 1e-3 else (1e6, "µs")
    yield f"{median * scale:.3g} {unit}"
    yield f"{1 / median:,.0f}" if median < 1e-2 else f"{1 / median:.3g}"
    yield f"{iqr / median:.0%}"
    yield "" if share is None else f"{share:.0%}"
    yield "" if entry.peak_bytes is None else f"{entry.peak_bytes / 1e6:,.0f} MB"
    yield f"{entry.compile_seconds:.1f} s"
    yield f"{entry.error:.0e}" if entry.error else ""


def make_json(run: Run) -> dict[str, Any]:
    """Collect everything that was measured for a program."""
    ratios, workloads = ratios_of(run), {}
    for workload, entries in run.results.items():
        shares, implementations = shares_of_limit(run, workload), {}
        for name, entry in entries.items():
            found = {"median_seconds": entry.spread.median, "iqr_seconds": entry.spread.iqr, **asdict(entry)}
            implementations[name] = {**found, "share_of_limit": shares.get(name)}
        workloads[workload] = {"unit": WORKLOADS[workload].unit, "implementations": implementations}
    return {
        "ratios": {ratio.name: spread.median for ratio, spread in ratios.items()},
        "spreads": {ratio.name: spread.iqr for ratio, spread in ratios.items()},
        "goals": {ratio.name: ratio.goal for ratio in ratios},
        "met": {ratio.name: ratio.met(spread.median) for ratio, spread in ratios.items()},
        "workloads": workloads,
        "seconds of operations": {str(operation): seconds for operation, seconds in run.speeds.items()},
        "failures": run.failures,
        "machine": describe_machine(run.device),
    }


def describe_changes(now: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, bool]:
    """Compare two results of `make_json`: a line for each ratio that both have -> whether it has fallen.

    Lines that start with "warning" speak of another machine, and of ratios that the earlier run has not measured.
    """
    there, here = earlier["machine"], now["machine"]
    lines = {}
    if any(there[part] != here[part] for part in ("cpu", "cores", "device", "gpu")):
        names = (f"{m['cpu']}, {m['cores']} cores, {m['gpu'] or 'no GPU'}" for m in (there, here))
        lines["warning: the earlier run was on another machine ({}; this is {})".format(*names)] = False
    for name, value in now["ratios"].items():
        before = earlier["ratios"].get(name)
        if before is None:
            lines[f"warning: {name} was not measured earlier"] = False
            continue
        noise = max(LEAST_NOISE, (now["spreads"][name] + earlier["spreads"][name]) / before)
        better = (1 - value / before) if RATIOS[name].lower_is_better else (value / before - 1)
        fell = not -better <= noise
        change = f"{before:.3g} earlier, {value:.3g} now ({better:+.0%}, noise {noise:.0%})"
        lines[f"{name}: {change} {'FELL' if fell else 'holds'}"] = fell
    return lines


def describe_machine(device: str) -> dict[str, Any]:
    """Describe what the numbers are measured on."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    packages = ("jax", "jaxlib", "flax", "optax", "torch", "numpy")
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": device,
        "gpu": None if device == "cpu" else _gpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _gpu_name() -> str:
    asked = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return asked.stdout.splitlines()[0].strip() if asked.returncode == 0 and asked.stdout else "unknown"
