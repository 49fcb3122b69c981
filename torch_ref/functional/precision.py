"""Half precision is widened for the scores and the softmax: their sums and exponentials need float32."""

from functools import reduce

import torch
from torch import Tensor


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype that results are returned in: what PyTorch promotes the inputs to."""
    return reduce(torch.promote_types, (x.dtype for x in tensors))


def wide_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype that scores are computed in: the inputs' common one, float32 at least."""
    return torch.promote_types(common_dtype(*tensors), torch.float32)


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors in their common dtype, float32 at least."""
    return tuple(x.to(wide_dtype(*tensors)) for x in tensors)
