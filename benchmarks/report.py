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

from rich.box import MARKDOWN
from rich.table import Table

from benchmarks import limits
from benchmarks.records import OURS, WITHOUT, Entry, Run, Workload

UNITS = {"product": "products, GFLOP/s", "tanh": "tanh, G/s", "exp": "exp, G/s", "copy": "copies, GB/s"}


def shares_of_limit(run: Run, workload: Workload) -> dict[str, float]:
    """Return the workload's least time divided by the measured ones, without what is not comparable."""
    least = limits.least_seconds(workload.needs, run.speeds)
    entries = run.results[workload] if least else {}
    return {name: least / entry.spread.median for name, entry in entries.items() if least and name != WITHOUT}


def make_tables(run: Run) -> Iterator[Table]:
    """Make what is printed: times, the speeds of this machine at each workload's operations, and ratios."""
    times = _table("time and memory", "implementation", "median", "per second", "spread", "of the limit", "peak memory")
    speeds = _table("speeds of this machine, JAX / PyTorch", "at the shapes of", *UNITS.values())
    ratios = _table("ratios", "ratio", "measured", "spread", "goal", "", "of the limit: ours, theirs", "products")
    for workload, entries in run.results.items():
        shares = shares_of_limit(run, workload)
        times.add_row(f"{workload.name} (one {workload.unit})")
        for name, entry in entries.items():
            times.add_row(f"- {name}", *_cells(entry, shares.get(name)))
        rates = {name: limits.rates(workload.needs, run.speeds, name) for name in UNITS}
        if any(rates.values()):
            cells = [" / ".join(f"{rate / 1e9:.3g}" for rate in found.values()) for found in rates.values()]
            speeds.add_row(workload.name, *cells)
        products = rates["product"] and f"{rates['product']['JAX'] / rates['product']['PyTorch']:.2f}"
        for ratio in workload.ratios:
            if found := ratio.of(entries):
                unit = " s" if ratio.below is None else "×"
                goal = f"{'≥' if ratio.below == OURS else '≤'} {ratio.goal:g}{unit}"
                compared = () if ratio.memory else dict.fromkeys((OURS, ratio.best(entries)))
                ratios.add_row(
                    ratio.name,
                    f"{found.median:.3g}{unit}",
                    f"{found.iqr / found.median:.0%}",
                    goal,
                    "met" if ratio.met(found.median) else "[red]missed[/red]",
                    ", ".join(f"{shares[name]:.0%}" for name in compared if name in shares),
                    products or "",
                )
    return (table for table in (times, speeds, ratios) if table.rows)


def _table(title: str, first: str, *headings: str) -> Table:
    """Make a table that is Markdown, as docs/speed.md has it."""
    table = Table(title=title, title_justify="left", box=MARKDOWN)
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
    ratios, results = {}, {}
    for workload, entries in run.results.items():
        shares = shares_of_limit(run, workload)
        results[workload.name] = {
            name: {**asdict(entry), "share_of_limit": shares.get(name)} for name, entry in entries.items()
        }
        for ratio in workload.ratios:
            if found := ratio.of(entries):
                ratios[ratio.name] = {"median": found.median, "spread": found.iqr, "goal": ratio.goal}
    return {
        "ratios": ratios,
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
