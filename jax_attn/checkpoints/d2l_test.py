"""Compare the loader with the book's code, rewritten from its published structure in plain PyTorch."""

from functools import cache, partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jax_attn import greedy_search
from jax_attn.checkpoints.d2l import GENERATIONS, load

SIZES = {"source_vocab": 11, "target_vocab": 9, "source_embed": 5, "target_embed": 4, "hiddens": 6}
SOURCE_LENS = np.array([7, 3, 1, 0])
FORMS = ["1.0", "0.17", "2020", "2020 with biases"]


# The book's code: time first, attributes and faults as there.


class WrappedGRU(nn.Module):
    """The book's class around `nn.GRU`, which adds another "rnn" to every key."""

    def __init__(self, *sizes):
        super().__init__()
        self.rnn = nn.GRU(*sizes)

    def forward(self, inputs):
        return self.rnn(inputs)


class Encoder(nn.Module):
    def __init__(self, vocab, embed, rnn):
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed)
        self.rnn = rnn

    def forward(self, tokens):
        return self.rnn(self.embedding(tokens.T))  # through the padding: there are no lengths here


def masked_softmax(scores, valid_lens):
    """Softmax with a large negative number instead of masked scores: [B, 1, K]."""
    masked = torch.arange(scores.shape[-1]) >= valid_lens[:, None, None]
    return torch.softmax(scores.masked_fill(masked, -1e6), dim=-1)


class Attention(nn.Module):
    def __init__(self, hiddens, score):
        super().__init__()
        self.W_k = nn.Linear(hiddens, hiddens, bias=False)
        self.W_q = nn.Linear(hiddens, hiddens, bias=False)
        self.add_module(score, nn.Linear(hiddens, 1, bias=False))

    def forward(self, query, memory, valid_lens):
        hidden = torch.tanh(self.W_q(query)[:, :, None] + self.W_k(memory)[:, None])
        return masked_softmax(self.w_v(hidden)[..., 0], valid_lens)


class Attention2020(Attention):
    def forward(self, query, memory, valid_lens):
        query, memory = self.W_k(query), self.W_q(memory)  # exchanged, and no tanh
        return masked_softmax(self.v(query[:, :, None] + memory[:, None])[..., 0], valid_lens)


class Decoder(nn.Module):
    def __init__(self, vocab, embed, hiddens, rnn, **attention):
        super().__init__()
        ((self.attention_name, module),) = attention.items()
        self.add_module(self.attention_name, module)
        self.embedding = nn.Embedding(vocab, embed)
        self.rnn = rnn
        self.dense = nn.Linear(hiddens, vocab)

    def forward(self, tokens, outputs, state, valid_lens):
        memory, steps, all_weights = outputs.transpose(0, 1), [], []
        for embedded in self.embedding(tokens.T):
            top = (state[0] if isinstance(state, tuple) else state)[-1]
            weights = getattr(self, self.attention_name)(top[:, None], memory, valid_lens)
            context = torch.bmm(weights, memory)[:, 0]
            output, state = self.rnn(torch.cat([context, embedded], dim=-1)[None], state)
            steps.append(self.dense(output[0]))
            all_weights.append(weights[:, 0])
        return torch.stack(steps, dim=1), torch.stack(all_weights, dim=1)


class Translator(nn.Module):
    def __init__(self, form, num_layers):
        super().__init__()
        vocabs, (source, target, hiddens) = list(SIZES.values())[:2], list(SIZES.values())[2:]
        in_encoder, in_decoder = (source, hiddens, num_layers), (hiddens + target, hiddens, num_layers)
        if form.startswith("2020"):
            encoder_rnn, attention = nn.LSTM(*in_encoder), {"attention_cell": Attention2020(hiddens, "v")}
            # A rate of dropout where the fourth argument of nn.LSTM is `bias`.
            decoder_rnn = nn.LSTM(*in_decoder, form == "2020 with biases")
        else:
            encoder_rnn = (WrappedGRU if form == "1.0" else nn.GRU)(*in_encoder)
            decoder_rnn, attention = nn.GRU(*in_decoder), {"attention": Attention(hiddens, "w_v")}
        self.encoder = Encoder(vocabs[0], source, encoder_rnn)
        self.decoder = Decoder(vocabs[1], target, hiddens, decoder_rnn, **attention)

    def forward(self, sources, targets, valid_lens):
        return self.decoder(targets, *self.encoder(sources), valid_lens)


def original(form, num_layers=2, dtype=torch.float64):
    """Return a model with weights large enough that a fault in any of them is visible."""
    torch.manual_seed(0)
    model = Translator(form, num_layers).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


def batch():
    random = np.random.default_rng(1)
    return random.integers(0, 11, (4, 7)), random.integers(0, 9, (4, 5))


@cache
def original_outputs(form):
    with torch.no_grad():
        outputs = original(form)(*(torch.from_numpy(array) for array in (*batch(), SOURCE_LENS)))
    return [output.numpy() for output in outputs]


@partial(jax.jit, static_argnums=0)
def apply(module, params, *inputs):
    """Compile once for equal modules, across the tests."""
    return module.apply(params, *inputs)


def jax_outputs(module, params):
    return [np.asarray(output) for output in apply(module, params, *batch(), SOURCE_LENS)]


def arrays_of(form, num_layers=2, dtype=torch.float64):
    return {name: tensor.numpy() for name, tensor in original(form, num_layers, dtype).state_dict().items()}


# The same model


@pytest.mark.parametrize("form", FORMS)
def test_logits_and_attention_are_those_of_the_books_code(x64, form):
    module, params = load(original(form).state_dict())
    for ours, theirs in zip(jax_outputs(module, params), original_outputs(form), strict=True):
        assert ours.dtype == theirs.dtype == np.float64
        assert np.abs(ours - theirs).max() <= 1e-12 * max(np.abs(theirs).max(), 1)


def test_greedy_search_over_the_loaded_model_equals_the_books_code(x64):
    """Greedy search chooses the tokens that the book's code would choose, step by step."""
    model = original("1.0")
    module, params = load(model.state_dict())
    sources, _ = batch()

    @jax.jit
    def search(params, *inputs):
        memory = module.apply(params, *inputs, method="encode")
        state = module.apply(params, memory, method="initial_state")
        step = partial(module.apply, params, method="step")
        return greedy_search(step, state, memory, bos=2, eos=3, max_len=5, batch_size=4)

    found = search(params, sources, SOURCE_LENS)
    read = torch.full((4, 1), 2)
    for _ in range(5):
        with torch.no_grad():
            logits, _ = model(torch.from_numpy(sources), read, torch.from_numpy(SOURCE_LENS))
        read = torch.cat([read, logits[:, -1:].argmax(-1)], dim=1)
    for ids, length, chosen in zip(found.ids[:, 0], found.lengths[:, 0], read[:, 1:].numpy(), strict=True):
        np.testing.assert_array_equal(ids[:length], chosen[:length])


@pytest.mark.parametrize("form", FORMS)
def test_query_and_key_projections_are_not_exchanged(form):
    state_dict = arrays_of(form, dtype=torch.float32)
    attention = load(state_dict)[1]["params"]["decoder"]["attention"]
    scope, query, keys, score = (
        ("attention_cell", "W_k", "W_q", "v") if form.startswith("2020") else ("attention", "W_q", "W_k", "w_v")
    )
    for ours, theirs in {"W_q": query, "W_k": keys, "w_v": score}.items():
        np.testing.assert_array_equal(attention[ours]["kernel"].T, state_dict[f"decoder.{scope}.{theirs}.weight"])


# Identification


@pytest.mark.parametrize(("form", "num_layers"), [*((form, 1) for form in FORMS), ("2020", 11)])
def test_generation_layers_and_sizes_are_found(form, num_layers):
    module, params = load(arrays_of(form, num_layers, torch.float32))
    encoder, decoder = module.encoder, module.decoder
    assert (encoder.cell, decoder.attention.use_tanh) == (("lstm", False) if form.startswith("2020") else ("gru", True))
    assert (encoder.num_layers, decoder.num_layers, decoder.use_bias) == (num_layers, num_layers, form != "2020")
    assert (encoder.vocab_size, encoder.embed_size, decoder.vocab_size, decoder.embed_size) == (11, 5, 9, 4)
    assert (encoder.num_hiddens, decoder.num_hiddens, decoder.attention.num_hiddens) == (6, 6, 6)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parameters_keep_the_dtype_and_the_bits(dtype):
    model = original("1.0", dtype=dtype)
    module, params = load(model.state_dict())
    kernel = params["params"]["decoder"]["dense"]["kernel"]
    assert f"torch.{kernel.dtype}" == str(dtype)
    np.testing.assert_array_equal(np.asarray(kernel, np.float32).T, model.decoder.dense.weight.detach().float().numpy())
    logits = jax.eval_shape(module.apply, params, *batch())[0]
    assert f"torch.{logits.dtype}" == str(dtype)


def test_float64_is_not_silently_cut_to_float32():
    with pytest.raises(TypeError, match=r"the checkpoint is float64, which JAX would cut to float32.*jax_enable_x64"):
        load(arrays_of("1.0"))


# Refusals


def our_name(name):
    """Return our name of a key of the book's."""
    scope, _, leaf = name.rpartition(".")
    return next(f"{generation.scopes[scope]}.{leaf}" for generation in GENERATIONS if scope in generation.scopes)


@pytest.fixture
def traced_once(monkeypatch):
    """Trace each module once: these tests read a hundred files into a few modules."""
    shapes = cache(lambda module, *inputs: jax.eval_shape(module.init, jax.random.key(0), *inputs))
    known = SimpleNamespace(**vars(jax) | {"eval_shape": lambda init, key, *inputs: shapes(init.__self__, *inputs)})
    monkeypatch.setattr("jax_attn.checkpoints.d2l.jax", known)


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("form", ["1.0", "2020"])
def test_every_key_that_is_missing_or_unknown_is_an_error_that_names_it(form):
    state_dict = arrays_of(form, dtype=torch.float32)
    for name in state_dict:
        with pytest.raises(KeyError) as error:
            load({key: array for key, array in state_dict.items() if key != name})
        assert f"generation {form[:4].strip()}" in error.value.args[0]
        assert our_name(name) in error.value.args[0]
    for name in ("decoder.attention_weights", "decoder.rnn.weight_ih_l0_reverse", "step"):
        with pytest.raises(KeyError) as error:
            load(state_dict | {name: np.zeros(1, np.float32)})
        assert name in error.value.args[0]


OF_SIZES = (
    *("encoder.embedding.weight", "decoder.embedding.weight", "encoder.rnn.weight_hh_l0"),
    *("decoder.attention.w_v.weight", "decoder.attention_cell.v.weight"),
)
"""Keys that give the sizes: where one is wrong, the next key that it contradicts is named."""


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("form", [pytest.param("0.17", marks=pytest.mark.slow), "2020 with biases"])
def test_every_shape_that_does_not_fit_is_an_error_that_names_key_and_shapes(form):
    state_dict = arrays_of(form, dtype=torch.float32)
    for name, array in state_dict.items():
        for wrong in (array[..., None], np.concatenate([array, array[-1:]]), array[:0], np.zeros((), np.float32)):
            if name == "encoder.embedding.weight" and len(wrong.shape) == 2 and len(wrong) == 12:
                continue  # a larger vocabulary, which no other key contradicts
            with pytest.raises(ValueError, match="must be") as error:
                load(state_dict | {name: wrong})
            assert our_name(name) in str(error.value) or name in OF_SIZES
        if array.ndim == 2 and len(set(array.shape)) == 2:
            with pytest.raises(ValueError, match="must be") as error:
                load(state_dict | {name: array.T})
            assert our_name(name) in str(error.value) or name in OF_SIZES


def test_a_mixture_of_generations_is_refused():
    present, older = arrays_of("1.0"), arrays_of("2020")
    attention = {name: array for name, array in older.items() if "attention" in name}
    mixed = {name: array for name, array in present.items() if "attention" not in name} | attention
    with pytest.raises(KeyError) as error:
        load(mixed)
    assert "resemble generation 1.0 " in error.value.args[0]
    assert f"unknown: {sorted(attention)}" in error.value.args[0]


def test_a_cell_of_another_generation_is_refused():
    """An LSTM under the names of 0.17 is a model of the user's own."""
    state_dict = arrays_of("0.17", dtype=torch.float32)
    rnn = {name: np.concatenate([array, array[:6]]) for name, array in state_dict.items() if ".rnn." in name}
    message = r"rnn\.\w+ must be \[18.*; got \[24"
    with pytest.raises(ValueError, match=message):
        load(state_dict | rnn)


def test_another_model_altogether_is_refused():
    with pytest.raises(KeyError, match=r"no generation of the book's translator has any of these keys.*layers\.0"):
        load({"layers.0.weight": np.zeros((2, 2))})
    with pytest.raises(KeyError, match=r"no generation .*: \[\]"):
        load({})


def test_integer_weights_are_refused():
    state_dict = arrays_of("1.0", dtype=torch.float32)
    with pytest.raises(TypeError, match=r"decoder\.dense\.bias must have a floating dtype; got int64"):
        load(state_dict | {"decoder.dense.bias": np.zeros(9, np.int64)})
