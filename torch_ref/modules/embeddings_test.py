import pytest
import torch

from torch_ref import Embeddings, PositionalEncoding, sinusoidal_positions


def test_embeddings_scale_by_the_root_of_d_model():
    module = Embeddings(16, 10)
    tokens = torch.tensor([[1, 9]])
    assert torch.equal(module(tokens), module.embedding.weight[tokens] * 4)


def test_positional_encoding_adds_positions_then_drops():
    module, X = PositionalEncoding(6, 0.5, max_len=7), torch.ones(2, 7, 6)
    summed = X + sinusoidal_positions(7, 6)
    assert torch.equal(module.eval()(X), summed)
    assert not list(module.state_dict())
    keep = torch.rand(2, 7, 6) < 0.5
    assert torch.equal(module(X, keep_mask=keep), torch.where(keep, summed * 2, 0))
    with pytest.raises(ValueError, match="X must have at most max_len = 7 positions; got 8"):
        module(torch.ones(2, 8, 6))
