"""The comparison as a table: for a terminal, and for a page in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

HEADS = ("attention", "BLEU", "alignment error", "tokens/s", "peak memory", "parameters", "of attention")


def cells(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table, its heads first; what is not known is –."""
    return [HEADS, *(_row(row) for row in comparison["attentions"])]


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    memory = row["peak_device_memory_bytes"] or row["peak_memory_bytes"]
    return (
        row["attention"],
        interval(row["bleu"], 1),
        interval(row["alignment_error"], 3),
        f"{row['tokens_per_second']:,.0f}",
        "–" if memory is None else f"{memory / 1e6:,.0f} MB",
        f"{row['parameters']:,}",
        f"{row['attention_parameters']:,}",
    )


def interval(told: Mapping[str, float] | None, digits: int) -> str:
    """`96.5 [95.9, 97.0]`"""
    if told is None:
        return "–"
    return f"{told['value']:.{digits}f} [{told['low']:.{digits}f}, {told['high']:.{digits}f}]"


def notes(comparison: Mapping[str, Any]) -> list[str]:
    """What has to be known to read the table, and what may not be read out of it."""
    rows = comparison["attentions"]
    seeds = comparison["seeds"]
    lines = [
        f"BLEU and alignment error: the mean over {_number(len(seeds), 'seed')}, with the 95 % of a bootstrap over "
        f"seeds and the {comparison['test_pairs']} test sentences; tokens/s and memory: the median of the runs."
    ]
    diagonal = comparison["alignment_error_of_diagonal"]
    if diagonal is not None:
        lines.append(f"Each word linked to the same place of its sentence has an alignment error of {diagonal:.3f}.")
    for name, called in (("bleu", "BLEU"), ("alignment_error", "alignment error")):
        alike = [row["attention"] for row in rows[1:] if _holds_zero(row[f"{name}_beside_first"])]
        if alike:
            lines.append(f"In {called}, these cannot be told from {rows[0]['attention']}: {', '.join(alike)}.")
    return lines


def _holds_zero(difference: Mapping[str, float] | None) -> bool:
    return difference is not None and difference["low"] <= 0 <= difference["high"]


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def ranks(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What a bilinear attention's W is with fewer directions, see `rank`."""
    rows = [
        (f"{row['rank']:.0f}", f"{row['share']:.0%}", f"{row['alignment_error']:.3f}")
        for row in comparison["bilinear_ranks"]
    ]
    return [("singular values kept", "of ‖W‖²", "alignment error"), *rows]


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "   ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same for a page."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" + "|--:" * (len(rows[0]) - 1) + "|", *body])
