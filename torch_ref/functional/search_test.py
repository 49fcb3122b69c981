"""A language model made of one random table over all prefixes, small enough to list every sentence it can say."""

import itertools
import math

import pytest
import torch

from torch_ref import beam_search, greedy_search

N, EOS, BOS, MAX_LEN, BATCH = 3, 2, 0, 3, 2
TABLE = torch.randn(BATCH, (N + 1) ** MAX_LEN, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TABLE = torch.log_softmax(2 * TABLE, dim=-1)
MEMORY = {"table": TABLE, "offset": torch.arange(BATCH)}
SETTINGS = {"bos": BOS, "eos": EOS, "max_len": MAX_LEN, "batch_size": BATCH}


def step(tokens, state, memory):
    """The state is the prefix read as a number in base N + 1; the first <bos> leaves it 0."""
    (prefix, started) = state
    prefix = torch.where(started, prefix * (N + 1) + tokens + 1, 0)
    log_probs = memory["table"][:, prefix[0]]
    weights = torch.nn.functional.one_hot(memory["offset"], BATCH).double()
    return log_probs, (prefix, torch.ones_like(started)), weights


def initial():
    return torch.zeros(BATCH, dtype=torch.int64), torch.zeros(BATCH, dtype=torch.bool)


def sentences():
    """Every sequence that ends with its only eos, or reaches MAX_LEN without one."""
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
        # More places than sentences: the rest are no hypotheses.
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


def test_errors_say_both_shapes():
    with pytest.raises(ValueError, match=r"every tensor of state must be \[2, ...\]; got \[3\]"):
        greedy_search(step, torch.zeros(3), MEMORY, **SETTINGS)
    with pytest.raises(ValueError, match="beam_size must be at least 1; got 0"):
        beam_search(step, initial(), MEMORY, **SETTINGS, beam_size=0)
