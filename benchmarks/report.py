"""The measurements as tables for the terminal and as JSON, and the comparison with an earlier run.

A ratio has fallen if it is worse than the earlier one by more than the noise, as a share of the earlier median:

    noise = max(10 %, the earlier quartile distance + the one measured now)

The quartile distance is two to three times the standard error of a median of five to eleven rounds, so the sum of two
is a wide margin. Medians of separate runs on one idle machine differ by about 10 %.
"""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.measure import Entry, Measured, Run, Spread
from benchmarks.workloads import Ratio

Rates = Mapping[str, Mapping[str, float]]

LEAST_NOISE = 0.1

CEILING_UNITS = {"gemm": "GFLOP/s", "small gemm": "GFLOP/s", "tanh": "G/s", "copy": "GB/s"}


def make_times_table(results: Sequence[Measured], rates: Rates) -> Table:
    """Show every implementation of every workload."""
    table = _table("time and memory", "implementation", "median", "per\nsecond", "spread")
    for heading in ("of the\nlimit", "peak\nmemory", "compile", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(f"[bold]{result.workload.name}[/bold] (one {result.workload.unit})")
        for name, entry in result.entries.items():
            table.add_row(f"  {name}", *_cells(entry, result.share_of_limit(name, rates)))
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


def make_json(run: Run) -> dict[str, Any]:
    """Collect everything for a program. Every ratio has a key; it is null if it was not measured."""
    ratios = run.ratios()
    medians = {ratio: None if spread is None else spread.median for ratio, spread in ratios.items()}
    return {
        "ratios": {ratio.name: median for ratio, median in medians.items()},
        "spreads": {ratio.name: None if spread is None else spread.iqr for ratio, spread in ratios.items()},
        "goals": {ratio.name: ratio.goal for ratio in ratios},
        "met": {ratio.name: ratio.met(median) for ratio, median in medians.items()},
        "workloads": {result.workload.name: _workload_json(result, run.rates) for result in run.results},
        "ceilings": run.rates,
        "failures": run.failures,
        "machine": describe_machine(run.device),
    }


def _workload_json(result: Measured, rates: Rates) -> dict[str, Any]:
    implementations = {
        name: {
            "median_seconds": entry.spread.median,
            "iqr_seconds": entry.spread.iqr,
            "seconds": entry.seconds,
            "share_of_limit": result.share_of_limit(name, rates),
            "compile_seconds": entry.compile_seconds,
            "peak_bytes": entry.peak_bytes,
            "error": entry.error,
        }
        for name, entry in result.entries.items()
    }
    return {"unit": result.workload.unit, "implementations": implementations, "left_out": result.left_out}


def format_seconds(seconds: float) -> str:
    """Write seconds with three digits in a suitable unit."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def describe_changes(now: Mapping[str, Any], earlier: Mapping[str, Any], ratios: Sequence[Ratio]) -> dict[str, bool]:
    """Compare two results of `make_json`: a line for each ratio that both have -> whether it has fallen.

    Lines that start with "warning" speak of another machine, and of ratios that the earlier run has not measured.
    """
    there, here = earlier["machine"], now["machine"]
    lines = {}
    if any(there[part] != here[part] for part in ("cpu", "cores", "device", "gpu")):
        names = (f"{m['cpu']}, {m['cores']} cores, {m['gpu'] or 'no GPU'}" for m in (there, here))
        lines["warning: the earlier run was on another machine ({}; this is {})".format(*names)] = False
    for ratio in ratios:
        value, before = now["ratios"][ratio.name], earlier["ratios"].get(ratio.name)
        if value is None:
            continue
        if before is None:
            lines[f"warning: {ratio.name} was not measured earlier"] = False
            continue
        noise = max(LEAST_NOISE, (now["spreads"][ratio.name] + earlier["spreads"][ratio.name]) / before)
        better = (1 - value / before) if ratio.lower_is_better else (value / before - 1)
        fell = not -better <= noise
        change = f"{before:.3g} earlier, {value:.3g} now ({better:+.0%}, noise {noise:.0%})"
        lines[f"{ratio.name}: {change} {'FELL' if fell else 'holds'}"] = fell
    return lines


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
