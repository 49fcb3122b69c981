"""Half precision is widened for the scores and the softmax: their sums and exponentials need float32."""

from functools import reduce

import torch
from torch import Tensor


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the dtype to which PyTorch promotes the tensors: results have it."""
    return reduce(torch.promote_types, (x.dtype for x in tensors))


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert all tensors to their common dtype, or to float32 if that is narrower."""
    wide = torch.promote_types(common_dtype(*tensors), torch.float32)
    return tuple(x.to(wide) for x in tensors)
