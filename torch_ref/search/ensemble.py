"""Several models as one step.

Source: Sutskever et al. 2014 and fairseq average probabilities; a product of experts averages their logarithms.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ref.functional.precision import widen
from torch_ref.search.greedy import Step


def ensemble(steps: Sequence[Step], *, average: str = "probability") -> Callable[..., Any]:
    """Make a step whose state and memory are tuples, one entry for each model.

    "probability": p(n) = mean of the models' p(n). "log": p(n) proportional to exp(mean of the models' log p(n)).
    Weights are the mean over the models that return any.
    """
    if average not in ("probability", "log"):
        raise ValueError(f"average must be probability or log; got {average!r}")

    def combined(tokens: Tensor, states: Any, memories: Any) -> tuple[Tensor, Any, Tensor | None]:
        results = [step(tokens, *each) for step, *each in zip(steps, states, memories, strict=True)]
        log_probs, new_states, weights = zip(*results, strict=True)
        given = [w for w in weights if w is not None]
        mean_weights = torch.stack(given).mean(0) if given else None
        return mean_of(torch.stack(log_probs), average), new_states, mean_weights

    return combined


def mean_of(log_probs: Tensor, average: str) -> Tensor:
    """Average [M, rows, N] over the models: [rows, N]. A row without any possible token stays -inf."""
    (wide,) = widen(log_probs)
    if average == "probability":
        mean = wide.exp().mean(0).log()
    else:
        mean = wide.mean(0)
        possible = (mean > -torch.inf).any(-1, keepdim=True)
        mean = torch.where(possible, torch.log_softmax(mean, -1), mean)
    return mean.to(log_probs.dtype)
