"""Which mistakes change gradients alone: a gradient is stopped in one of the two programs, and flows in the other."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from parity_tests.your_port.cause.hypotheses import in_some_calls, weights
from parity_tests.your_port.cause.mistakes import mistake
from parity_tests.your_port.cause.planting import Call, Hypothesis, Mistake, only_if, planted
from parity_tests.your_port.cause.suspects import Suspect

PADDING = mistake("the row of the padding gets a gradient", "embedding", lambda call: call.but(padding_idx=None))


def _left_on(call: Call) -> Any:
    """Leave gradients on where no_grad begins; where it ends, it sets what was before."""
    only_if(not call.x)
    return call.on(True)


FLOWING = (
    mistake("a gradient flows through detach, as without stop_gradient,", "detach", lambda call: call.x),
    mistake("a gradient flows through no_grad, as without stop_gradient,", "_set_grad_enabled", _left_on),
)


def of_gradients(suspect: Suspect) -> Iterator[Iterator[Hypothesis]]:
    """Yield groups of mistakes that can be tried on the whole program, whose values agree."""
    sites = suspect.sites
    names = list(dict.fromkeys(name for _, name, *_ in sites))
    stopped = [_stopping(name, name, _detached) for name in names]
    operands = [
        *(_stopping(f"the {nth} operand of {name}", name, partial(_with_detached, place))
          for name in names for place, nth in enumerate(("first", "second"))),
        *(Mistake(words.format(name), {"detach": Call.right, name: wrong})
          for words, wrong in BESIDE_DETACHED for name in names if name != "detach"),
    ]  # fmt: skip
    yield map(planted, [PADDING, *FLOWING])
    yield map(planted, stopped)
    yield weights(suspect)  # of zeros, such as given biases, the values say nothing
    yield map(planted, operands)
    for known in ([*FLOWING, *stopped], operands):
        yield (planted(each, site) for each, site in in_some_calls(known, sites))


def _stopping(words: str, name: str, wrong: Callable[[Call], Any]) -> Mistake:
    return Mistake(f"no gradient flows through {words} in JAX: stop_gradient", {name: wrong})


def _detached(call: Call) -> Any:
    right = call.right()
    if isinstance(right, tuple | list):
        return tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in right)
    only_if(isinstance(right, torch.Tensor))
    return right.detach()


def _with_detached(place: int, call: Call) -> Any:
    """Stop the gradient in one of two operands, such as of a sum or of what is put together."""
    made = [x.detach() if i == place else x for i, x in enumerate(_operands(call))]
    return call.on(made) if isinstance(call.x, tuple | list) else call.on(*made)


def _other_detached(call: Call) -> Any:
    """Stop the gradient in the other one of two operands."""
    stopped, operands = _with_one_detached(call)
    return call.on(*(stopped.x if x is stopped.result else x.detach() for x in operands))


def _straight_through(call: Call) -> Any:
    """Pass the gradient of one of two operands to what the other one is detached from."""
    stopped, operands = _with_one_detached(call)
    return call.on(*(x if x is stopped.result else stopped.x + (x - stopped.x).detach() for x in operands))


BESIDE_DETACHED = (
    ("the gradient is stopped in the other operand of {} in JAX", _other_detached),
    ("{} gets the result of a straight-through in JAX: its gradient passes to what is detached", _straight_through),
)


def _with_one_detached(call: Call) -> tuple[Call, Sequence[torch.Tensor]]:
    """Return the call of detach that gave one of two operands, and both of them."""
    operands = _operands(call)
    only_if(any(x is call.last.result for x in operands))
    return call.last, operands


def _operands(call: Call) -> Sequence[torch.Tensor]:
    operands = call.x if isinstance(call.x, tuple | list) else call.args[:2]
    only_if(len(operands) == 2 and all(isinstance(x, torch.Tensor) for x in operands))
    return operands
