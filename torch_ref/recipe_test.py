import numpy as np
import pytest
import torch

from torch_ref.recipe import Recipe, build, clip_gradients, sentence_losses, train
from torch_ref.search.greedy import greedy_search

PAD, BOS, EOS = 1, 2, 3
SOURCE = np.array([[4, 5, 3, 1], [6, 3, 1, 1], [7, 8, 4, 3]])
SOURCE_LENS = np.array([3, 2, 4])
TARGET = np.array([[2, 5, 6, 3, 1], [2, 4, 3, 1, 1], [2, 7, 5, 8, 3]])
TARGET_LENS = np.array([4, 3, 5])


def padded(rows):
    """Append rows of padding to the batch."""
    return (
        np.concatenate([SOURCE, np.full((rows, 4), PAD)]),
        np.concatenate([SOURCE_LENS, np.zeros(rows, int)]),
        np.concatenate([TARGET, np.full((rows, 5), PAD)]),
        np.concatenate([TARGET_LENS, np.zeros(rows, int)]),
    )


def test_it_learns_three_sentences_by_heart():
    recipe = Recipe(learning_rate=0.02)
    model = build(9, 9, recipe, seed=0)
    reports = train(model, lambda epoch: [padded(1)], recipe, 80)
    assert reports[-1].loss_book < 0.02 < reports[0].loss_book
    assert np.isclose(reports[0].nats_per_token, 4 * reports[0].loss_book)
    with torch.no_grad():
        memory = model.encode(torch.as_tensor(SOURCE), torch.as_tensor(SOURCE_LENS))
        state = model.initial_state(memory)
    result = greedy_search(model.step, state, memory, bos=BOS, eos=EOS, max_len=6, batch_size=3)
    for ids, length, target in zip(result.ids[:, 0].tolist(), result.lengths[:, 0], TARGET, strict=True):
        assert ids[:length] == target[1 : 1 + length].tolist()
        assert ids[length - 1] == EOS


def test_padded_rows_contribute_nothing():
    gradients = []
    for rows in (0, 2):
        model = build(9, 9, Recipe(), seed=0).double()
        losses, label_lens = sentence_losses(model, *map(torch.as_tensor, padded(rows)))
        losses.sum().backward()
        assert label_lens.tolist() == [3, 2, 4] + [0] * rows
        assert (losses[3:] == 0).all()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(*gradients, strict=True))


def test_same_seed_same_parameters_and_the_callers_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = build(9, 9, Recipe(), seed=1), build(9, 9, Recipe(), seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


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
