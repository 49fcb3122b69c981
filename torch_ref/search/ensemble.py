"""Several models as one step.

Source: Sutskever et al. 2014 and fairseq average probabilities; their logarithms are averaged in a product of experts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ref.functional.checks import check_choice
from torch_ref.search.greedy import Step


def ensemble(steps: Sequence[Step], *, average: str = "probability") -> Callable[..., Any]:
    """A step whose state and memory are tuples, one entry for each model.

    "probability": p(n) = mean of the models' p(n). "log": p(n) proportional to exp(mean of the models' log p(n)).
    Weights are the mean over the models that return any.
    Errors: ValueError for no steps, an unknown average, and states or memories that are not one for each.
    """
    steps = tuple(steps)
    if not steps:
        raise ValueError("steps must hold at least 1 step; got 0")
    check_choice("average", average, ("probability", "log"))

    def combined(tokens: Tensor, states: Any, memories: Any) -> tuple[Tensor, Any, Tensor | None]:
        if len(states) != len(steps) or len(memories) != len(steps):
            raise ValueError(f"state and memory must hold {len(steps)}; got {len(states)} and {len(memories)}")
        log_probs, new_states, weights = [], [], []
        for step, state, memory in zip(steps, states, memories, strict=True):
            of_model, new_state, attended = step(tokens, state, memory)
            log_probs.append(of_model)
            new_states.append(new_state)
            if attended is not None:
                weights.append(attended)
        mean_weights = torch.stack(weights).mean(0) if weights else None
        return mean_of(torch.stack(log_probs), average), tuple(new_states), mean_weights

    return combined


def mean_of(log_probs: Tensor, average: str) -> Tensor:
    """[M, rows, N] -> [rows, N]; a row without any possible token stays -inf."""
    wide = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
    if average == "probability":
        mean = wide.exp().mean(0).log()
    else:
        mean = wide.mean(0)
        possible = (mean > -torch.inf).any(-1, keepdim=True)
        mean = torch.where(possible, torch.log_softmax(mean, -1), mean)
    return mean.to(log_probs.dtype)
