"""Draw the losses of a run."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jax_attn.plots import save
from train.training.report import Report


def write(reports: Sequence[Report], path: Path) -> None:
    """Draw the losses against the steps, and the scores of the validation, if there are some, below them.

    A picture that cannot be written is a warning.
    """
    scores = {"BLEU": [report.bleu for report in reports], "chrF": [report.chrf for report in reports]}
    scores = {name: values for name, values in scores.items() if None not in values}
    steps, marker = [report.step for report in reports], "." if len(reports) < 50 else ""
    figure = Figure(figsize=(6.4, 3.6 + 2.4 * bool(scores)), layout="constrained")
    axes = figure.subplots(1 + bool(scores), 1, sharex=True, squeeze=False)[:, 0]
    axes[0].plot(steps, [report.loss for report in reports], marker=marker, label="training")
    if reports[0].valid_loss is not None:
        axes[0].plot(steps, [report.valid_loss for report in reports], marker=marker, label="validation")
    axes[0].set_ylabel("loss (nats a token)")
    for name, values in scores.items():
        axes[1].plot(steps, values, marker=marker, label=name)
        axes[1].set_ylabel("score of the validation")
    for ax in axes:
        ax.grid(alpha=0.3)
        ax.legend()
    axes[-1].set_xlabel("training steps")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    try:
        save(figure, path)
    except (OSError, ValueError, RuntimeError) as error:
        warnings.warn(f"{path.name} is not written: {error}", stacklevel=2)
