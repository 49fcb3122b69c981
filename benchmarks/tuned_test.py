"""The tuned model computes what torch_ref computes, in float64."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import torch_ref
from benchmarks import tuned
from benchmarks.attention import tuned_softmax
from benchmarks.translators import BOS, EOS, Translator
from benchmarks.tuned import reference_model, tuned_model
from jax_attn.search import reference_test as reference
from jax_attn.settings import RecurrentConfig, TransformerConfig
from train.presets import BOOK

COMPILING = (pytest.mark.slow, pytest.mark.filterwarnings("ignore"))  # torch.compile warns of itself
COMPILED = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILING)])

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # PyTorch's, where `norm_first` is given

VOCAB = 11
SIZES = {"embed_size": 5, "num_hiddens": 6}
MODELS = {
    "book": replace(BOOK.model, **SIZES),
    "joey": RecurrentConfig(**SIZES, encoder_hiddens=6),
    "transformer": TransformerConfig(embed_size=8, num_hiddens=6, num_heads=2, norm="pre"),
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
    softmax = torch.compile(tuned_softmax) if compiled else tuned_softmax
    torch.testing.assert_close(softmax(scores, lens), torch_ref.masked_softmax(scores, lens))


def draw(name):
    """Return torch_ref's model with large weights, so that no gate is nearly linear, and sources."""
    torch.manual_seed(0)
    model = reference_model(Translator(name, VOCAB, MODELS[name], BOOK.training)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    torch.manual_seed(1)
    return model, torch.randint(0, VOCAB, (3, 4))


@COMPILED
@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_torch_ref(name, lens, compiled):
    model, sources = draw(name)
    source_lens, targets = torch.tensor(LENS[lens]), torch.randint(0, VOCAB, (3, 5))
    counts = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    expected = model(sources, targets, source_lens)[0][counts]
    fast = tuned_model(model, "compiled" if compiled else "tuned").eval()
    found = fast.logits(sources, source_lens, targets, counts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    along = torch.randn_like(expected)
    shared = {id(parameter) for parameter in fast.parameters()}  # nn.Transformer's layers have copies
    names, parameters = zip(*(pair for pair in model.named_parameters() if id(pair[1]) in shared), strict=True)
    gradients, own = (torch.autograd.grad(logits, parameters, along) for logits in (expected, found))
    for parameter, gradient, own_gradient in zip(names, gradients, own, strict=True):
        torch.testing.assert_close(own_gradient, gradient, rtol=1e-11, atol=1e-11, msg=parameter)


@pytest.mark.parametrize("lens", ["ragged", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["book", pytest.param("joey", marks=pytest.mark.slow), "transformer"])
def test_searches_find_what_a_plain_search_finds_where_no_sentence_ends_early(name, lens):
    model, sources = draw(name)
    with torch.no_grad():
        model.decoder.dense.weight *= 2
        model.decoder.dense.bias[EOS] += 8  # so that sentences would end before the last step
    source_lens = torch.tensor(LENS[lens])
    fast = tuned_model(model, "tuned").eval()

    @torch.no_grad()
    def language(b, ids):
        logits, _ = model(sources[b : b + 1], torch.tensor([[BOS, *ids]]), source_lens[b : b + 1])
        return logits[0, -1].log_softmax(-1).tolist(), None

    rules = {"eos": EOS, "max_len": 6, "min_len": 6}
    for beam_size, search in ((1, reference.greedy), (3, partial(reference.beam, beam_size=3))):
        expected = [search(language, b, rules) for b in range(3)]
        ids, scores = tuned.search(fast, sources, source_lens, beam_size, 6)
        assert ids.tolist() == [[list(found.ids) for found in of_one] for of_one in expected]
        wanted = torch.tensor([[found.score for found in of_one] for of_one in expected], dtype=torch.float64)
        torch.testing.assert_close(scores.double(), wanted, rtol=1e-5, atol=1e-5)
        assert (ids[..., -1] == EOS).any()
