"""Say where two programs part, and by which known mistake: `place` finds the tensor, `cause` explains it.

This file imports no torch until there is a difference to explain.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from parity_tests.your_port.cause.cause import Cause, Found, in_words
from parity_tests.your_port.cause.symptoms import describe
from parity_tests.your_port.measure.case import DTYPES, Case, Variant
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.place.bisect import Compared, Search


@dataclass(frozen=True)
class Divergence(Measurement):
    """The first tensor in which two programs differ: an intermediate one, an output or a gradient."""

    agreed: tuple[str, ...] = ()
    """The tensors that were compared before it, and agree."""
    symptoms: tuple[str, ...] = ()
    """What the difference looks like."""
    found: Found | None = field(default_factory=Found)
    """What the search for a known mistake found; None if it was not made, which needs PyTorch itself."""
    module: str = ""
    """PyTorch's path of the submodule in which they part; empty: the program's own code."""
    in_jax: str = ""
    """Its path in JAX."""

    @property
    def phase(self) -> str:
        """The pass in which the two part."""
        return "backward" if self.is_gradient else "forward"

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The known mistakes that fit: with one of them made on purpose, the two agree."""
        return () if self.found is None else self.found.causes

    def lines(self) -> Iterator[str]:
        """Say where the two part, what the difference looks like, and why."""
        after = f", after {self.agreed[-1]}" if self.agreed else ""
        yield f"first difference: the {self.phase} pass at {self.tensor}{after}: {self.difference}"
        yield from (f"looks like: {symptom}" for symptom in self.symptoms[:1])
        yield f"cause: {in_words(self.found)}"

    def __str__(self) -> str:
        return "\n  ".join([f"{self.case} | {self.variant} | {self.dtype}", *self.lines()])


def find_divergence(
    case: Case,
    variant: Variant | None = None,
    dtype: str | None = None,
    seconds: float = 60.0,
) -> Divergence | None:
    """Find the first tensor in which a case's two programs differ; None if they agree.

    Args:
        case: one of the registry, or your own.
        variant: one of the case's; by default the first that disagrees.
        dtype: by default the widest that the case has inputs for. Another, if the two agree there.
        seconds: of computing time that the search for causes may take.

    Raises:
        ValueError: if no variant has that dtype.
    """
    variants = case.variants if variant is None else (variant,)
    widest = next((name for name in DTYPES if any(name in candidate.dtypes for candidate in variants)), "float64")
    chosen = [candidate for candidate in variants if (dtype or widest) in candidate.dtypes]
    if not chosen:
        raise ValueError(f"{case.name} has no inputs in {dtype}; its variants must have it in `dtypes`")
    found = (explain_difference(Draw(case, candidate, dtype or widest), seconds) for candidate in chosen)
    return next((divergence for divergence in found if divergence is not None), None)


def explain_difference(draw: Draw, seconds: float = 60.0, beside: Sequence[Case] = ()) -> Divergence | None:
    """Find the first tensor that differs in a draw, and the mistake that makes it; None if the two agree.

    Args:
        draw: its runs are taken as far as they are made.
        seconds: of computing time that the search for causes may take.
        beside: other cases of the two programs that a cause has to explain too, such as a step of training.
    """
    draw = draw.fitting()
    failed = {m.tensor for m in draw.measure_draws() if m.failed}
    if not failed:
        return None
    # The first draw may hide by luck what fails in the median.
    draw, first = next((each, m) for each in draw.redrawn() for m in each.measure() if m.failed and m.tensor in failed)
    words = f"{first.difference}, and only in the compiled program: without `jax.jit` it agrees"
    return _find_in_runs(Search(draw), seconds, beside) or Divergence(**{**vars(first), "mismatch": words})


def _find_in_runs(search: Search, seconds: float, beside: Sequence[Case]) -> Divergence | None:
    """Find the first tensor that differs, and the mistake that makes it; None if all agree."""
    seen = search.compare_all()
    first = next((x for x in seen if x.measured.failed), None)
    if first is None:
        return None
    place, module = search.place(first), search.module(first)
    return Divergence(
        **vars(first.measured),
        agreed=tuple(x.measured.tensor for x in seen[: seen.index(first)] if not x.tensor.is_input),
        symptoms=describe(first.tensor.value, first.partner.truth),
        found=_explain(search, first, module, time.process_time() + seconds, beside),
        module=module,
        in_jax=place[-1] if place else "",
    )


def _explain(search: Search, first: Compared, module: str, deadline: float, beside: Sequence[Case]) -> Found | None:
    """Search for a known mistake: in the submodules of JAX and PyTorch, or in the gradients."""
    if search.draw.case.torch.golden is not None:
        return None
    from parity_tests.your_port.cause.find import find_causes, find_gradient_causes  # they need torch

    if first.measured.is_gradient:
        return find_gradient_causes(search, deadline)
    return find_causes(search, search.place(first), module, first.tensor.name, deadline, beside)
