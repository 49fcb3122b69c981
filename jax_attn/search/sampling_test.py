from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import greedy_search, sample_search
from jax_attn.search.sampling import draw_tokens, nucleus

EOS, BOS = 0, 1
P = np.array([0.05, 0.4, 0.05, 0.3, 0.2])
N = len(P)
SETTINGS = {"bos": BOS, "eos": EOS, "max_len": 1, "batch_size": 1}


def step(tokens, state, memory):
    """Return one distribution for every row and time, rotated by the `memory` of the sentence."""
    sentence = jnp.repeat(jnp.arange(memory.shape[0]), tokens.shape[0] // memory.shape[0])
    turned = (jnp.arange(N) + memory[sentence, None]) % N
    return jnp.log(jnp.asarray(P, jnp.float32))[turned], state, jax.nn.one_hot(tokens, N)


@cache
def program(**settings):
    return jax.jit(lambda memory, random: sample_search(step, (), memory, **random, **settings))


def sample(memory=(0,), key=0, noise=None, **options):
    random = {"key": jax.random.key(key) if isinstance(key, int) else key} if noise is None else {"noise": noise}
    return program(**SETTINGS | {"batch_size": len(memory)} | options)(jnp.array(memory), random)


@jax.jit
def greedy():
    return greedy_search(step, (), jnp.array([0]), **SETTINGS | {"max_len": 3})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, P),
        ({"temperature": 3.0, "top_p": 0.75}, P ** (1 / 3) * [1, 1, 0, 1, 1]),  # applied after the temperature
    ],
)
def test_frequencies(options, expected):
    """χ² with up to 4 degrees of freedom exceeds 23.5 once in 10⁴ times. A token that is not kept is never drawn."""
    count = 20_000
    found = np.asarray(sample(num_samples=count, **options).ids)[..., 0]
    observed, expected = np.bincount(found.ravel(), minlength=N), count * expected / expected.sum()
    assert not observed[expected == 0].any()
    kept = expected > 0
    assert ((observed - expected)[kept] ** 2 / expected[kept]).sum() < 23.5


def test_samples_steps_and_sentences_are_independent():
    """Pairs of tokens, of one sample or of two, have the frequency of independent tokens."""
    found = np.asarray(sample(memory=(0,) * 50, num_samples=400, min_len=2, max_len=3, key=3).ids)
    allowed = P * [0, 1, 1, 1, 1]
    first, second = allowed / allowed.sum(), P
    for a, b, second_p in (
        (found[:, :, 0], found[:, :, 1], second),  # time
        (found[:, ::2, 0], found[:, 1::2, 0], first),  # samples
        (found[::2, :, 0], found[1::2, :, 0], first),  # sentences
    ):
        expected = a.size * np.outer(first, second_p)
        observed = np.zeros((N, N))
        np.add.at(observed, (a.ravel(), b.ravel()), 1)
        kept = expected > 0
        assert not observed[~kept].any()
        # 19 degrees of freedom at most: 50.8 is exceeded once in 10⁴ times
        assert ((observed - expected)[kept] ** 2 / expected[kept]).sum() < 50.8


def test_given_noise_decides_the_draw():
    noise = np.zeros((1, 2, 1, N), np.float32)
    noise[0, 0, 0, 4], noise[0, 1, 0, 2] = 9, 9
    found = sample(noise=jnp.asarray(noise), num_samples=2)
    np.testing.assert_array_equal(found.ids, [[[4], [2]]])
    np.testing.assert_allclose(
        found.token_scores[0, :, 0], np.log(P[[4, 2]]), rtol=1e-6
    )  # log p of the model, without the noise
    found = sample(noise=jnp.zeros((1, 1, 3, N)), temperature=0.1, max_len=3)
    jax.tree.map(np.testing.assert_array_equal, found, greedy())


def test_keeping_one_token_is_greedy_search():
    jax.tree.map(np.testing.assert_array_equal, sample(max_len=3, top_k=1), greedy())


def test_a_sentences_samples_do_not_change_with_the_batch_around_it():
    options = {"max_len": 6, "min_len": 6, "num_samples": 3, "top_p": 0.9, "temperature": 1.5}
    every = sample(memory=(0, 1, 2, 3), **options)
    fewer = sample(memory=(0, 1), **options)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:2], b), every, fewer)
    more = sample(memory=(0, 1, 2, 3), **options | {"num_samples": 5})
    np.testing.assert_array_equal(more.ids[:, :3], every.ids)
    keys, order = jax.random.split(jax.random.key(5), 4), jnp.array([2, 0, 3, 1])
    own = sample(memory=(0, 1, 2, 3), key=keys, **options)
    moved = sample(memory=tuple(order.tolist()), key=keys[order], **options)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), own, moved)
    assert len({ids.tobytes() for ids in np.asarray(every.ids).reshape(12, 6)}) > 8  # and they differ


def test_the_nucleus_is_the_smallest_set_that_reaches_p():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.125, 0.125]]))
    for top_p, kept in {0.4: 1, 0.5: 1, 0.51: 2, 0.75: 2, 0.8: 3, 1.0: 4}.items():
        assert int(nucleus(logits, top_p).sum()) == kept
    assert not nucleus(jnp.full((1, 3), -jnp.inf), 0.5).any()
    assert nucleus(jnp.array([[0.0, -jnp.inf]]), 1.0).tolist() == [[True, False]]


def test_a_nucleus_of_everything_keeps_a_token_that_a_sum_in_float32_cannot_hold():
    log_probs, noise = jnp.array([[0.0, -20.0]]), jnp.array([[0.0, 30.0]])
    _, chosen = draw_tokens(log_probs, noise, temperature=1.0, k=None, p=1.0)
    assert chosen.tolist() == [1]


def test_a_sentence_with_nan_ends_alone():
    def broken(tokens, state, memory):
        log_probs = jnp.log(jnp.asarray(P, jnp.float32)) + jnp.where(memory[:, None] == 1, jnp.nan, 0)
        return log_probs, state, None

    settings = SETTINGS | {"batch_size": 2, "max_len": 3}
    search = jax.jit(lambda key, memory: sample_search(broken, (), memory, key=key, **settings))
    found = search(jax.random.key(0), jnp.array([0, 1]))
    assert found.lengths[0] > 0
    assert jnp.isfinite(found.scores[0])
    assert found.lengths[1] == 0
    np.testing.assert_array_equal(found.scores[1], np.nan)
    np.testing.assert_array_equal(found.ids[1], EOS)
