"""The measurements as tables for the terminal and as JSON."""

import os
import platform
from collections.abc import Iterator
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
    headings = ("median", "per\nsecond", "spread", "of the\nlimit", "peak\nmemory")
    times = _table("time and memory", "implementation", *headings)
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
    units = {"product": "products\nGFLOP/s", "tanh": "tanh\nG/s", "exp": "exp\nG/s", "copy": "copies\nGB/s"}
    speeds = _table("speeds of this machine, JAX / PyTorch", "at the shapes of", *units.values())
    for workload in run.results:
        found = (limits.rates(WORKLOADS[workload].needs, run.speeds, name) for name in units)
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


def make_json(run: Run) -> dict[str, Any]:
    """Collect everything that was measured for a program, and what it was measured on."""

    def of_workload(workload: str) -> dict[str, Any]:
        shares = shares_of_limit(run, workload)
        return {name: {**asdict(x), "share_of_limit": shares.get(name)} for name, x in run.results[workload].items()}

    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return {
        "ratios": {
            ratio.name: {"median": spread.median, "spread": spread.iqr, "goal": ratio.goal}
            for ratio, spread in ratios_of(run).items()
        },
        "workloads": {workload: of_workload(workload) for workload in run.results},
        "seconds of operations": {str(operation): seconds for operation, seconds in run.speeds.items()},
        "failures": run.failures,
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "torch", "numpy")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
