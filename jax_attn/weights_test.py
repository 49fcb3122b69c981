from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from jax_attn.weights import from_torch, to_torch, torch_leaf

PARAMS = {
    "params": {
        "dense": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.arange(3.0)},
        "embedding": {"embedding": jnp.arange(8.0).reshape(4, 2)},
        "norm": {"scale": jnp.arange(2.0)},
        "rnn": {"kernel_ih_l0_reverse": jnp.arange(8.0).reshape(2, 4), "bias_hh_l0": jnp.arange(4.0)},
    }
}
STATE_DICT = {
    "dense.weight": np.array([[0, 3], [1, 4], [2, 5]], np.float32),
    "dense.bias": np.arange(3, dtype=np.float32),
    "embedding.weight": np.arange(8, dtype=np.float32).reshape(4, 2),
    "norm.weight": np.arange(2, dtype=np.float32),
    "rnn.weight_ih_l0_reverse": np.array([[0, 4], [1, 5], [2, 6], [3, 7]], np.float32),
    "rnn.bias_hh_l0": np.arange(4, dtype=np.float32),
}


@pytest.mark.parametrize("params", [PARAMS, PARAMS["params"]], ids=["wrapped", "bare"])
def test_each_kind_of_leaf_has_its_name_and_layout_in_pytorch_and_comes_back(params):
    state_dict = to_torch(params)
    assert set(state_dict) == set(STATE_DICT)
    jax.tree.map(np.testing.assert_array_equal, state_dict, STATE_DICT)
    filled = from_torch(STATE_DICT, jax.tree.map(jnp.zeros_like, params))
    jax.tree.map(np.testing.assert_array_equal, filled, params)


def test_only_kernel_names_are_renamed_and_transposed():
    assert torch_leaf(("kernels",)) == ("kernels", False)
    assert torch_leaf(("a", "b", "kernel")) == ("a.b.weight", True)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
def test_a_whole_model_is_converted_both_ways_bit_for_bit(x64, dtype):
    settings = {"cell": "lstm", "num_layers": 2, "param_dtype": dtype}
    model = EncoderDecoder(Seq2SeqEncoder(9, 6, 4, **settings), Seq2SeqAttentionDecoder(7, 6, 4, **settings))
    tokens = jnp.zeros((2, 3), int)
    shapes = jax.eval_shape(lambda key: model.init(key, tokens, tokens), jax.random.key(0))
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype), shapes)
    state_dict = to_torch(params)
    assert {array.dtype for array in state_dict.values()} == {jnp.dtype(dtype)}
    assert all(array.flags.c_contiguous and array.flags.writeable for array in state_dict.values())
    back = from_torch(state_dict, shapes)
    assert jax.tree.map(lambda leaf: leaf.dtype, back) == jax.tree.map(lambda leaf: leaf.dtype, params)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), back, params)


def test_filled_parameters_are_copies():
    source = {"bias": np.zeros(2, np.float32)}
    filled = from_torch(source, {"bias": jnp.ones(2)})
    source["bias"] += 1
    np.testing.assert_array_equal(filled["bias"], [0, 0])


def test_every_key_that_is_missing_or_not_used_is_listed():
    state_dict = {"extra.weight": np.zeros(1)} | {k: v for k, v in STATE_DICT.items() if not k.startswith("dense")}
    with pytest.raises(KeyError) as error:
        from_torch(state_dict, PARAMS)
    assert "missing: ['dense.bias', 'dense.weight']; not used: ['extra.weight']" in str(error.value)


def test_another_shape_is_refused_in_pytorch_s_layout_and_nothing_is_broadcast():
    for wrong in (np.zeros((2, 3), np.float32), np.zeros((3, 1), np.float32), np.zeros(6, np.float32)):
        with pytest.raises(
            ValueError, match=rf"dense.weight must be \[3, 2\]; got \[{str(wrong.shape)[1:-1].rstrip(',')}\]"
        ):
            from_torch(STATE_DICT | {"dense.weight": wrong}, PARAMS)


def test_a_dtype_that_would_lose_digits_is_refused_and_a_wider_leaf_is_filled():
    with pytest.raises(TypeError, match=r"dense\.bias is float64 and would lose digits as float32"):
        from_torch(STATE_DICT | {"dense.bias": np.arange(3.0)}, PARAMS)
    for dtype in (np.float16, jnp.bfloat16, jnp.float8_e4m3fn):
        filled = from_torch(STATE_DICT | {"dense.bias": np.arange(3).astype(dtype)}, PARAMS)
        assert filled["params"]["dense"]["bias"].dtype == jnp.float32
        assert filled["params"]["dense"]["bias"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int32, np.uint16])
def test_integers_and_booleans_are_not_floats_but_fill_integers(dtype):
    with pytest.raises(TypeError, match=rf"dense\.bias must have a floating dtype; got {np.dtype(dtype)}"):
        from_torch(STATE_DICT | {"dense.bias": np.ones(3, dtype)}, PARAMS)
    counter = from_torch({"num_batches_tracked": np.ones((), dtype)}, {"num_batches_tracked": jnp.zeros((), int)})
    assert counter["num_batches_tracked"] == 1


def test_two_leaves_with_one_name_are_refused():
    with pytest.raises(ValueError, match=r"two parameters are both called a\.weight in PyTorch"):
        to_torch({"a": {"kernel": jnp.ones((2, 2)), "scale": jnp.ones(2)}})


def test_a_bfloat16_tensor_keeps_its_bits():
    """The stand-in acts like a torch tensor in bfloat16, which NumPy cannot read."""
    values = np.array([1.0, 1 / 3, 3e38], jnp.bfloat16)
    tensor = SimpleNamespace(
        dtype="torch.bfloat16", float=lambda: SimpleNamespace(numpy=lambda: values.astype(np.float32))
    )
    tensor.detach = tensor.cpu = lambda: tensor
    filled = from_torch({"bias": tensor}, {"bias": jnp.zeros(3, jnp.bfloat16)})
    np.testing.assert_array_equal(np.asarray(filled["bias"]).view(np.uint16), values.view(np.uint16))


def test_the_layers_of_a_list_are_numbered_as_in_pytorch_and_other_names_stay():
    params = {"layers_0": {"bias": np.zeros(1)}, "layers_10": {"bias": np.ones(1)}, "Dense_0": {"bias": np.ones(1)}}
    state_dict = to_torch(params)
    assert set(state_dict) == {"layers.0.bias", "layers.10.bias", "Dense_0.bias"}
    jax.tree.map(np.testing.assert_array_equal, from_torch(state_dict, params), params)
