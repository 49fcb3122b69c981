import pytest
import torch

from torch_ref import attention_mask, causal_mask, length_mask, sequence_mask


def test_length_mask_stops_at_the_length():
    assert length_mask(torch.tensor([1, 3, 0, 4]), 4).int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 1, 0],
        [0, 0, 0, 0],
        [1, 1, 1, 1],
    ]
    assert length_mask(torch.tensor(2.0), 3).tolist() == [True, True, False]


def test_causal_mask():
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(2, 4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


def test_attention_mask_decides_by_rank_and_both_must_allow():
    shape = (2, 3, 4)
    assert attention_mask(shape) is None
    assert attention_mask(shape, torch.tensor([1, 2])).shape == (2, 1, 4)
    per_query = attention_mask(shape, torch.tensor([[1, 2, 3], [4, 0, 4]]), torch.tensor([True, True, True, False]))
    assert per_query.sum(-1).tolist() == [[1, 2, 3], [3, 0, 3]]


def test_lengths_and_masks_that_would_mislead_are_refused():
    with pytest.raises(ValueError, match=r"valid_lens must be \[2\] or \[2, 3\]; got \[3\]"):
        attention_mask((2, 3, 4), torch.ones(3))
    with pytest.raises(TypeError, match=r"mask must be boolean; got torch.float32"):
        attention_mask((2, 3, 4), mask=torch.ones(4))


def test_sequence_mask_leaves_its_argument_and_its_dtype():
    X = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert sequence_mask(X, torch.tensor([1, 2])).tolist() == [[1, 0, 0], [4, 5, 0]]
    assert sequence_mask(torch.ones(2, 3, 4), torch.tensor([1, 2]), value=-1)[0, 1:].eq(-1).all()
    assert X.tolist() == [[1, 2, 3], [4, 5, 6]]
