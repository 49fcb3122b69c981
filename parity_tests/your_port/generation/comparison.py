"""Compare two models that generate, token by token: `compare_generation`. This module imports torch.

Full forward passes, steps with a cache, and free-running generation are three programs of one model, and each may be
wrong alone. All are held to PyTorch's full forward pass in float64, on the tokens that it chooses itself. With u the
unit roundoff of the run's dtype, a logit may be off by

    float64     1e-10 size
    narrower    8 u size + 2 e

where size is the largest logit of the position, and e the most that PyTorch's own logits are off there: in this dtype,
or in float64 with each weight moved by u at random. Where a router's choice is within rounding, e is as large as the
jump. Logits that a softmax makes 0, such as the −1e9 of a token that is never to be chosen, count as equal, and not as
a size. In free-running generation, another token is a tie if PyTorch's logits of the two are within twice the bound.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity_tests.your_port.generation.decoder import Decoder
from parity_tests.your_port.generation.hugging_face import hugging_face
from parity_tests.your_port.generation.judge import Judge, distances, sizes
from parity_tests.your_port.generation.report import FREE, FULL, OWN, STEPS, GenerationReport
from parity_tests.your_port.generation.sides import Side
from parity_tests.your_port.measure.errors import unit_roundoff
from parity_tests.your_port.measure.torch_side import TORCH_DTYPES
from parity_tests.your_port.measure.width import own_tables

MOVED_RUNS = 3
"""How often the weights are moved at random, to read how far rounding moves a logit."""


@own_tables(has_tables=True)
def compare_generation(
    torch_side: Any,
    jax_side: Decoder,
    inputs: Mapping[str, Any],
    *,
    tokens: int = 32,
    end: int | Sequence[int] | None = None,
    dtype: str = "float64",
    name: str = "",
) -> GenerationReport:
    """Compare a model of PyTorch that generates with its JAX port: full forward, prefill and steps, free-running.

        print(compare_generation(llama, Decoder(prefill, step, full), {"input_ids": ids, "attention_mask": mask}))

    Args:
        torch_side: a model of Hugging Face's transformers, or (module, Decoder).
        jax_side: the port, with weights of the dtype.
        inputs: the prompts for both sides, NumPy's arrays by name. Prompts of several lengths show more: padding on the
            left, and an `attention_mask` of it.
        tokens: how many new tokens there are. More than a window or the steps of a cache show more.
        end: the token that ends a text, or several of which each does.
        dtype: float64, or a narrower one. PyTorch's module is copied and converted.
        name: what the report calls the two.

    Raises:
        ValueError: a side raises, or returns logits of another shape or dtype, or PyTorch's are NaN; the message says
            which.
    """
    if tokens < 1 or dtype not in TORCH_DTYPES:
        raise ValueError(
            f"tokens must be 1 or more, and dtype one of {', '.join(TORCH_DTYPES)}; got {tokens}, {dtype!r}"
        )
    if not isinstance(jax_side, Decoder) or not inputs:
        raise ValueError("jax_side must be a Decoder(prefill, step, full), and inputs a dict that holds the prompts")
    module, decoder = torch_side if isinstance(torch_side, tuple) else (torch_side, hugging_face(torch_side))
    given = {key: np.asarray(x) for key, x in inputs.items()}
    truth = Side.of_torch(decoder, given, module, "float64")
    chosen = truth.greedy(tokens)
    full, stepped = truth.full(chosen), truth.stepped(chosen)
    size = sizes(full)
    bounds = exact = 1e-10 * size
    rule = "float32" if dtype == "float64" and truth.is_narrow_inside else dtype
    if rule != "float64":
        noise = np.zeros_like(size)
        if dtype != "float64":
            own = Side.of_torch(decoder, given, module, dtype)
            noise = np.maximum(distances(own.full(chosen), full), distances(own.stepped(chosen), full))
        for draw in range(MOVED_RUNS):
            moved = Side.of_torch(decoder, given, module, "float64", moved_by=(unit_roundoff(rule), draw))
            noise = np.maximum(noise, distances(moved.full(chosen), full))
        bounds = 8 * unit_roundoff(rule) * size + 2 * noise
    in_jax = Side.of_jax(jax_side, given, dtype)
    judge = Judge(name or type(module).__name__, dtype, rule, given, chosen, full)
    judge.logits("PyTorch", STEPS, stepped, bounds if truth.is_narrow_inside else exact)
    in_full = in_jax.full(chosen)
    if in_full.shape[-1] != full.shape[-1]:
        raise ValueError(f"JAX's logits are of {in_full.shape[-1]} tokens, and PyTorch's of {full.shape[-1]}")
    judge.logits("JAX", FULL, in_full, bounds)
    judge.logits("JAX", STEPS, in_jax.stepped(chosen), bounds)
    judge.tokens(FREE, in_jax.greedy(tokens), bounds, end)
    if jax_side.generate is not None:
        judge.tokens(OWN, in_jax.generated(tokens), bounds, end)
    return judge.report(bounds)
