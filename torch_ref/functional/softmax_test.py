import pytest
import torch

from torch_ref import masked_log_softmax, masked_softmax

SCORES = torch.randn(2, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lens", [[2, 3], [[1, 3], [2, 4]]])
def test_the_books_example(lens):
    before = SCORES.clone()
    weights = masked_softmax(SCORES, torch.tensor(lens))
    rows = torch.tensor(lens).reshape(2, -1).expand(2, 2)
    for b in range(2):
        for q in range(2):
            n = rows[b, q]
            assert torch.allclose(weights[b, q, :n], SCORES[b, q, :n].softmax(-1), atol=1e-15)
            assert (weights[b, q, n:] == 0).all()
    assert torch.equal(SCORES, before)


@pytest.mark.parametrize("function", [masked_softmax, masked_log_softmax])
@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_masked_and_empty_stay_out_of_values_and_gradients(function, empty_row):
    scores = SCORES.clone()
    scores[0, :, 2:] = torch.nan
    scores[1] = torch.inf
    scores.requires_grad_()
    out = function(scores, torch.tensor([2, 0]), empty_row=empty_row)
    uniform = masked_log_softmax(torch.zeros(2, 4, dtype=torch.float64)).exp()
    seen = out.exp() if function is masked_log_softmax else out
    assert torch.equal(seen[1], uniform if empty_row == "uniform" else torch.zeros_like(uniform))
    torch.where(out.isfinite(), out, 0).square().sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[1] == 0).all()
    assert (scores.grad[0, :, 2:] == 0).all()
    assert (scores.grad[0, :, :2] != 0).any()


def test_half_precision_and_an_unknown_empty_row():
    out = masked_softmax(torch.full((1, 1, 3), 6e4, dtype=torch.float16), torch.tensor([2]))
    assert out.dtype == torch.float16
    assert out.tolist() == [[[0.5, 0.5, 0.0]]]
    with pytest.raises(ValueError, match="empty_row must be zero or uniform; got 'mean'"):
        masked_softmax(SCORES, torch.tensor([2, 0]), empty_row="mean")
