"""The tuned model computes what torch_ref computes, in float64, and has the same parameters."""

import pytest
import torch

import torch_ref
from benchmarks import tuned
from benchmarks.inputs import BOS, EOS, Translator
from benchmarks.torch_side import reference_model, tuned_model

COMPILING = (pytest.mark.slow, pytest.mark.filterwarnings("ignore"))  # torch.compile warns of itself
COMPILED = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILING)])

VOCAB = 11
SIZES = {"vocab_size": VOCAB, "embed_size": 5, "num_hiddens": 6}
LSTM, GRU = {**SIZES, "num_layers": 2, "cell": "lstm"}, {**SIZES, "num_layers": 1, "cell": "gru"}
FEEDING = {"query": "new", "input_feeding": True, "bridge": True}
MODELS = {
    "book": Translator("book", LSTM, {**LSTM, "query": "previous"}, {}),
    "joey": Translator("joey", {**GRU, "bidirectional": True}, {**GRU, **FEEDING}, {}),
}
LENS = {"ragged": [4, 1, 3], "full": [4, 4, 4]}


@COMPILED
@pytest.mark.parametrize("score", [tuned.additive_score, tuned.additive_score_to_compile])
def test_additive_score(score, compiled):
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 5, 8), (2, 5, 8), (8,))]
    found = (torch.compile(score) if compiled else score)(*given)
    expected = torch_ref.additive_score(*given)
    along = torch.randn_like(expected)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, given, along), torch.autograd.grad(expected, given, along))


@COMPILED
def test_masked_softmax(compiled):
    scores, lens = torch.randn(3, 8, 8), torch.tensor([1, 5, 8])
    softmax = torch.compile(tuned.masked_softmax) if compiled else tuned.masked_softmax
    torch.testing.assert_close(softmax(scores, lens), torch_ref.masked_softmax(scores, lens))


def twins(name):
    """Return torch_ref's model and the tuned one, with the same large weights, so that no gate is nearly linear."""
    torch.manual_seed(0)
    reference, own = reference_model(MODELS[name]).double().eval(), tuned_model(MODELS[name]).double().eval()
    for parameter in reference.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    own.load_state_dict(reference.state_dict())
    torch.manual_seed(1)
    return reference, own, torch.randint(0, VOCAB, (3, 4))


@COMPILED
@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_torch_ref(name, lens, compiled):
    reference, own, sources = twins(name)
    if compiled:
        own.decoder.compile_step()
    source_lens, targets = torch.tensor(LENS[lens]), torch.randint(0, VOCAB, (3, 5))
    counts = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    expected, found = (
        reference(sources, targets, source_lens)[0][counts],
        own.logits(sources, source_lens, targets, counts),
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    along = torch.randn_like(expected)
    names, parameters = zip(*reference.named_parameters(), strict=True)
    gradients = torch.autograd.grad(expected, parameters, along)
    own_parameters = dict(own.named_parameters())
    own_gradients = torch.autograd.grad(found, [own_parameters[name] for name in names], along)
    for name, gradient, own_gradient in zip(names, gradients, own_gradients, strict=True):
        torch.testing.assert_close(own_gradient, gradient, rtol=1e-11, atol=1e-11, msg=name)


@pytest.mark.parametrize("min_len", [0, 6])
@pytest.mark.parametrize("name", MODELS)
def test_searches_find_what_torch_ref_finds(name, min_len):
    reference, own, sources = twins(name)
    for model in (reference, own):
        with torch.no_grad():
            model.decoder.dense.weight *= 2
            model.decoder.dense.bias[EOS] += 1.5  # so that some sentences end before the last step
    source_lens = torch.tensor(LENS["ragged"])
    ends = {"bos": BOS, "eos": EOS, "max_len": 6, "min_len": min_len}
    memory = reference.encode(sources, source_lens)
    given = reference.step, reference.initial_state(memory), memory
    for beam_size, expected in (
        (1, torch_ref.greedy_search(*given, batch_size=3, **ends)),
        (3, torch_ref.beam_search(*given, batch_size=3, beam_size=3, **ends)),
    ):
        ids, scores = tuned.search(own, sources, source_lens, beam_size, **ends)
        torch.testing.assert_close(ids, expected.ids)
        torch.testing.assert_close(scores.double(), expected.scores, rtol=1e-5, atol=1e-5)
    if min_len == 0:
        assert (expected.lengths < 6).any()
        assert (expected.lengths[:, 0] != expected.lengths[:, -1]).any()
