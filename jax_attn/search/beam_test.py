"""Beam search over random languages that are small enough to list every sentence; `reference_test` has narrow beams.

A language is a random table of log probabilities over all prefixes, with a second table for its attention. NumPy lists
and ranks the sentences, and checks the constraints on whole sentences.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, greedy_search

N, EOS, BOS, MAX_LEN, LANGUAGES, KEYS = 3, 2, 0, 4, 40, 3
SETTINGS = {"bos": BOS, "eos": EOS, "max_len": MAX_LEN, "batch_size": LANGUAGES}
RNG = np.random.default_rng(7)


def normalized(x):
    return x / x.sum(-1, keepdims=True)


TABLE = np.log(normalized(np.exp(2 * RNG.normal(size=(LANGUAGES, (N + 1) ** MAX_LEN, N)))))
ATTENTION = normalized(np.exp(3 * RNG.normal(size=(LANGUAGES, (N + 1) ** MAX_LEN, KEYS))))
SOURCE_LENS = RNG.integers(0, KEYS + 1, LANGUAGES)
PREFIX, PREFIX_LENS = RNG.integers(0, N, (LANGUAGES, 3)), RNG.integers(0, 4, LANGUAGES)

OPTIONS = (
    {},
    {"coverage_penalty": 0.5},
    {"renormalize": True, "min_len": 4, "no_repeat_ngram": 2, "prefix": PREFIX, "prefix_lens": PREFIX_LENS},
    {
        "length_penalty": 0.8,
        "length_norm": "gnmt",
        "coverage_penalty": 0.2,
        "source_lens": SOURCE_LENS,
        "min_len": 3,
        "no_repeat_ngram": 2,
        "prefix": PREFIX,
        "prefix_lens": PREFIX_LENS,
    },
)
PARTS = (
    {"length_penalty": 1.0},
    {"length_penalty": 0.6, "length_norm": "gnmt"},
    {"min_len": 3},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2, "min_len": 4},
    {"prefix": PREFIX, "prefix_lens": PREFIX_LENS},
    {"renormalize": True, "length_penalty": 1.0, "no_repeat_ngram": 1},
)
"""Parts of the last two of `OPTIONS`, each of which but `renormalize` is in `reference_test` too."""
SENTENCES = [
    ids
    for length in range(1, MAX_LEN + 1)
    for ids in itertools.product(range(N), repeat=length)
    if EOS not in ids[:-1] and (ids[-1] == EOS or length == MAX_LEN)
]


def step(tokens, state, memory):
    """Look up the prefix, which the state holds as a number in base N + 1; <bos> leaves it at 0."""
    prefix, time = state["prefix"], state["time"]
    prefix = jnp.where(time == 0, 0, prefix * (N + 1) + tokens + 1)
    language = jnp.repeat(jnp.arange(LANGUAGES), tokens.shape[0] // LANGUAGES)
    table, attention = memory
    return table[language, prefix], {"prefix": prefix, "time": time + 1}, attention[language, prefix]


def search(function, dtype, table=TABLE, **options):
    arrays = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    static = {name: x for name, x in options.items() if name not in arrays}
    state = {"prefix": jnp.zeros(LANGUAGES, int), "time": jnp.zeros(LANGUAGES, int)}
    memory = (jnp.asarray(table, dtype), jnp.asarray(ATTENTION, dtype))
    run = jax.jit(lambda memory, arrays: function(step, state, memory, **SETTINGS, **static, **arrays))
    return jax.tree.map(np.asarray, run(memory, arrays))


def prefix_numbers(ids):
    """Return the number of the prefix before each token."""
    numbers = [0]
    for token in ids[:-1]:
        numbers.append(numbers[-1] * (N + 1) + token + 1)
    return numbers


def is_allowed(ids, forced, min_len=0, no_repeat_ngram=None):
    """Return whether a whole sentence keeps the constraints, which start after the forced tokens."""
    if ids[: len(forced)] != forced[: len(ids)]:
        return False
    if ids[-1] == EOS and len(forced) < len(ids) < min_len:
        return False
    if no_repeat_ngram is None:
        return True
    grams = [ids[i : i + no_repeat_ngram] for i in range(len(ids) - no_repeat_ngram + 1)]
    return all(gram not in grams[:i] for i, gram in enumerate(grams) if i + no_repeat_ngram > len(forced))


def forced_tokens(language, options):
    """Return the prefix of a language's sentences."""
    if "prefix" not in options:
        return ()
    forced = tuple(PREFIX[language, : PREFIX_LENS[language]].tolist())
    return forced[: forced.index(EOS) + 1] if EOS in forced else forced


def token_logs(language, ids, options):
    """Return log p of each token of an allowed sentence."""
    rows, forced = TABLE[language, prefix_numbers(ids)].copy(), forced_tokens(language, options)
    constraints = options.get("min_len", 0), options.get("no_repeat_ngram")
    for time in range(len(forced), len(ids)) if options.get("renormalize") else ():
        left = [token for token in range(N) if is_allowed((*ids[:time], token), forced, *constraints)]
        rows[time] -= np.log(np.exp(rows[time, left]).sum())
    return rows[np.arange(len(ids)), ids]


def ranked(language, options):
    """Return every allowed sentence, best first: (score, ids)."""
    forced = forced_tokens(language, options)
    alpha, source_len = options.get("length_penalty", 0), options.get("source_lens", [KEYS] * LANGUAGES)[language]
    found = []
    for ids in SENTENCES:
        if is_allowed(ids, forced, options.get("min_len", 0), options.get("no_repeat_ngram")):
            before = prefix_numbers(ids)
            length = (5 + len(ids)) / 6 if options.get("length_norm") == "gnmt" else len(ids)
            coverage = np.minimum(ATTENTION[language, before].sum(0), 1)[:source_len]
            score = token_logs(language, ids, options).sum() / length**alpha
            found.append((score + options.get("coverage_penalty", 0) * np.log(coverage).sum(), ids))
    return sorted(found, reverse=True)


@pytest.mark.parametrize(
    "options",
    [*OPTIONS, *(pytest.param(options, marks=pytest.mark.slow) for options in PARTS)],
    ids=lambda options: ", ".join(options) or "nothing",
)
def test_a_beam_as_wide_as_the_language_finds_every_sentence_in_order(x64, options):
    beam_size = len(SENTENCES)
    result = search(beam_search, "float64", beam_size=beam_size, **options)
    for b in range(LANGUAGES):
        expected = ranked(b, options)
        assert 0 < len(expected) <= beam_size
        assert [tuple(ids[:n]) for ids, n in zip(result.ids[b].tolist(), result.lengths[b], strict=True)] == [
            *(ids for _, ids in expected),
            *[()] * (beam_size - len(expected)),
        ]
        scores = [score for score, _ in expected]
        np.testing.assert_allclose(result.scores[b, : len(scores)], scores, rtol=1e-12, atol=1e-12)
        assert (result.scores[b, len(scores) :] == -np.inf).all()
        for n, (_, ids) in enumerate(expected):
            before = prefix_numbers(ids)
            np.testing.assert_array_equal(result.weights[b, n, : len(ids)], ATTENTION[b, before])
            logs = token_logs(b, ids, options)
            tolerance = 1e-13 if "renormalize" in options else 0
            np.testing.assert_allclose(result.token_scores[b, n, : len(ids)], logs, rtol=tolerance, atol=tolerance)
            assert (result.ids[b, n, len(ids) :] == EOS).all()
            assert not result.weights[b, n, len(ids) :].any()
            assert not result.token_scores[b, n, len(ids) :].any()


@pytest.mark.parametrize(("options", "dtype"), [(OPTIONS[0], "float32"), (OPTIONS[-1], "bfloat16")])
def test_a_beam_of_one_is_greedy_bit_for_bit(options, dtype):
    constraints = {name: x for name, x in options.items() if name.startswith(("min", "no", "prefix", "renormalize"))}
    one, greedy = search(beam_search, dtype, beam_size=1, **options), search(greedy_search, dtype, **constraints)
    if options:  # the greedy score has no penalties
        one, greedy = one._replace(scores=None), greedy._replace(scores=None)
    jax.tree.map(np.testing.assert_array_equal, one, greedy)


def test_equal_hypotheses_keep_their_order_and_put_the_lower_token_first():
    result = search(beam_search, "float32", table=np.zeros_like(TABLE), beam_size=4)
    np.testing.assert_array_equal(result.ids[0], [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 1, 0]])


def counted_search(table, **settings):
    """Search one sentence over log probabilities `[L, N]` by time, and count the steps."""
    taken = []

    def by_time(tokens, time, memory):
        jax.debug.callback(lambda _: taken.append(1), time)
        return memory[time], time + 1, None

    ends = {"bos": 0, "eos": EOS, "max_len": len(table), "batch_size": 1}
    result = beam_search(by_time, jnp.zeros(1, int), jnp.asarray(table), **ends, **settings)
    jax.block_until_ready(result)
    jax.effects_barrier()
    return result, len(taken)


def test_search_stops_when_every_hypothesis_has_ended():
    result, steps = counted_search(np.log(np.tile([0.1, 0.1, 0.8], (50, 1))), beam_size=2)
    assert steps == 2
    np.testing.assert_array_equal(result.ids[0, :, :2], [[EOS, EOS], [0, EOS]])
    assert result.weights is None


def test_empty_places_do_not_prolong_the_search():
    table = np.log(np.full((9, N), 1 / N))
    table[2:] = [-np.inf, -np.inf, 0]
    result, steps = counted_search(table, beam_size=20)
    assert steps == 3
    assert int((result.lengths > 0).sum()) == 1 + 2 + 4
    assert (result.scores[0, 7:] == -jnp.inf).all()
    np.testing.assert_array_equal(result.ids[0, 7:], EOS)


@pytest.mark.parametrize("nan", [np.nan, -np.nan])
def test_a_nan_that_counts_makes_the_scores_nan_and_ends_the_search(nan):
    table = np.log(np.full((9, N), 1 / N))
    table[1, 1] = nan
    result, steps = counted_search(table, beam_size=3)
    assert steps == 2
    assert np.isnan(result.scores).all()
    assert not result.lengths.any()
    np.testing.assert_array_equal(result.ids, EOS)
    np.testing.assert_array_equal(result.token_scores, 0)


def test_a_nan_for_a_hypothesis_that_is_not_continued_is_ignored():
    """A finished hypothesis and an empty place ignore the log probabilities of the step."""
    table = np.full((5, N), np.nan)
    table[0] = [-np.inf, -np.inf, 0]
    result, steps = counted_search(table, beam_size=3)
    assert steps == 1
    np.testing.assert_array_equal(result.scores, [[0, -np.inf, -np.inf]])


def test_a_sentence_without_a_possible_token_has_no_hypothesis_and_ends():
    table = np.log(np.full((9, N), 1 / N))
    table[1] = -np.inf
    table[0, EOS] = -np.inf
    result, steps = counted_search(table, beam_size=3)
    assert steps == 2
    assert (result.scores == -jnp.inf).all()
    assert not result.lengths.any()


def test_of_equal_sums_the_more_probable_token_comes_first():
    """Both sums round to the same float32; a beam of one still takes the token of greedy search."""
    table = np.log(np.full((2, N), 1e-30, np.float32))
    table[0, 0] = -4e7
    table[0, 1:] = -np.inf
    table[1] = [-0.75, -0.5, -9.0]
    result, _ = counted_search(table.astype(np.float32), beam_size=1)
    np.testing.assert_array_equal(result.ids, [[[0, 1]]])
