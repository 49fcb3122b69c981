"""The measurements as tables for the terminal and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from parity_tests.speed.limits import limit_seconds
from parity_tests.speed.measure import Entry, Measured, Run, Spread
from parity_tests.speed.records import Ratio

Rates = Mapping[str, Mapping[str, float]]

CEILING_UNITS = {"gemm": "GFLOP/s", "small gemm": "GFLOP/s", "tanh": "G/s", "copy": "GB/s"}


def make_times_table(results: Sequence[Measured], rates: Rates) -> Table:
    """Show every implementation of every workload."""
    table = _table("time and memory", "implementation", "median", "per\nsecond", "spread")
    for heading in ("of the\nlimit", "peak\nmemory", "compile", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(f"[bold]{result.workload.name}[/bold] (one {result.workload.unit})")
        for name, entry in result.entries.items():
            table.add_row(f"  {name}", *_cells(entry, share_of_limit(result, name, rates)))
        table.add_section()
    return table


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(entry: Entry, share: float | None) -> Sequence[str]:
    median = entry.spread.median
    return (
        format_seconds(median),
        f"{1 / median:,.0f}" if median < 1e-2 else f"{1 / median:.3g}",
        f"{entry.spread.relative:.0%}",
        "" if share is None else f"{share:.0%}",
        "" if entry.peak_bytes is None else f"{entry.peak_bytes / 1e6:,.0f} MB",
        f"{entry.compile_seconds:.1f} s",
        f"{entry.error:.0e}" if entry.error else "",
    )


def make_ratio_table(ratios: Mapping[Ratio, Spread | None]) -> Table:
    """Show the ratios that were measured beside their goals."""
    table = _table("ratios", "ratio", "measured", "spread", "goal", "")
    for ratio, spread in ratios.items():
        if spread is None:
            continue
        unit = " s" if ratio.name.endswith("seconds") else "×"
        goal = "" if ratio.goal is None else f"{'≤' if ratio.lower_is_better else '≥'} {ratio.goal:g}{unit}"
        verdict = {True: "met", False: "[red]missed[/red]", None: ""}[ratio.met(spread.median)]
        table.add_row(ratio.name, f"{spread.median:.3g}{unit}", f"{spread.relative:.0%}", goal, verdict)
    return table


def describe_ceilings(rates: Rates) -> str:
    """Write what this machine can do."""
    lines = (
        f"  {name}: {' / '.join(f'{rate / 1e9:.3g}' for rate in frameworks.values())} {CEILING_UNITS[name]}"
        for name, frameworks in rates.items()
    )
    return "\n".join(["ceilings of this machine, JAX / PyTorch", *lines, ""])


def describe_left_out(results: Sequence[Measured]) -> str:
    """Write which implementations did not run, and why."""
    return "\n".join(
        f"left out of {result.workload.name}: {name} ({why})"
        for result in results
        for name, why in result.left_out.items()
    )


def make_json(run: Run, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Collect everything for a program. Every ratio has a key; it is null if it was not measured."""
    ratios = run.ratios()
    medians = {ratio: None if spread is None else spread.median for ratio, spread in ratios.items()}
    return {
        "ratios": {ratio.name: median for ratio, median in medians.items()},
        "spreads": {ratio.name: None if spread is None else spread.iqr for ratio, spread in ratios.items()},
        "goals": {ratio.name: ratio.goal for ratio in ratios},
        "met": {ratio.name: ratio.met(median) for ratio, median in medians.items()},
        "workloads": {result.workload.name: _workload_json(result, run.rates) for result in run.results},
        "start": {name: spread._asdict() for name, spread in run.start.items()},
        "ceilings": run.rates,
        "failures": run.failures,
        "machine": machine,
    }


def _workload_json(result: Measured, rates: Rates) -> dict[str, Any]:
    implementations = {
        name: {
            "median_seconds": entry.spread.median,
            "iqr_seconds": entry.spread.iqr,
            "seconds": entry.seconds,
            "share_of_limit": share_of_limit(result, name, rates),
            "compile_seconds": entry.compile_seconds,
            "peak_bytes": entry.peak_bytes,
            "error": entry.error,
        }
        for name, entry in result.entries.items()
    }
    return {"unit": result.workload.unit, "implementations": implementations, "left_out": result.left_out}


def share_of_limit(result: Measured, name: str, rates: Rates) -> float | None:
    """Return the limit divided by the measured time; None if there is no limit for this implementation."""
    best = {ceiling: max(frameworks.values()) for ceiling, frameworks in rates.items()}
    limit = limit_seconds(result.workload.limit, best)
    if limit is None or not result.workload.implementation(name).comparable:
        return None
    return limit / result.entries[name].spread.median


def format_seconds(seconds: float) -> str:
    """Write seconds with three digits in a suitable unit."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
