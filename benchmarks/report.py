"""The measurements as tables for the terminal and as JSON."""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks import limits
from benchmarks.records import WITHOUT, Ratio, Run, Spread, Workload

UNITS = {"product": "products\nGFLOP/s", "tanh": "tanh\nG/s", "exp": "exp\nG/s", "copy": "copies\nGB/s"}


def ratios_of(run: Run) -> dict[Ratio, Spread]:
    """Compute the ratios of what was measured."""
    found = {ratio: ratio.of(entries) for workload, entries in run.results.items() for ratio in workload.ratios}
    return {ratio: spread for ratio, spread in found.items() if spread is not None}


def shares_of_limit(run: Run, workload: Workload) -> dict[str, float]:
    """Return the workload's least time divided by the measured ones, without what is not comparable."""
    least = limits.least_seconds(workload.needs, run.speeds)
    entries = run.results[workload] if least else {}
    return {name: least / entry.spread.median for name, entry in entries.items() if least and name != WITHOUT}


def make_tables(run: Run) -> Iterator[Table]:
    """Make what is printed: times, the speeds of this machine at each workload's operations, and ratios."""
    headings = ("median", "per\nsecond", "spread", "of the\nlimit", "peak\nmemory")
    times = _table("time and memory", "implementation", *headings)
    for workload, entries in run.results.items():
        shares = shares_of_limit(run, workload)
        times.add_row(f"[bold]{workload.name}[/bold] (one {workload.unit})")
        for name in workload.implementations:
            if name not in entries:
                times.add_row(f"  {name}: needs a C++ compiler")
                continue
            median, iqr = entries[name].spread
            scale, unit = (1, "s") if median >= 1 else (1e3, "ms") if median >= 1e-3 else (1e6, "µs")
            share, peak = shares.get(name), entries[name].peak_bytes
            times.add_row(
                f"  {name}",
                f"{median * scale:.3g} {unit}",
                f"{1 / median:,.0f}" if median < 1e-2 else f"{1 / median:.3g}",
                f"{iqr / median:.0%}",
                "" if share is None else f"{share:.0%}",
                "" if peak is None else f"{peak / 1e6:,.0f} MB",
            )
        times.add_section()
    yield times
    speeds = _table("speeds of this machine, JAX / PyTorch", "at the shapes of", *UNITS.values())
    for workload in run.results:
        found = [limits.rates(workload.needs, run.speeds, name).values() for name in UNITS]
        if any(found):
            speeds.add_row(workload.name, *(" / ".join(f"{rate / 1e9:.3g}" for rate in rates) for rates in found))
    if speeds.rows:
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


def make_json(run: Run) -> dict[str, Any]:
    """Collect everything that was measured for a program, and what it was measured on."""
    results = {}
    for workload, entries in run.results.items():
        shares = shares_of_limit(run, workload)
        results[workload.name] = {
            name: {**asdict(entry), "share_of_limit": shares.get(name)} for name, entry in entries.items()
        }
    return {
        "ratios": {
            ratio.name: {"median": spread.median, "spread": spread.iqr, "goal": ratio.goal}
            for ratio, spread in ratios_of(run).items()
        },
        "workloads": results,
        "seconds of operations": {str(operation): seconds for operation, seconds in run.speeds.items()},
        "failures": run.failures,
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "torch", "numpy")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor()
