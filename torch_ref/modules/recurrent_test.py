import pytest
import torch

from torch_ref import GRU, LSTM

LENS = torch.tensor([4, 0, 1, 6])


def parts(state):
    return (state,) if isinstance(state, torch.Tensor) else state


@pytest.fixture(params=[(c, d, b) for c in (LSTM, GRU) for d in (False, True) for b in (False, True)], ids=str)
def rnn(request):
    torch.manual_seed(0)
    cell, bidirectional, use_bias = request.param
    return cell(5, 3, 2, 0.25, bidirectional=bidirectional, use_bias=use_bias).double().eval()


@pytest.mark.parametrize("lens", [None, LENS])
def test_the_library_and_the_loop_over_layers_are_one_network(rnn, lens):
    """Keep-masks of all True at rate 0 change nothing, but make the network run layer by layer."""
    inputs = torch.randn(4, 6, 5).double()
    width = 3 * rnn.num_directions
    initial = tuple(torch.randn(2 * rnn.num_directions, 4, 3).double() for _ in range(rnn.num_parts))
    initial = initial if rnn.num_parts == 2 else initial[0]
    outputs, state = rnn(inputs, lens, initial)
    rnn.dropout = 0.0
    keep = torch.ones(4, 1, 6, width, dtype=torch.bool)
    again, state_again = rnn(inputs, lens, initial, keep_masks=keep)
    assert torch.allclose(outputs, again, atol=1e-14)
    for a, b in zip(parts(state), parts(state_again), strict=True):
        assert torch.allclose(a, b, atol=1e-14)


def test_each_row_is_as_if_alone_and_padding_stays_out(rnn):
    inputs = torch.randn(4, 6, 5).double()
    alone = [rnn(inputs[b : b + 1, :n]) if n else None for b, n in enumerate(LENS.tolist())]
    padding = torch.arange(6) >= LENS[:, None]
    inputs = inputs.masked_fill(padding.unsqueeze(-1), torch.nan).requires_grad_()
    for keep in (None, torch.ones(4, 1, 6, 3 * rnn.num_directions, dtype=torch.bool)):
        rnn.dropout = 0.25 if keep is None else 0.0
        outputs, state = rnn(inputs, LENS, keep_masks=keep)
        for b, n in enumerate(LENS.tolist()):
            assert (outputs[b, n:] == 0).all()
            if n == 0:
                assert all((part[:, b] == 0).all() for part in parts(state))
                continue
            assert torch.allclose(outputs[b, :n], alone[b][0][0], atol=1e-14)
            for part, expected in zip(parts(state), parts(alone[b][1]), strict=True):
                assert torch.allclose(part[:, b], expected[:, 0], atol=1e-14)
        rnn.zero_grad()
        outputs.square().sum().backward()
        assert all(p.grad.isfinite().all() for p in rnn.parameters())
        assert inputs.grad.isfinite().all()


def test_explicit_dropout_acts_between_the_layers():
    rnn = LSTM(5, 3, 2, 0.5).eval()
    first, second = LSTM(5, 3), LSTM(3, 3)
    first.load_state_dict({k: v for k, v in rnn.state_dict().items() if "l0" in k})
    second.load_state_dict({k.replace("l1", "l0"): v for k, v in rnn.state_dict().items() if "l1" in k})
    inputs, keep = torch.randn(2, 6, 5), torch.rand(2, 1, 6, 3) < 0.5
    expected = second(torch.where(keep[:, 0], first(inputs)[0] * 2, 0))[0]
    assert torch.allclose(rnn(inputs, keep_masks=keep)[0], expected, atol=1e-6)


def test_one_layer_has_no_masks_between_layers():
    rnn, inputs = GRU(5, 3), torch.randn(2, 6, 5)
    outputs, _ = rnn(inputs, keep_masks=torch.ones(2, 0, 6, 3, dtype=torch.bool))
    assert torch.allclose(outputs, rnn(inputs)[0], atol=1e-6)


def test_leading_axes():
    rnn = GRU(5, 3, 2)
    inputs, lens = torch.randn(2, 3, 6, 5), torch.randint(0, 7, (2, 3))
    outputs, state = rnn(inputs, lens)
    assert outputs.shape == (2, 3, 6, 3)
    assert state.shape == (2, 2, 3, 3)
    assert torch.allclose(rnn(inputs[1, 2], lens[1, 2])[0], outputs[1, 2], atol=1e-6)
