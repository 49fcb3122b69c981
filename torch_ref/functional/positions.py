"""Sinusoidal positions. Source: Vaswani et al. 2017, section 3.5; d2l.ai, "Self-Attention and Positional Encoding"."""

import torch
from torch import Tensor


def sinusoidal_positions(
    length: int,
    num_features: int,
    dtype: torch.dtype = torch.float32,
    *,
    form: str = "interleaved",
    device: torch.device | None = None,
) -> Tensor:
    """PE[t, 2i] = sin(t / 10000^(2i/D)), PE[t, 2i+1] = cos(t / 10000^(2i/D)).

    Shapes: [length, num_features]. With an odd num_features the last column is a sine.
    form="halves": all sines, then all cosines, as in Marian.
    form="opennmt": the same with t + 1 and D - 2 instead of t and D, as in OpenNMT-tf and CTranslate2.
    form="fairseq": the same with t + 2, as in M2M100 and NLLB.
    """
    if form not in ("interleaved", "halves", "opennmt", "fairseq"):
        raise ValueError(f"form must be interleaved, halves, opennmt or fairseq; got {form!r}")
    first = {"opennmt": 1, "fairseq": 2}.get(form, 0)
    least = 3 if first else 1
    if length < 0 or num_features < least:
        raise ValueError(f"length and num_features must be at least 0 and {least}; got {length} and {num_features}")
    # float64 until the end: the angle grows with t, and a float32 angle of 5000 is already off by 2e-4.
    positions = torch.arange(length, dtype=torch.float64, device=device).unsqueeze(-1)  # [T, 1]
    num_frequencies = num_features
    even = torch.arange(0, num_features, 2, dtype=torch.float64, device=device)  # 2i
    if form == "fairseq" and num_features % 2:
        raise ValueError(f"num_features must be even for fairseq; got {num_features}")
    if first:
        positions, num_frequencies = positions + first, num_features - 2
    angles = positions / 10000.0 ** (even / num_frequencies)
    table = torch.zeros(length, num_features, dtype=torch.float64, device=device)
    if form == "interleaved":
        table[:, 0::2] = torch.sin(angles)
        table[:, 1::2] = torch.cos(angles[:, : num_features // 2])
    else:
        half = angles.shape[1]
        table[:, :half] = torch.sin(angles)
        table[:, half:] = torch.cos(angles[:, : num_features // 2])
    return table.to(dtype)
