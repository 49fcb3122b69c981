import pytest
import torch
from torch.nn.functional import cross_entropy

from torch_ref import masked_cross_entropy

LOGITS = torch.randn(3, 4, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[1, 2, 3, 4], [5, 6, -100, 999], [999, -1, 999, 999]])
LENS = torch.tensor([4, 2, 0])


def test_the_books_example():
    """Ones for logits, ten words: log 10 for a full sentence, half of it for half a sentence, 0 for none."""
    loss = masked_cross_entropy(torch.ones(3, 4, 10), torch.ones(3, 4).long(), LENS, reduction="sentences")
    assert torch.allclose(loss, torch.tensor([2.302585, 1.1512925, 0.0]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_reductions_against_the_library(smoothing):
    valid = torch.arange(4) < LENS.unsqueeze(-1)
    ignored = torch.where(valid, LABELS, -100)
    expected = cross_entropy(LOGITS.mT, ignored, reduction="none", label_smoothing=smoothing)
    loss = {
        r: masked_cross_entropy(LOGITS, LABELS, LENS, label_smoothing=smoothing, reduction=r)
        for r in ("none", "sentences", "tokens")
    }
    assert torch.allclose(loss["none"], expected)
    assert torch.allclose(loss["sentences"], expected.mean(-1))
    assert torch.allclose(loss["tokens"], expected.sum() / 6)
    assert torch.allclose(loss["none"], masked_cross_entropy(
        LOGITS, LABELS, mask=valid, label_smoothing=smoothing, reduction="none"
    ))  # fmt: skip


def test_masked_logits_stay_out():
    logits = LOGITS.clone()
    logits[1, 2:] = torch.nan
    logits[2] = torch.nan
    logits.requires_grad_()
    masked_cross_entropy(logits, LABELS, LENS).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[2] == 0).all()
    assert masked_cross_entropy(LOGITS, LABELS, torch.zeros(3)) == 0


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction must be none, sentences or tokens; got 'mean'"):
        masked_cross_entropy(LOGITS, LABELS, LENS, reduction="mean")
