import pytest
import torch
from torch.nn.functional import cross_entropy

from torch_ref import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder, masked_cross_entropy
from torch_ref.functional.losses import clip_gradients, sentence_losses

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


def test_rows_of_padding_have_no_loss_and_no_labels():
    encoder = Seq2SeqEncoder(9, embed_size=4, num_hiddens=4)
    model = EncoderDecoder(encoder, Seq2SeqAttentionDecoder(9, embed_size=4, num_hiddens=4)).double()
    source, target = torch.tensor([[4, 5, 3], [6, 3, 1]]), torch.tensor([[2, 5, 6, 3], [2, 4, 3, 1]])
    source_lens, target_lens, gradients = torch.tensor([3, 2]), torch.tensor([4, 3]), []
    for rows in (0, 2):
        batch = (
            torch.cat([x, x.new_full((rows, *x.shape[1:]), pad)])
            for x, pad in ((source, 1), (source_lens, 0), (target, 1), (target_lens, 0))
        )
        losses, label_lens = sentence_losses(model, *batch)
        model.zero_grad()
        losses.sum().backward()
        assert label_lens.tolist() == [3, 2] + [0] * rows
        assert (losses[2:] == 0).all()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("theta", [-1.0, float("nan")])
def test_a_norm_below_zero_or_nan_is_refused(theta):
    with pytest.raises(ValueError, match=f"theta must be at least 0; got {theta}"):
        clip_gradients(torch.nn.Linear(2, 1), theta)


def test_clipping_scales_to_the_norm_itself():
    layer = torch.nn.Linear(2, 1)
    layer.weight.grad, layer.bias.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])
    assert clip_gradients(layer, 1.0) == 5
    assert torch.allclose(layer.weight.grad, torch.tensor([[0.6, 0.0]]))
    assert torch.allclose(layer.bias.grad, torch.tensor(0.8))
    clip_gradients(layer, 2.0)
    assert torch.allclose(layer.bias.grad, torch.tensor(0.8))
