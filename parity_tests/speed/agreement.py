"""Whether what was timed computes the same thing."""

from collections.abc import Mapping

import numpy as np

from parity_tests.speed.workload import Agreement


class DisagreementError(AssertionError):
    """Two contestants with different results: their times mean nothing."""


def require_agreement(
    name: str, outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray], bound: Agreement
) -> float:
    """The largest error of a tensor of floats, max|a − b| / max|b|.

    Rows of ids (the last axis is a row) may differ in the share that `bound.ids` allows, and then the floats of those
    examples, which lead with the same axis, are not compared.

    Raises:
        DisagreementError: another set of tensors, another shape, or a difference beyond the bound.
    """
    if set(outputs) != set(reference):
        raise DisagreementError(f"{name} has {sorted(outputs)}, where the reference has {sorted(reference)}")
    kept = _rows_alike(name, outputs, reference, bound)
    worst = 0.0
    for tensor, truth in reference.items():
        found = outputs[tensor]
        if found.shape != truth.shape:
            raise DisagreementError(f"{name}: {tensor} is {list(found.shape)}, in the reference {list(truth.shape)}")
        if truth.dtype.kind != "f":
            continue
        if kept is not None:
            found, truth = found[kept], truth[kept]
        scale = float(np.abs(truth).max(initial=0)) or 1.0
        error = float(np.abs(found.astype(np.float64) - truth).max(initial=0)) / scale
        if not error <= bound.floats:
            raise DisagreementError(f"{name}: {tensor} is {error:.2g} from the reference; {bound.floats:g} is allowed")
        worst = max(worst, error)
    return worst


def _rows_alike(
    name: str, outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray], bound: Agreement
) -> np.ndarray | None:
    """Which examples have the ids of the reference; None where there are no ids."""
    kept = None
    for tensor, truth in reference.items():
        if truth.dtype.kind == "i" and outputs[tensor].shape == truth.shape:
            alike = (outputs[tensor] == truth).reshape(len(truth), -1).all(axis=1)
            if (~alike).mean() > bound.ids:
                raise DisagreementError(
                    f"{name}: {tensor} differs in {(~alike).sum()} of {len(alike)} rows; {bound.ids:.0%} may"
                )
            kept = alike if kept is None else kept & alike
    return kept
