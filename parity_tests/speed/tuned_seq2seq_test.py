"""The tuned twins compute what torch_ref computes, in float64, and take its weights by name."""

import pytest
import torch

import torch_ref
from parity_tests.speed.torch_training import seed_model, tuned_model
from parity_tests.speed.translation import BOS, EOS, Translator
from parity_tests.speed.tuned_search import beam_search, greedy_search

COMPILING = (pytest.mark.slow, pytest.mark.filterwarnings("ignore"))  # torch.compile warns of itself

VOCAB, HIDDEN = 11, 6
SIZES = {"vocab_size": VOCAB, "embed_size": 5, "num_hiddens": HIDDEN}
LSTM = {**SIZES, "num_layers": 2, "cell": "lstm"}
GRU = {**SIZES, "num_layers": 1, "cell": "gru"}
BOOK = Translator("book", LSTM, {**LSTM, "query": "previous"}, "sentences", 0.01)
JOEY = Translator(
    "joey",
    {**GRU, "bidirectional": True},
    {**GRU, "query": "new", "input_feeding": True, "bridge": True},
    "tokens",
    0.01,
)
LENS = {"ragged": [4, 1, 3], "full": [4, 4, 4]}


def twins(translator):
    """torch_ref's model and the tuned one with its weights, far enough from 0 that no gate is a line."""
    torch.manual_seed(0)
    seed, tuned = seed_model(translator).double().eval(), tuned_model(translator).double().eval()
    for parameter in seed.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    tuned.load_state_dict(seed.state_dict())
    return seed, tuned


def draw(lens):
    torch.manual_seed(1)
    return torch.randint(0, VOCAB, (3, 4)), torch.tensor(LENS[lens])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILING)])
@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("translator", [BOOK, JOEY], ids=lambda translator: translator.name)
def test_logits_and_gradients_are_those_of_torch_ref(translator, lens, compiled):
    seed, tuned = twins(translator)
    if compiled:
        tuned.decoder.compile_step()
    sources, source_lens = draw(lens)
    targets = torch.randint(0, VOCAB, (3, 5))
    counts = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    expected, found = seed(sources, targets, source_lens)[0][counts], tuned(sources, source_lens, targets, counts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    along = torch.randn(expected.shape, dtype=torch.float64)
    of_seed, of_tuned = (dict(model.named_parameters()) for model in (seed, tuned))
    gradients = torch.autograd.grad(expected, list(of_seed.values()), along)
    for name, gradient in zip(of_seed, gradients, strict=True):
        (own,) = torch.autograd.grad(found, of_tuned[name], along, retain_graph=True)
        torch.testing.assert_close(own, gradient, rtol=1e-11, atol=1e-11, msg=name)


@pytest.mark.parametrize("min_len", [0, 6])
@pytest.mark.parametrize("translator", [BOOK, JOEY], ids=lambda translator: translator.name)
def test_searches_find_what_torch_ref_finds(translator, min_len):
    seed, tuned = twins(translator)
    for model in (seed, tuned):
        with torch.no_grad():
            model.decoder.dense.weight *= 2
            model.decoder.dense.bias[EOS] += 1.5  # so that some sentences end before the last step
    sources, source_lens = draw("ragged")
    ends = {"bos": BOS, "eos": EOS, "max_len": 6, "min_len": min_len}
    memory = seed.encode(sources, source_lens)
    given = seed.step, seed.initial_state(memory), memory
    greedy = torch_ref.greedy_search(*given, batch_size=3, **ends)
    ids, scores = greedy_search(tuned, sources, source_lens, **ends)
    torch.testing.assert_close(ids, greedy.ids[:, 0])
    torch.testing.assert_close(scores.double(), greedy.scores[:, 0], rtol=1e-5, atol=1e-5)
    beam = torch_ref.beam_search(*given, batch_size=3, beam_size=3, **ends)
    ids, scores = beam_search(tuned, sources, source_lens, **ends, beam_size=3)
    torch.testing.assert_close(ids, beam.ids)
    torch.testing.assert_close(scores.double(), beam.scores, rtol=1e-5, atol=1e-5)
    if min_len == 0:
        assert (beam.lengths < 6).any()
        assert (beam.lengths[:, 0] != beam.lengths[:, -1]).any()
