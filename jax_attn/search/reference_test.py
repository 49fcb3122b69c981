"""Every search against one in plain Python that takes one sentence and one hypothesis at a time.

A language is a table of log probabilities over all prefixes, with a second table for its attention. The reference is
written from the docstrings: `Language` has the model, `allowed` the constraints, `greedy`, `sampled` and `beam` the
searches. They know nothing of batches, of places in a beam or of padding.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, ensemble, greedy_search, sample_search
from jax_attn.search import beam as beam_module
from jax_attn.search import constraints as constraints_module
from jax_attn.search import sampling as sampling_module

# The reference


class Hypothesis(NamedTuple):
    """One sentence under construction."""

    ids: tuple[int, ...] = ()
    token_scores: tuple[float, ...] = ()
    weights: tuple[Any, ...] = ()
    score: float = 0.0
    """Σ log p; of a beam, with its penalties."""

    @property
    def total(self):
        return sum(self.token_scores)


NOTHING, UNKNOWN = Hypothesis(score=-math.inf), Hypothesis(score=math.nan)
"""No token had a positive probability; NaN was among the log probabilities to choose from."""

Language = Callable[[int, tuple[int, ...]], tuple[Any, Any]]
"""language(sentence, ids) -> log p of each next token `[N]`, and the attention `[K]` or None."""


def allowed(row, ids, b, *, eos, max_len, min_len=0, no_repeat_ngram=None, force_end=False, prefix=None, lens=None):
    """Set log p of what may not follow `ids` to −inf. The prefix goes before the other constraints."""
    time, n = len(ids), no_repeat_ngram
    if prefix is not None and time < (prefix.shape[1] if lens is None else lens[b]):
        return [p if token == prefix[b, time] else -math.inf for token, p in enumerate(row)]
    if force_end and time == max_len - 1:
        return [0.0 if token == eos else -math.inf for token in range(len(row))]
    grams = [ids[i : i + n] for i in range(time - n + 1)] if n else []

    def may_follow(token):
        return not (token == eos and time + 1 < min_len) and (not n or (*ids, token)[-n:] not in grams)

    return [p if may_follow(token) else -math.inf for token, p in enumerate(row)]


def extend(hypothesis, language, b, rules):
    """Return the row of log p of what may follow, and the hypothesis with a given token as a function of it."""
    row, weights = language(b, hypothesis.ids)
    row = allowed([float(p) for p in row], hypothesis.ids, b, **rules)

    def extended(token):
        scores = (*hypothesis.token_scores, row[token])
        return Hypothesis((*hypothesis.ids, token), scores, (*hypothesis.weights, weights), sum(scores))

    return row, extended


def decode(language, b, choose, rules):
    """Append the token that `choose` takes until a sentence has ended."""
    found = Hypothesis()
    while len(found.ids) < rules["max_len"] and rules["eos"] not in found.ids:
        row, extended = extend(found, language, b, rules)
        if any(map(math.isnan, row)):
            return UNKNOWN
        if max(row) == -math.inf:
            return NOTHING
        found = extended(choose(row, len(found.ids)))
    return found


def greedy(language, b, rules):
    return [decode(language, b, lambda row, time: row.index(max(row)), rules)]


def sampled(language, b, rules, noise, num_samples=1, temperature=1.0, top_k=None, top_p=None):
    """Take argmax of log p / temperature + noise among the kept tokens; noise `[B, num_samples, L, N]`."""

    def kept(row):
        tokens = sorted(range(len(row)), key=lambda token: -row[token])[:top_k]
        likely = [math.exp((row[token] - row[tokens[0]]) / temperature) for token in tokens]
        return [t for i, t in enumerate(tokens) if top_p is None or sum(likely[:i]) < top_p * sum(likely)]

    def choose(s, row, time):
        return max(kept(row), key=lambda token: row[token] / temperature + float(noise[b, s, time, token]))

    return [decode(language, b, partial(choose, s), rules) for s in range(num_samples)]


def beam(
    language,
    b,
    rules,
    beam_size=5,
    length_penalty=0.0,
    length_norm="power",
    coverage_penalty=0.0,
    source_lens=None,
    stop="all",
):
    """Keep the best hypotheses at each step. Python's sort keeps the order of equal ones."""
    eos, max_len = rules["eos"], rules["max_len"]

    def normed(total, length):
        return total / ((5 + length) / 6 if length_norm == "gnmt" else length) ** length_penalty

    def scored(found):
        score = normed(found.total, len(found.ids))
        if coverage_penalty:
            coverage = np.sum(found.weights, axis=0)[: None if source_lens is None else source_lens[b]]
            score += coverage_penalty * np.log(np.clip(coverage, 1e-9, 1)).sum()
        return found._replace(score=score)

    def best(candidates, by):
        return sorted(candidates, key=lambda candidate: -by(candidate))[:beam_size]

    going_on, ended = [Hypothesis()], []
    for length in range(1, max_len + 1):
        candidates = []
        for hypothesis in going_on:
            if eos in hypothesis.ids:
                candidates.append(hypothesis)  # it competes with its own score
                continue
            row, extended = extend(hypothesis, language, b, rules)
            if any(map(math.isnan, row)):
                return [UNKNOWN] * beam_size
            likely = sorted(range(len(row)), key=lambda token: -row[token])
            candidates += [scored(extended(token)) for token in likely if row[token] > -math.inf]
        if stop == "all":
            going_on = best(candidates, lambda candidate: candidate.score)
            continue
        leaving = [c for c in best(candidates, lambda c: c.total) if eos in c.ids or length == max_len]
        ended = best([*ended, *leaving], lambda candidate: candidate.score)
        going_on = best([c for c in candidates if eos not in c.ids and length < max_len], lambda c: c.total)
        if going_on and len(ended) == beam_size:
            hoped = normed(going_on[0].total, max_len if stop == "never" else length)
            if stop == "first" or hoped <= ended[-1].score:
                break
    found = going_on if stop == "all" else ended
    return [*found, *[NOTHING] * (beam_size - len(found))]


def average(languages, dtype):
    """Return the language of an ensemble: the mean of the probabilities, rounded to the dtype of the models."""

    def language(b, ids):
        rows, weights = zip(*(each(b, ids) for each in languages), strict=True)
        with np.errstate(divide="ignore"):
            row = np.log(np.mean(np.exp(rows), axis=0))
        given = [weight for weight in weights if weight is not None]
        return np.asarray(jnp.asarray(row, dtype), np.float64), np.mean(given, axis=0) if given else None

    return language


REFERENCES = {greedy_search: greedy, sample_search: sampled, beam_search: beam}

# The languages

B, N, K, LENGTH, BOS, EOS = 9, 5, 3, 5, 1, 2
SIZE = (N + 1) ** LENGTH
SETTINGS = {"bos": BOS, "eos": EOS, "max_len": LENGTH, "batch_size": B}
RNG = np.random.default_rng(11)


def normalized(x):
    return x / x.sum(-1, keepdims=True)


TABLE = np.log(normalized(np.exp(2 * RNG.normal(size=(B, SIZE, N)))))
ATTENTION = normalized(np.exp(3 * RNG.normal(size=(B, SIZE, K))))
SENTENCE, TOKEN = np.arange(B)[:, None, None], np.arange(N)
TIME = np.array([len(np.base_repr(prefix, N + 1)) if prefix else 0 for prefix in range(SIZE)])[:, None]
OTHER = TABLE[:, :, ::-1]
TABLES = {
    "a language": TABLE,
    "none ends": np.where(TOKEN == EOS, -1e3, TABLE),
    "all end at once": np.where(TOKEN == EOS, -1e-3, TABLE - 9),
    "equal tokens": np.full_like(TABLE, -np.log(N)),
    "a NaN in question": np.where((SENTENCE % 3 == 1) & (TIME == 2), np.nan, TABLE),
    "nothing possible": np.where((SENTENCE % 3 == 0) | ((SENTENCE % 3 == 1) & (TIME > 0)), -np.inf, TABLE),
    "NaN where it is forbidden": np.where((TOKEN == EOS) & (TIME < 3), np.nan, TABLE),
    "babble": np.log(normalized(np.exp(np.where(TOKEN == EOS, -9.0, TABLE) + 5 * (TOKEN == 4)))),
    "three words": np.where(TOKEN > 2, -np.inf, TABLE),
    "two sentences": np.where(TOKEN == EOS, 0.0, np.where((TIME == 0) & (TOKEN == 1), -0.5, -np.inf)) + 0 * TABLE,
    "a veto": np.where(TABLE > -0.5, -np.inf, OTHER),
    "another": OTHER,
}
PREFIX = RNG.choice([0, 1, 3, 4], (B, 4))
RAGGED = {"prefix": PREFIX, "prefix_lens": np.arange(B) % 5}
ENDING = np.where(np.arange(3) == 1, np.where(np.arange(B)[:, None] % 2, EOS, 4), PREFIX[:, :3])
AGAINST = {"prefix": ENDING, "prefix_lens": 1 + np.arange(B) % 3, "min_len": 4, "no_repeat_ngram": 2}
NOISE = RNG.gumbel(size=(B, 2, LENGTH, N))
SHORTER = ATTENTION * (np.arange(K) < 1 + np.arange(B)[:, None, None] % 3)


def case(words, search, options, *, attention=ATTENTION, slow=False):
    tables = words.split(" + ")
    name = f"{search.__name__}: {words}" + "".join(f", {k}={v}" for k, v in options.items() if np.ndim(v) == 0)
    name += "".join(f", {k}" for k, v in options.items() if np.ndim(v))
    name += ", no weights" if attention is None else "" if attention is ATTENTION else ", less attention"
    return pytest.param(search, tables, attention, options, id=name, marks=[pytest.mark.slow] if slow else [])


CONSTRAINTS = (
    ("NaN where it is forbidden", {"min_len": 4}),
    ("a language", {"min_len": 4}),
    ("a language", {"force_end": True}),
    ("a language", {"no_repeat_ngram": 1}),
    ("babble", {"no_repeat_ngram": 2}),
    ("a language", {"no_repeat_ngram": 3}),
    ("three words", {"no_repeat_ngram": 1, "min_len": 5}),
    ("a language", {"prefix": PREFIX}),
    ("a language", RAGGED),
    ("a language", AGAINST),
    ("a language", {**RAGGED, "force_end": True}),
)
PLAIN = ("a language", "none ends", "all end at once", "a NaN in question", "nothing possible")
QUICK = ("a language", "a NaN in question")
NARROW, WIDE = {"beam_size": 3}, {"beam_size": 4, "length_penalty": 0.75}
GNMT = {"beam_size": 4, "length_penalty": 0.6, "length_norm": "gnmt"}
COVERAGE = {"beam_size": 4, "coverage_penalty": 0.7}
EVERYTHING = {**GNMT, "coverage_penalty": 0.4, "source_lens": 1 + np.arange(B) % 3, "min_len": 2, "no_repeat_ngram": 2}
DRAWN = {"noise": NOISE, "num_samples": 2}
CASES = (
    *(case(words, greedy_search, {}) for words in (*PLAIN, "equal tokens")),
    *(case(words, greedy_search, options) for words, options in CONSTRAINTS),
    case("a language", greedy_search, {}, attention=None),
    *(case(words, beam_search, WIDE) for words in PLAIN),
    case("a language", beam_search, {"beam_size": 1, "length_penalty": 1.0}),
    case("a language", beam_search, {"beam_size": 9}),
    case("a language", beam_search, NARROW, attention=None),
    case("equal tokens", beam_search, NARROW),
    case("two sentences", beam_search, WIDE),
    *(
        case(words, beam_search, {**NARROW, **options}, slow=i % 2 == 0)
        for i, (words, options) in enumerate(CONSTRAINTS)
    ),
    *(
        case(
            words,
            beam_search,
            {"beam_size": 2, "length_penalty": 1.0, "stop": stop},
            slow=stop != "first" and words not in QUICK,
        )
        for stop in ("first", "likely", "never")
        for words in (*PLAIN, "equal tokens")
    ),
    case("babble", beam_search, {**NARROW, "stop": "first", "no_repeat_ngram": 2}),
    case("a language", beam_search, {**NARROW, **RAGGED, "stop": "never", "force_end": True, "min_len": 3}),
    case("a language", beam_search, GNMT),
    case("a language", beam_search, COVERAGE),
    case("a language", beam_search, COVERAGE, attention=SHORTER),
    case("a language", beam_search, {**COVERAGE, "stop": "likely"}),
    case("a language", beam_search, EVERYTHING, attention=SHORTER),
    *(
        case("a language", sample_search, {**DRAWN, **options})
        for options in ({"temperature": 0.5}, {"top_k": 3, "temperature": 1.5}, {"top_k": 9}, {"top_p": 0.6})
    ),
    case("a language", sample_search, {**DRAWN, "top_p": 0.8, "top_k": 4, "temperature": 1.7}),
    case("a language", sample_search, {**DRAWN, "top_k": 2}, attention=None, slow=True),
    *(
        case(words, sample_search, {**DRAWN, "top_p": 0.9, "top_k": 4})
        for words in ("equal tokens", "a NaN in question", "nothing possible")
    ),
    case("a language", sample_search, {**DRAWN, **AGAINST, "top_p": 0.9}),
    *(
        case(words, beam_search, {**NARROW, "length_penalty": 1.0})
        for words in ("a language + another", "a language + babble + a veto", "nothing possible + nothing possible")
    ),
    case("a language + another", greedy_search, {}, attention=None),
    case("a language + another", sample_search, DRAWN),
)
"""The cases: a search, the tables of its models, their attention (of all but the last of several), its options."""

# The comparison


def step(tokens, state, memory):
    """Look up the prefix, which the state holds as a number in base N + 1; <bos> leaves it at 0."""
    prefix, time = state
    table, attention = memory
    prefix = jnp.where(time == 0, 0, prefix * (N + 1) + tokens + 1)
    sentence = jnp.repeat(jnp.arange(B), tokens.shape[0] // B)
    weights = None if attention is None else attention[sentence, prefix]
    return table[sentence, prefix], (prefix, time + 1), weights


@lru_cache
def compiled(search, static):
    def run(memories, arrays):
        count = len(memories)
        state = jnp.zeros(B, int), jnp.zeros(B, int)
        given = (step, state, *memories)
        if count > 1:
            given = ensemble([step] * count), (state,) * count, memories
        return search(*given, **SETTINGS, **dict(static), **arrays)

    return jax.jit(run)


def found_and_expected(search, tables, attention, options, dtype):
    """Return what the search and the reference find, both from the tables as rounded to a dtype."""
    memories = tuple(
        (jnp.asarray(TABLES[table], dtype), None if attention is None or i > 1 else jnp.asarray(attention, dtype))
        for i, table in enumerate(tables)
    )
    arrays = {name: x for name, x in options.items() if np.ndim(x)}
    if "noise" in arrays:
        arrays["noise"] = np.asarray(arrays["noise"], "float64" if dtype == "float64" else "float32")
    static = tuple((name, x) for name, x in options.items() if name not in arrays)
    result = compiled(search, static)(memories, arrays)

    def language(table, attention, b, ids):
        prefix = 0
        for token in ids:
            prefix = prefix * (N + 1) + token + 1
        return table[b, prefix], None if attention is None else attention[b, prefix]

    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), memories)
    languages = [partial(language, *memory) for memory in wide]
    joint = average(languages, dtype) if len(languages) > 1 else languages[0]
    rules = {"eos": EOS, "max_len": LENGTH}
    own = dict(options) | arrays
    rules |= {n: own.pop(n) for n in ("min_len", "no_repeat_ngram", "force_end", "prefix") if n in own}
    if "prefix_lens" in own:
        rules["lens"] = own.pop("prefix_lens")
    return jax.tree.map(np.asarray, result), [REFERENCES[search](joint, b, rules, **own) for b in range(B)]


def require_same(result, expected, rtol):
    """Hold a `SearchResult` against the reference's hypotheses `[sentence][n]`."""
    for b, hypotheses in enumerate(expected):
        lengths = [len(hypothesis.ids) for hypothesis in hypotheses]
        assert result.lengths[b].tolist() == lengths
        np.testing.assert_allclose(result.scores[b], [each.score for each in hypotheses], rtol=rtol, atol=rtol)
        for n, (length, hypothesis) in enumerate(zip(lengths, hypotheses, strict=True)):
            assert tuple(result.ids[b, n, :length]) == hypothesis.ids
            assert (result.ids[b, n, length:] == EOS).all()
            np.testing.assert_allclose(result.token_scores[b, n, :length], hypothesis.token_scores, rtol, atol=rtol)
            assert not result.token_scores[b, n, length:].any()
            assert not length or (result.weights is None) == (hypothesis.weights[0] is None)
            if result.weights is not None:
                weights, expected_weights = result.weights[b, n], np.reshape(hypothesis.weights, (length, K))
                np.testing.assert_allclose(weights[:length].astype(float), expected_weights, rtol, atol=rtol)
                assert not weights[length:].any()


@pytest.mark.parametrize(("search", "tables", "attention", "options"), CASES)
def test_a_search_finds_what_the_reference_finds(x64, search, tables, attention, options):
    require_same(*found_and_expected(search, tables, attention, options, "float64"), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 2e-6), ("bfloat16", 2**-8)])
@pytest.mark.parametrize(("search", "tables", "attention", "options"), CASES)
def test_it_finds_the_same_in_narrow_dtypes(search, tables, attention, options, dtype, rtol):
    """Sums are taken in float32, and scores are returned in the dtype of the step."""
    require_same(*found_and_expected(search, tables, attention, options, dtype), rtol=rtol)


def test_the_languages_are_of_many_lengths_and_searches_differ(x64):
    """So that no comparison is of sentences that are all alike."""
    results = [
        found_and_expected(search, ["a language"], ATTENTION, options, "float64")[0]
        for search, options in (
            (greedy_search, {}),
            (beam_search, NARROW),
            (beam_search, WIDE),
            (beam_search, COVERAGE),
        )
    ]
    assert len(set(results[0].lengths.ravel().tolist())) > 3
    assert len({tuple(result.ids[:, 0].ravel().tolist()) for result in results}) == len(results)


FAULTS = {
    "the length penalty is forgotten": (
        *(beam_search, "a language", WIDE),
        *(beam_module, "make_penalties", lambda right, _, *rest, **more: right(0.0, *rest, **more)),
    ),
    "coverage counts the source's padding": (
        *(beam_search, "a language", EVERYTHING),
        *(beam_module, "make_penalties", lambda right, *rest, source_lens: right(*rest, source_lens=None)),
    ),
    "a beam's weights come from the wrong place": (
        *(beam_search, "a language", NARROW),
        *(beam_module, "_read_back", lambda right, *args: (*(found := right(*args))[:2], jnp.roll(found[2], 1, 1))),
    ),
    "a beam that shall stop goes on": (
        *(beam_search, "a language", {"beam_size": 2, "length_penalty": 1.0, "stop": "first"}),
        *(beam_module, "_keep_unfinished", lambda right, *args: right(*args[:-1], "never")),
    ),
    "repeats of one token more are forbidden": (
        *(greedy_search, "babble", {"no_repeat_ngram": 2}),
        *(constraints_module, "forbid_repeats", lambda right, *args: right(*args[:-1], args[-1] + 1)),
    ),
    "the prefix begins one late": (
        *(greedy_search, "a language", {"prefix": PREFIX}),
        *(constraints_module, "force_prefix", lambda right, logs, time, prefix: right(logs, time - 1, prefix)),
    ),
    "hot for cold": (
        *(sample_search, "a language", {**DRAWN, "temperature": 0.5}),
        *(sampling_module, "draw_tokens", lambda right, *args, **more: right(*args, **more | {"temperature": 2.0})),
    ),
}
"""A search, its language and its options; a function that it calls, and what stands instead of that function."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_search_is_noticed(x64, monkeypatch, fault):
    search, table, options, module, name, change = FAULTS[fault]
    compiled.cache_clear()
    monkeypatch.setattr(module, name, partial(change, getattr(module, name)))
    with pytest.raises(AssertionError):
        require_same(*found_and_expected(search, [table], SHORTER, options, "float64"), rtol=1e-12)
    compiled.cache_clear()
