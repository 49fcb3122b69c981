import pytest
import torch

from torch_ref import (
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    GaussianAttention,
    MLPAttention,
    MultiHeadAttention,
)
from torch_ref.modules.attention import ATTENTIONS, make_attention

KEYS, LENS = torch.ones(2, 10, 2), torch.tensor([2, 6])
VALUES = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)


@pytest.mark.parametrize(
    ("module", "query_size"),
    [(AdditiveAttention(8, 0.1, query_size=20, key_size=2).eval(), 20), (DotProductAttention(0.5).eval(), 2)],
)
def test_the_books_example(module, query_size):
    context, weights = module(torch.randn(2, 1, query_size), KEYS, VALUES, LENS)
    assert torch.allclose(context, torch.tensor([[[2.0, 3, 4, 5]], [[10.0, 11, 12, 13]]]))
    assert torch.allclose(weights[0, 0, :2], torch.tensor(1 / 2))
    assert (weights[0, 0, 2:] == 0).all()
    assert torch.allclose(weights[1, 0, :6], torch.tensor(1 / 6))
    assert (weights[1, 0, 6:] == 0).all()


def modules(**settings):
    return [
        AdditiveAttention(6, query_size=4, key_size=4, **settings),
        DotProductAttention(**settings),
        DotProductAttention(scaled=False, **settings),
        BilinearAttention(4, 4, **settings),
        GaussianAttention(sigma=0.7, **settings),
        MultiHeadAttention(6, 2, use_bias=True, query_size=4, key_size=4, value_size=5, **settings),
    ]


@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
@pytest.mark.parametrize("index", range(6))
def test_padding_changes_nothing_and_nan_stays_out(index, empty_row):
    torch.manual_seed(0)
    module = modules(empty_row=empty_row)[index].double()
    queries, keys, values = (torch.randn(2, n, d).double() for n, d in ((3, 4), (5, 4), (5, 5)))
    lens = torch.tensor([3, 0])
    alone, _ = module(queries[:1], keys[:1, :3], values[:1, :3])
    keys[0, 3:] = keys[1] = values[0, 3:] = torch.nan
    if empty_row == "zero":
        values[1] = torch.nan
    leaves = [x.requires_grad_() for x in (queries, keys, values)]
    context, weights = module(*leaves, lens)
    assert torch.allclose(context[0], alone[0])
    assert torch.allclose(weights[1], torch.tensor(0.2 if empty_row == "uniform" else 0.0).double())
    (context.square().sum() + weights.square().sum()).backward()
    assert all(x.grad.isfinite().all() for x in (*leaves, *module.parameters()))
    # One length for each query, a mask and a prepared memory give the same.
    mask = (torch.arange(5) < lens[:, None]).unsqueeze(1)
    memory = module.prepare(keys, values, lens)
    for other in (
        module(queries, keys, values, lens[:, None].expand(2, 3)),
        module(queries, keys, values, None, mask),
        module.attend(queries, memory),
    ):
        assert torch.equal(other[0], context)
        assert torch.equal(other[1], weights)


def test_multi_head_against_the_library():
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2, use_bias=True).double()
    library = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    parts = (module.W_q, module.W_k, module.W_v)
    library.in_proj_weight.data = torch.cat([p.weight.data for p in parts])
    library.in_proj_bias.data = torch.cat([p.bias.data for p in parts])
    library.out_proj.load_state_dict(module.W_o.state_dict())
    q, k, v = (torch.randn(2, n, 8).double() for n in (3, 5, 5))
    lens = torch.tensor([2, 5])
    padding = torch.arange(5) >= lens[:, None]
    expected = library(q, k, v, key_padding_mask=padding, average_attn_weights=False)
    context, weights = module(q, k, v, lens)
    assert torch.allclose(context, expected[0])
    assert torch.allclose(weights, expected[1])


def test_dropout_only_when_asked():
    torch.manual_seed(0)
    module = DotProductAttention(0.5)
    queries = torch.randn(2, 3, 2)
    clean, weights = module.eval()(queries, KEYS, VALUES)
    random, same = module.train()(queries, KEYS, VALUES)
    assert torch.equal(weights, same)
    assert not torch.allclose(clean, random)
    keep = torch.rand(2, 3, 10) < 0.5
    explicit, _ = module.eval()(queries, KEYS, VALUES, keep_mask=keep)
    assert torch.allclose(explicit, (weights * keep / 0.5) @ VALUES)
    assert module(queries, KEYS, VALUES, return_weights=False)[1] is None


def test_without_the_tanh_the_query_cancels():
    torch.manual_seed(0)
    module = MLPAttention(8, use_tanh=False, query_size=20, key_size=2).double()
    queries, keys, values = (torch.randn(s).double() for s in ((1, 4, 20), (1, 10, 2), (1, 10, 4)))
    weights = module(queries, keys, values)[1]
    assert torch.allclose(weights[0], weights[0, :1].expand(4, 10))


def test_half_precision():
    context, weights = AdditiveAttention(6, query_size=4, key_size=2).bfloat16()(
        torch.randn(2, 3, 4).bfloat16(), KEYS.bfloat16(), VALUES.bfloat16(), LENS
    )
    assert context.dtype == weights.dtype == torch.bfloat16


def test_the_registry_builds_every_attention():
    torch.manual_seed(0)
    built = {name: make_attention(name, 4, 0.1, empty_row="uniform") for name in ATTENTIONS}
    assert all(module.dropout == 0.1 and module.empty_row == "uniform" for module in built.values())
    assert (built["multi_head"].num_heads, make_attention("multi_head", 4, num_heads=2).num_heads) == (4, 2)
    queries, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 6)
    for name in ("additive", "bilinear", "scaled_bilinear", "multi_head", "sum"):
        assert make_attention(name, 4, key_size=6)(queries, keys, keys)[0].shape[:2] == (2, 3)


@pytest.mark.parametrize("num_heads", [0, 3])
def test_heads_that_do_not_divide_the_features_are_refused(num_heads):
    with pytest.raises(ValueError, match=f"must be a multiple of num_heads; got 8 for {num_heads} heads"):
        MultiHeadAttention(8, num_heads)
