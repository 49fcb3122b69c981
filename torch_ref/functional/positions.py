"""Sinusoidal positions. Source: Vaswani et al. 2017, section 3.5; d2l.ai, "Self-Attention and Positional Encoding"."""

import torch
from torch import Tensor


def sinusoidal_positions(
    length: int,
    num_features: int,
    dtype: torch.dtype = torch.float32,
    *,
    interleaved: bool = True,
    device: torch.device | None = None,
) -> Tensor:
    """PE[t, 2i] = sin(t / 10000^(2i/D)), PE[t, 2i+1] = cos(t / 10000^(2i/D)).

    Shapes: [length, num_features]. With an odd num_features the last column is a sine.
    interleaved=False: all sines, then all cosines, as in Marian.
    """
    # float64 until the end: the angle grows with t, and a float32 angle of 5000 is already off by 2e-4.
    positions = torch.arange(length, dtype=torch.float64, device=device).unsqueeze(-1)  # [T, 1]
    even = torch.arange(0, num_features, 2, dtype=torch.float64, device=device)  # 2i
    angles = positions / 10000.0 ** (even / num_features)
    table = torch.zeros(length, num_features, dtype=torch.float64, device=device)
    if interleaved:
        table[:, 0::2] = torch.sin(angles)
        table[:, 1::2] = torch.cos(angles[:, : num_features // 2])
    else:
        half = angles.shape[1]
        table[:, :half] = torch.sin(angles)
        table[:, half:] = torch.cos(angles[:, : num_features // 2])
    return table.to(dtype)


def opennmt_positions(length: int, num_features: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """PE[t, i] = sin((t + 1) / 10000^(i / (D/2 - 1))), PE[t, D/2 + i] = its cosine (OpenNMT-tf, CTranslate2)."""
    positions = torch.arange(1, length + 1, dtype=torch.float64, device=device).unsqueeze(-1)
    steps = torch.arange(num_features // 2, dtype=torch.float64, device=device)
    angles = positions / 10000.0 ** (steps / (num_features // 2 - 1))
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1).to(dtype)
