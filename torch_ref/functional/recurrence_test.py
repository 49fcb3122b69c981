import pytest
import torch

from torch_ref import gru_step, lstm_step, unroll


def running_sum(carry, x):
    return carry + x, carry + x


def test_unroll_freezes_past_the_length_and_reverses_within_it():
    inputs = torch.tensor([[1.0, 2.0, torch.nan], [4.0, 5.0, 6.0], [torch.nan] * 3]).unsqueeze(-1).requires_grad_()
    lens = torch.tensor([2, 3, 0])
    carry, outputs = unroll(running_sum, torch.zeros(3, 1), inputs, lens)
    assert carry.flatten().tolist() == [3.0, 15.0, 0.0]
    assert outputs.squeeze(-1).tolist() == [[1, 3, 0], [4, 9, 15], [0, 0, 0]]
    _, outputs = unroll(running_sum, torch.zeros(3, 1), inputs, lens, reverse=True)
    assert outputs.squeeze(-1).tolist() == [[3, 2, 0], [15, 11, 6], [0, 0, 0]]
    outputs.sum().backward()
    assert inputs.grad.squeeze(-1).tolist() == [[1, 2, 0], [1, 2, 3], [0, 0, 0]]


@pytest.mark.parametrize(("cell", "gates"), [(torch.nn.LSTMCell, 4), (torch.nn.GRUCell, 3)])
def test_one_step_is_the_librarys_cell(cell, gates):
    torch.manual_seed(0)
    library = cell(5, 3, dtype=torch.float64)
    x, h, c = (torch.randn(2, n, dtype=torch.float64) for n in (5, 3, 3))
    projected = torch.nn.functional.linear(x, library.weight_ih, library.bias_ih)
    if gates == 4:
        (h_new, c_new), _ = lstm_step((h, c), projected, library.weight_hh, library.bias_hh)
        assert all(map(torch.allclose, (h_new, c_new), library(x, (h, c))))
    else:
        assert torch.allclose(gru_step(h, projected, library.weight_hh, library.bias_hh)[0], library(x, h))
