"""Searches over a language model that is one random table of all prefixes, small enough to list every sentence."""

import itertools
import math

import pytest
import torch

from torch_ref import beam_search, ensemble, greedy_search, sample_search
from torch_ref.search.constraints import Constraints
from torch_ref.search.penalties import Penalties
from torch_ref.search.result import Hypothesis
from torch_ref.search.sampling import kept_tokens

N, EOS, BOS, MAX_LEN, BATCH = 3, 2, 0, 3, 2
TABLE = torch.randn(BATCH, (N + 1) ** MAX_LEN, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TABLE = torch.log_softmax(2 * TABLE, dim=-1)
MEMORY = {"table": TABLE, "offset": torch.arange(BATCH)}
SETTINGS = {"bos": BOS, "eos": EOS, "max_len": MAX_LEN, "batch_size": BATCH}


def step(tokens, state, memory):
    """Look up the next token's log_probs; the state is the prefix as a number in base N + 1, 0 after <bos>."""
    (prefix, started) = state
    prefix = torch.where(started, prefix * (N + 1) + tokens + 1, 0)
    log_probs = memory["table"][:, prefix[0]]
    weights = torch.nn.functional.one_hot(memory["offset"], BATCH).double()
    return log_probs, (prefix, torch.ones_like(started)), weights


def initial():
    return torch.zeros(BATCH, dtype=torch.int64), torch.zeros(BATCH, dtype=torch.bool)


def sentences():
    """List every sequence that ends with its only eos, or reaches MAX_LEN without one."""
    for length in range(1, MAX_LEN + 1):
        for ids in itertools.product(range(N), repeat=length):
            if EOS not in ids[:-1] and (ids[-1] == EOS or length == MAX_LEN):
                yield ids


def token_scores(b, ids):
    prefix, scores = 0, []
    for token in ids:
        scores.append(float(TABLE[b, prefix, token]))
        prefix = prefix * (N + 1) + token + 1
    return scores


@pytest.mark.parametrize("length_penalty", [0.0, 0.75])
@pytest.mark.parametrize("beam_size", [15, 20])
def test_a_beam_as_wide_as_the_language_finds_every_sentence_in_order(length_penalty, beam_size):
    result = beam_search(step, initial(), MEMORY, **SETTINGS, beam_size=beam_size, length_penalty=length_penalty)
    for b in range(BATCH):
        scored = [(sum(token_scores(b, ids)) / len(ids) ** length_penalty, ids) for ids in sentences()]
        ranked = sorted(scored, reverse=True)
        assert len(ranked) == 15
        for n, (score, ids) in enumerate(ranked):
            length = len(ids)
            assert tuple(result.ids[b, n].tolist()) == ids + (EOS,) * (MAX_LEN - length)
            assert result.lengths[b, n] == length
            assert math.isclose(result.scores[b, n], score, rel_tol=1e-12)
            expected = torch.tensor(token_scores(b, ids) + [0.0] * (MAX_LEN - length), dtype=torch.float64)
            assert torch.equal(result.token_scores[b, n], expected)
            assert result.weights[b, n, :, b].tolist() == [1.0] * length + [0.0] * (MAX_LEN - length)
        # The beam has more places than there are sentences: the rest is empty.
        assert (result.scores[b, 15:] == -torch.inf).all()
        assert (result.lengths[b, 15:] == 0).all()
        assert (result.ids[b, 15:] == EOS).all()
        assert (result.weights[b, 15:] == 0).all()


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_of_one_is_greedy(length_penalty):
    greedy = greedy_search(step, initial(), MEMORY, **SETTINGS)
    beam = beam_search(step, initial(), MEMORY, **SETTINGS, beam_size=1, length_penalty=length_penalty)
    for a, b in zip(greedy[:2], beam[:2], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(greedy.token_scores, beam.token_scores)
    assert torch.equal(greedy.weights, beam.weights)
    assert torch.allclose(greedy.scores / greedy.lengths**length_penalty, beam.scores)
    assert torch.allclose(greedy.scores, greedy.token_scores.sum(-1))


def test_equal_scores_keep_the_lower_beam_and_token():
    def flat(tokens, state, memory):
        return torch.full((1, 4), math.log(0.25)), state, None

    result = beam_search(flat, None, None, bos=0, eos=3, max_len=2, batch_size=1, beam_size=3)
    assert result.ids.tolist() == [[[0, 0], [0, 1], [0, 2]]]
    assert result.weights is None
    assert greedy_search(flat, None, None, bos=0, eos=3, max_len=2, batch_size=1).ids.tolist() == [[[0, 0]]]


def test_what_may_follow():
    free = Constraints(EOS)
    assert [free.allow(token, [0, 1]) for token in range(N)] == [True] * N
    assert not Constraints(EOS, min_len=4).allow(EOS, [0, 1])
    assert Constraints(EOS, min_len=3).allow(EOS, [0, 1])
    twice = Constraints(EOS, no_repeat_ngram=2)
    assert [twice.allow(token, [0, 1, 0]) for token in range(N)] == [True, False, True]
    forced = Constraints(EOS, min_len=4, no_repeat_ngram=1, prefix=(0, 0, EOS))
    assert [forced.allow(token, [0]) for token in range(N)] == [True, False, False]
    assert forced.allow(EOS, [0, 0])


def test_scores_with_penalties():
    looked = [torch.tensor([0.5, 1.0, 0.0]), torch.tensor([0.25, 1.0, 0.0])]
    hypothesis = Hypothesis(ids=[1] * 7, total=-6.0, weights=looked)
    assert Penalties(0.5).score(hypothesis) == pytest.approx(-6 / 7**0.5)
    assert Penalties(0.5, "gnmt").score(hypothesis) == pytest.approx(-6 / 2**0.5)
    assert Penalties(coverage=2.0, source_len=2).score(hypothesis) == pytest.approx(-6 + 2 * math.log(0.75))
    assert Penalties(coverage=1.0).score(hypothesis) == pytest.approx(-6 + math.log(0.75) + math.log(1e-9))


def test_kept_tokens():
    row = [math.log(p) for p in (0.125, 0.5, 0.125, 0.25)]
    assert kept_tokens(row, 1.0, None, None) == [1, 3, 0, 2]
    assert kept_tokens(row, 1.0, 3, None) == [1, 3, 0]
    assert kept_tokens(row, 1.0, None, 0.75) == [1, 3]
    assert kept_tokens(row, 1.0, None, 0.76) == [1, 3, 0]
    assert kept_tokens(row, 1.0, 2, 0.7) == [1, 3]  # of 2/3 and 1/3
    assert kept_tokens(row, 0.5, None, 0.7) == [1]


def test_samples_are_as_frequent_as_they_are_probable():
    generator = torch.Generator().manual_seed(0)
    settings = {**SETTINGS, "max_len": 1, "num_samples": 3000, "generator": generator}
    found = sample_search(step, initial(), MEMORY, **settings)
    for b in range(BATCH):
        expected = 3000 * TABLE[b, 0].exp()
        observed = torch.bincount(found.ids[b].flatten(), minlength=N)
        assert ((observed - expected) ** 2 / expected).sum() < 18.4  # exceeded by chance once in 10⁴ times


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_sentence_without_possible_tokens_has_no_hypothesis(value):
    memory = {**MEMORY, "table": TABLE.clone()}
    memory["table"][1] = value
    noise = torch.zeros(BATCH, 1, MAX_LEN, N)
    for search, options in ((greedy_search, {}), (beam_search, {}), (sample_search, {"noise": noise})):
        found = search(step, initial(), memory, **SETTINGS, **options)
        assert found.scores[0, 0].isfinite()
        assert found.scores[1].isnan().all() if math.isnan(value) else (found.scores[1] == value).all()
        assert (found.lengths[1] == 0).all()
        assert (found.ids[1] == EOS).all()


def test_probabilities_or_their_logarithms_are_averaged():
    def model(p):
        return lambda tokens, state, memory: (torch.tensor([p]).log(), state, None)

    steps = [model([0.5, 0.25, 0.25]), model([0.1, 0.1, 0.8])]
    token, none = torch.tensor([0]), (None, None)
    assert torch.allclose(ensemble(steps)(token, none, none)[0].exp(), torch.tensor([[0.3, 0.175, 0.525]]))
    expected = torch.tensor([[0.05, 0.025, 0.2]]).sqrt()
    found = ensemble(steps, average="log")(token, none, none)[0].exp()
    assert torch.allclose(found, expected / expected.sum())
