"""A random language over all prefixes, small enough to list every sentence it can say."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, greedy_search

N, EOS, BOS, MAX_LEN, BATCH = 3, 2, 0, 3, 2
logits = 2 * np.random.default_rng(1).normal(size=(BATCH, (N + 1) ** MAX_LEN, N))
TABLE = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
SETTINGS = {"bos": BOS, "eos": EOS, "max_len": MAX_LEN, "batch_size": BATCH}


def step(tokens, state, memory):
    """The state is the prefix read as a number in base N + 1, which <bos> leaves at 0, and the steps taken."""
    prefix, time = state["prefix"], state["time"]
    prefix = jnp.where(time == 0, 0, prefix * (N + 1) + tokens + 1)
    sentence = jnp.repeat(jnp.arange(BATCH), tokens.shape[0] // BATCH)
    weights = prefix[:, None] + 0.25 * sentence[:, None] + jnp.zeros(4)  # names the prefix and the sentence
    return memory[sentence, prefix], {"prefix": prefix, "time": time + 1}, weights


def initial():
    return {"prefix": jnp.zeros(BATCH, int), "time": jnp.zeros(BATCH, int)}


def search(function=beam_search, table=TABLE, **settings):
    run = jax.jit(lambda state, memory: function(step, state, memory, **SETTINGS | settings))
    return run(initial(), jnp.asarray(table))


def sentences():
    """Every sequence that ends with its only eos, or reaches MAX_LEN without one."""
    for length in range(1, MAX_LEN + 1):
        for ids in itertools.product(range(N), repeat=length):
            if EOS not in ids[:-1] and (ids[-1] == EOS or length == MAX_LEN):
                yield ids


def prefixes(ids):
    """The number of the prefix before each token."""
    numbers = [0]
    for token in ids[:-1]:
        numbers.append(numbers[-1] * (N + 1) + token + 1)
    return numbers


def padded(row, fill):
    return [*row, *[fill] * (MAX_LEN - len(row))]


@pytest.mark.parametrize("length_penalty", [0.0, 0.75])
@pytest.mark.parametrize("beam_size", [15, 20])
def test_a_beam_as_wide_as_the_language_finds_every_sentence_in_order(x64, length_penalty, beam_size):
    result = search(beam_size=beam_size, length_penalty=length_penalty)
    for b in range(BATCH):
        tokens = {ids: [TABLE[b, p, token] for p, token in zip(prefixes(ids), ids, strict=True)] for ids in sentences()}
        ranked = sorted(tokens, key=lambda ids: -sum(tokens[ids]) / len(ids) ** length_penalty)
        assert len(ranked) == 15
        for n, ids in enumerate(ranked):
            assert result.ids[b, n].tolist() == padded(ids, EOS)
            assert result.lengths[b, n] == len(ids)
            np.testing.assert_allclose(result.scores[b, n], sum(tokens[ids]) / len(ids) ** length_penalty, rtol=1e-12)
            np.testing.assert_allclose(result.token_scores[b, n], padded(tokens[ids], 0), rtol=1e-12)
            # The attention of each step is that of the hypothesis's own prefix, 0 past its end.
            attended = padded([p + 0.25 * b for p in prefixes(ids)], 0)
            np.testing.assert_array_equal(result.weights[b, n], np.repeat(np.array(attended)[:, None], 4, axis=1))
    assert (result.scores[:, 15:] == -jnp.inf).all()


def python_beam(b, beam_size, length_penalty):
    """The rule again, one hypothesis at a time: (ids, sum), the ended ones kept as they are."""
    beam = [((), 0.0)]
    for _ in range(MAX_LEN):
        candidates = []
        for ids, total in beam:
            if EOS in ids:
                candidates.append((ids, total))
            else:
                prefix = prefixes((*ids, None))[-1]
                candidates += [((*ids, token), total + TABLE[b, prefix, token]) for token in range(N)]
        beam = sorted(candidates, key=lambda c: -c[1] / len(c[0]) ** length_penalty)[:beam_size]
    return beam


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("beam_size", [2, 3])
def test_a_narrow_beam_is_the_rule_carried_out_one_hypothesis_at_a_time(x64, beam_size, length_penalty):
    result = search(beam_size=beam_size, length_penalty=length_penalty)
    for b in range(BATCH):
        for n, (ids, total) in enumerate(python_beam(b, beam_size, length_penalty)):
            assert result.ids[b, n].tolist() == padded(ids, EOS)
            np.testing.assert_allclose(result.scores[b, n], total / len(ids) ** length_penalty, rtol=1e-12)


def test_a_beam_of_one_is_greedy(x64):
    jax.tree.map(np.testing.assert_array_equal, search(beam_size=1), search(greedy_search))


def test_of_equal_hypotheses_the_earlier_with_the_smaller_token_comes_first():
    result = search(table=np.zeros_like(TABLE), beam_size=4)
    np.testing.assert_array_equal(result.ids[0], [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0]])


def test_it_stops_when_every_hypothesis_has_ended():
    taken = []

    def ends_at_once(tokens, state, memory):
        jax.debug.callback(lambda _: taken.append(1), tokens)
        return jnp.log(jnp.tile(jnp.array([0.1, 0.1, 0.8]), (tokens.shape[0], 1))), state, None

    settings = SETTINGS | {"max_len": 50}
    result = jax.block_until_ready(beam_search(ends_at_once, (), None, beam_size=2, **settings))
    jax.effects_barrier()
    assert len(taken) == 2
    np.testing.assert_array_equal(result.ids[0, :, :2], [[EOS, EOS], [0, EOS]])
    assert result.weights is None


@pytest.mark.parametrize("beam_size", [0, -1])
def test_a_beam_below_one_is_refused(beam_size):
    with pytest.raises(ValueError, match=f"beam_size must be at least 1; got {beam_size}"):
        search(beam_size=beam_size)


def counted_search(table, **settings):
    """A search of one sentence over log probabilities `[L, N]` by time, and how many steps it took."""
    taken = []

    def by_time(tokens, time, memory):
        jax.debug.callback(lambda _: taken.append(1), time)
        return memory[time], time + 1, None

    ends = {"bos": 0, "eos": EOS, "max_len": len(table), "batch_size": 1}
    result = beam_search(by_time, jnp.zeros(1, int), jnp.asarray(table), **ends, **settings)
    jax.block_until_ready(result)
    jax.effects_barrier()
    return result, len(taken)


def test_places_that_nobody_fills_keep_nobody_waiting():
    table = np.log(np.full((9, N), 1 / N))
    table[2:] = [-np.inf, -np.inf, 0]
    result, steps = counted_search(table, beam_size=20)
    assert steps == 3
    assert int((result.lengths > 0).sum()) == 1 + 2 + 4
    assert (result.scores[0, 7:] == -jnp.inf).all()
    np.testing.assert_array_equal(result.ids[0, 7:], EOS)


@pytest.mark.parametrize("nan", [np.nan, -np.nan])
def test_a_nan_in_question_makes_the_scores_nan_and_stops(nan):
    table = np.log(np.full((9, N), 1 / N))
    table[1, 1] = nan
    result, steps = counted_search(table, beam_size=3)
    assert steps == 2
    assert np.isnan(result.scores).all()
    assert not result.lengths.any()
    np.testing.assert_array_equal(result.ids, EOS)
    np.testing.assert_array_equal(result.token_scores, 0)


def test_a_nan_that_is_not_in_question_does_no_harm():
    """Only what has ended, or has never begun, is asked for what comes next: its answer is not looked at."""
    table = np.full((5, N), np.nan)
    table[0] = [-np.inf, -np.inf, 0]
    result, steps = counted_search(table, beam_size=3)
    assert steps == 1
    np.testing.assert_array_equal(result.scores, [[0, -np.inf, -np.inf]])


def test_a_hopeless_sentence_has_no_hypothesis_and_ends_at_once():
    table = np.log(np.full((9, N), 1 / N))
    table[1] = -np.inf
    table[0, EOS] = -np.inf
    result, steps = counted_search(table, beam_size=3)
    assert steps == 2
    assert (result.scores == -jnp.inf).all()
    assert not result.lengths.any()


def test_a_score_that_divides_does_not_hide_which_token_is_likelier():
    """Both sums round to the same float32; a beam of one still takes what greedy search takes."""
    table = np.log(np.full((2, N), 1e-30, np.float32))
    table[0, 0] = -4e7
    table[0, 1:] = -np.inf
    table[1] = [-0.75, -0.5, -9.0]
    result, _ = counted_search(table.astype(np.float32), beam_size=1)
    np.testing.assert_array_equal(result.ids, [[[0, 1]]])
