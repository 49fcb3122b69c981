import pytest
import torch

from torch_ref import attend, attention, dropout, sinusoidal_positions


@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_keys_and_values_that_no_query_attends_to_stay_out(empty_row):
    torch.manual_seed(0)
    query, key = torch.randn(3, 2, 5), torch.randn(3, 4, 5)
    value = torch.randn(3, 4, 6)
    lens = torch.tensor([[2, 3], [4, 1], [0, 0]])
    clean, _ = attention(query[:2], key[:2], value[:2], valid_lens=lens[:2])
    key[0, 3:] = torch.nan
    key[2] = torch.nan  # the uniform row does not use its keys either
    value[0, 3:] = torch.inf
    if empty_row == "zero":
        value[2] = torch.nan
    leaves = [x.requires_grad_() for x in (query, key, value)]
    context, weights = attention(*leaves, valid_lens=lens, empty_row=empty_row)
    assert torch.equal(context[:2], clean)
    expected = value[2].mean(0).expand(2, 6) if empty_row == "uniform" else torch.zeros(2, 6)
    assert torch.allclose(context[2], expected)
    (context.square().sum() + weights.square().sum()).backward()
    assert all(x.grad.isfinite().all() for x in leaves)
    assert (key.grad[0, 3:] == 0).all()
    assert (value.grad[0, 3:] == 0).all()


def test_the_annotated_transformers_mask_of_zeros():
    x, zeros = torch.randn(1, 1, 4, 8), torch.zeros(4, 4, dtype=torch.bool)
    assert (attention(x, x, x, zeros, empty_row="uniform")[1] == 0.25).all()
    assert (attention(x, x, x, zeros)[1] == 0).all()
    # The weights returned are the result of the given function.
    assert (attention(x, x, x, None, lambda w: w * 0)[1] == 0).all()


def test_attend_returns_the_weights_before_dropout():
    scores, values = torch.zeros(1, 1, 4), torch.arange(4.0).reshape(1, 4, 1)
    keep = torch.tensor([[[True, False, False, True]]])
    context, weights = attend(scores, values, dropout_rate=0.5, keep_mask=keep)
    assert weights.tolist() == [[[0.25] * 4]]
    assert context.item() == 0.5 * 3
    assert dropout(torch.ones(2), 0.75, torch.tensor([True, False])).tolist() == [4.0, 0.0]


def test_positions_by_hand():
    table = sinusoidal_positions(6, 5, torch.float64)
    angle = torch.tensor(3 / 10000 ** (2 / 5), dtype=torch.float64)
    assert torch.allclose(table[3, 2:4], torch.stack([angle.sin(), angle.cos()]), atol=1e-15)
    assert table[0].tolist() == [0, 1, 0, 1, 0]
