"""What was measured, as tables that a person reads and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from parity_tests.speed.growth import Sweep
from parity_tests.speed.limits import limit_seconds
from parity_tests.speed.measure import Entry, Measured
from parity_tests.speed.rounds import Spread
from parity_tests.speed.sitting import Sitting
from parity_tests.speed.workload import Ratio


def as_times_table(results: Sequence[Measured], rates: Mapping[str, float]) -> Table:
    """Every contestant of every workload."""
    table = Table(title="time and memory", title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("contestant", no_wrap=True)
    for heading in ("median", "a second", "spread", "of the\nlimit", "peak\nmemory", "to\ncompile", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        unit = result.workload.unit
        table.add_row(f"[bold]{result.workload.name}[/bold]" + ("" if unit == "call" else f", a {unit}"))
        for contestant, entry in result.entries.items():
            spread, share = entry.spread, share_of_limit(result, contestant, rates)
            numbers = (
                seconds_text(spread.median),
                f"{1 / spread.median:,.0f}" if spread.median < 1e-2 else f"{1 / spread.median:.3g}",
                f"{spread.relative:.0%}",
                "" if share is None else f"{share:.0%}",
                "" if entry.peak_bytes is None else f"{entry.peak_bytes / 1e6:,.0f} MB",
                f"{entry.compile_seconds:.1f} s",
                f"{entry.error:.0e}" if entry.error else "",
            )
            table.add_row(f"  {contestant}", *numbers)
        table.add_section()
    return table


def as_left_out_text(results: Sequence[Measured]) -> str:
    """Who did not take part, and why, a line each."""
    return "\n".join(
        f"left out of {result.workload.name}: {contestant}: {why}"
        for result in results
        for contestant, why in result.left_out.items()
    )


def as_growth_table(sweep: Sweep, results: Sequence[Measured]) -> Table:
    """A row for each point, time and peak memory of each contestant."""
    by_name = {result.workload.name: result for result in results}
    others = ", ".join(f"{name} {value}" for name, value in sweep.points[0].items() if name != sweep.quantity)
    title = f"{sweep.name} by {sweep.quantity}" + (f" ({others})" if others else "")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(sweep.quantity, justify="right")
    for line in sweep.lines:
        table.add_column(line.name, justify="right")
    for point in sweep.points:
        result = by_name.get(sweep.workload_name(point))
        if result is not None:
            cells = (_growth_cell(result.entries.get(line.name)) for line in sweep.lines)
            table.add_row(f"{point[sweep.quantity]:,}", *cells)
    return table


def _growth_cell(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    memory = "" if entry.peak_bytes is None else f", {entry.peak_bytes / 1e6:,.0f} MB"
    return seconds_text(entry.spread.median) + memory


def as_ratio_table(ratios: Mapping[Ratio, Spread | None]) -> Table:
    """The ratios beside their goals."""
    table = Table(title="ratios", title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("ratio", no_wrap=True)
    for heading in ("measured", "spread", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for ratio, spread in ratios.items():
        if spread is None:
            continue
        unit = " s" if ratio.name.endswith("seconds") else "×"
        sign = "≤" if ratio.lower_is_better else "≥"
        goal = "" if ratio.goal is None else f"{sign} {ratio.goal:g}{unit}"
        met = ratio.met(spread.median)
        verdict = "" if met is None else "met" if met else "[red]missed[/red]"
        table.add_row(ratio.name, f"{spread.median:.3g}{unit}", f"{spread.relative:.0%}", goal, verdict)
    return table


def as_ceiling_text(rates: Mapping[str, Mapping[str, float]]) -> str:
    """The ceilings of this machine on one line."""
    units = {"gemm": "GFLOP/s", "small gemm": "GFLOP/s", "tanh": "G/s", "copy": "GB/s"}
    parts = (
        f"{name} {' / '.join(f'{rate / 1e9:.3g}' for rate in of.values())} {units[name]}" for name, of in rates.items()
    )
    return "ceilings (JAX / PyTorch): " + ", ".join(parts)


def as_json(sitting: Sitting, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, for a program. `ratios` has every key, null where it was not measured."""
    ratios = sitting.ratios()
    return {
        "ratios": {ratio.name: _median(spread) for ratio, spread in ratios.items()},
        "spreads": {ratio.name: None if spread is None else spread.iqr for ratio, spread in ratios.items()},
        "goals": {ratio.name: ratio.goal for ratio in ratios},
        "met": {ratio.name: ratio.met(_median(spread)) for ratio, spread in ratios.items()},
        "workloads": {result.workload.name: _workload_json(result, sitting.rates) for result in sitting.results},
        "start": {name: {"median": spread.median, "iqr": spread.iqr} for name, spread in sitting.start.items()},
        "ceilings": sitting.rates,
        "failures": sitting.failures,
        "machine": machine,
    }


def _workload_json(result: Measured, rates: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    best = best_rates(rates)
    contestants = {
        name: {
            "median_seconds": entry.spread.median,
            "iqr_seconds": entry.spread.iqr,
            "seconds": entry.seconds,
            "share_of_limit": share_of_limit(result, name, best),
            "compile_seconds": entry.compile_seconds,
            "peak_bytes": entry.peak_bytes,
            "process_bytes": entry.process_bytes,
            "error": entry.error,
        }
        for name, entry in result.entries.items()
    }
    return {"unit": result.workload.unit, "contestants": contestants, "left_out": result.left_out}


def share_of_limit(result: Measured, contestant: str, rates: Mapping[str, float]) -> float | None:
    """How much of the machine's limit a contestant reaches; None where the workload's needs are not its own."""
    limit = limit_seconds(result.workload.limit, rates)
    if limit is None or result.workload.contestant(contestant).another:
        return None
    return limit / result.entries[contestant].spread.median


def best_rates(rates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each ceiling in the framework that reaches more."""
    return {name: max(of.values()) for name, of in rates.items()}


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def seconds_text(seconds: float) -> str:
    """With three digits, in the unit that suits."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
