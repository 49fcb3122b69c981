import pytest
import torch

import torch_ref
from parity_tests.speed import inputs, tuned_attention

COMPILING = (pytest.mark.slow, pytest.mark.filterwarnings("ignore"))  # torch.compile warns of itself
COMPILED = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILING)])


def tensors(arrays):
    return {name: torch.tensor(x).requires_grad_(x.dtype.kind == "f") for name, x in arrays.items()}


@COMPILED
def test_additive_score(compiled):
    given = tensors(inputs.additive(batch=2, length=5, hidden=8))
    tuned = torch.compile(tuned_attention.additive_score) if compiled else tuned_attention.additive_score
    found, expected = tuned(**given), torch_ref.additive_score(**given)
    torch.testing.assert_close(found, expected)
    along = torch.randn(expected.shape)
    for own, gradient in zip(
        torch.autograd.grad(found, list(given.values()), along),
        torch.autograd.grad(expected, list(given.values()), along),
        strict=True,
    ):
        torch.testing.assert_close(own, gradient)


@COMPILED
def test_masked_softmax(compiled):
    given = tensors(inputs.softmax(batch=3, length=8))
    tuned = torch.compile(tuned_attention.masked_softmax) if compiled else tuned_attention.masked_softmax
    torch.testing.assert_close(tuned(**given), torch_ref.masked_softmax(**given))
