"""Beams as wide as the language against a list of all it can say, over many random languages and all options.

A language is a random table over all prefixes; its attention is another. Everything is listed with NumPy, and what a
constraint allows is said over whole sentences.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, greedy_search

N, EOS, BOS, MAX_LEN, LANGUAGES, KEYS = 3, 2, 0, 4, 100, 3
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
    {"length_penalty": 1.0},
    {"length_penalty": 0.6, "length_norm": "gnmt"},
    {"coverage_penalty": 0.5},
    {"min_len": 3},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2, "min_len": 4},
    {"prefix": PREFIX, "prefix_lens": PREFIX_LENS},
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
SENTENCES = [
    ids
    for length in range(1, MAX_LEN + 1)
    for ids in itertools.product(range(N), repeat=length)
    if EOS not in ids[:-1] and (ids[-1] == EOS or length == MAX_LEN)
]


def step(tokens, state, memory):
    """The state is the prefix read as a number in base N + 1, which <bos> leaves at 0, and the steps taken."""
    prefix, time = state["prefix"], state["time"]
    prefix = jnp.where(time == 0, 0, prefix * (N + 1) + tokens + 1)
    language = jnp.repeat(jnp.arange(LANGUAGES), tokens.shape[0] // LANGUAGES)
    table, attention = memory
    return table[language, prefix], {"prefix": prefix, "time": time + 1}, attention[language, prefix]


def search(function, dtype, **options):
    arrays = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    static = {name: x for name, x in options.items() if name not in arrays}
    state = {"prefix": jnp.zeros(LANGUAGES, int), "time": jnp.zeros(LANGUAGES, int)}
    memory = (jnp.asarray(TABLE, dtype), jnp.asarray(ATTENTION, dtype))
    run = jax.jit(lambda memory, arrays: function(step, state, memory, **SETTINGS, **static, **arrays))
    return jax.tree.map(np.asarray, run(memory, arrays))


def numbers_of_prefixes(ids):
    numbers = [0]
    for token in ids[:-1]:
        numbers.append(numbers[-1] * (N + 1) + token + 1)
    return numbers


def is_allowed(ids, forced, min_len=0, no_repeat_ngram=None):
    """Whether a whole sentence keeps the constraints from the first token that is not forced."""
    if ids[: len(forced)] != forced[: len(ids)]:
        return False
    if ids[-1] == EOS and len(forced) < len(ids) < min_len:
        return False
    if no_repeat_ngram is None:
        return True
    grams = [ids[i : i + no_repeat_ngram] for i in range(len(ids) - no_repeat_ngram + 1)]
    return all(
        gram not in grams[:i] for i, gram in enumerate(grams) if i + no_repeat_ngram > len(forced)
    )  # fmt: skip


def ranked(language, options):
    """All that may be said, best first: (score, ids)."""
    forced = ()
    if "prefix" in options:
        forced = tuple(PREFIX[language, : PREFIX_LENS[language]].tolist())
        forced = forced[: forced.index(EOS) + 1] if EOS in forced else forced
    alpha, source_len = options.get("length_penalty", 0), options.get("source_lens", [KEYS] * LANGUAGES)[language]
    found = []
    for ids in SENTENCES:
        if is_allowed(ids, forced, options.get("min_len", 0), options.get("no_repeat_ngram")):
            before = numbers_of_prefixes(ids)
            length = (5 + len(ids)) / 6 if options.get("length_norm") == "gnmt" else len(ids)
            coverage = np.minimum(ATTENTION[language, before].sum(0), 1)[:source_len]
            score = TABLE[language, before, ids].sum() / length**alpha
            found.append((score + options.get("coverage_penalty", 0) * np.log(coverage).sum(), ids))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "nothing")
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
            before = numbers_of_prefixes(ids)
            np.testing.assert_array_equal(result.weights[b, n, : len(ids)], ATTENTION[b, before])
            np.testing.assert_array_equal(result.token_scores[b, n, : len(ids)], TABLE[b, before, ids])
            assert not result.weights[b, n, len(ids) :].any()
            assert not result.token_scores[b, n, len(ids) :].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[-1]], ids=["nothing", "everything"])
def test_a_beam_of_one_is_greedy_bit_for_bit(options, dtype):
    constraints = {name: x for name, x in options.items() if name.startswith(("min", "no", "prefix"))}
    one, greedy = search(beam_search, dtype, beam_size=1, **options), search(greedy_search, dtype, **constraints)
    if options:  # the greedy score has no penalties
        one, greedy = one._replace(scores=None), greedy._replace(scores=None)
    jax.tree.map(np.testing.assert_array_equal, one, greedy)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[-1]], ids=["nothing", "everything"])
def test_a_narrow_beam_finds_sentences_of_the_language_and_none_better_than_the_best(x64, options):
    widest = search(beam_search, "float64", beam_size=len(SENTENCES), **options)
    narrow = search(beam_search, "float64", beam_size=4, **options)
    assert (narrow.scores[:, 0] <= widest.scores[:, 0] + 1e-12).all()
    assert (np.diff(np.nan_to_num(narrow.scores, neginf=-1e9), axis=1) <= 0).all()
    for b in range(LANGUAGES):
        of_ids = {ids: score for score, ids in ranked(b, options)}
        said = [tuple(ids[:n]) for ids, n in zip(narrow.ids[b].tolist(), narrow.lengths[b], strict=True) if n]
        assert len(set(said)) == len(said)
        np.testing.assert_allclose(narrow.scores[b, : len(said)], [of_ids[ids] for ids in said], atol=1e-12)
