import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import sinusoidal_positions


@pytest.mark.parametrize("num_features", [6, 5])
def test_sines_and_cosines_alternate_by_the_equation(x64, num_features):
    P = sinusoidal_positions(4, num_features, jnp.float64)
    assert P.shape == (4, num_features)
    for t in range(4):
        for j in range(num_features):
            angle = t / 10000 ** ((j - j % 2) / num_features)
            assert np.isclose(P[t, j], np.cos(angle) if j % 2 else np.sin(angle), rtol=1e-13, atol=1e-15)


def test_the_dtype_is_the_one_asked_for_and_rounded_once():
    P = sinusoidal_positions(600, 8, jnp.bfloat16)  # above 256, bfloat16 cannot count
    np.testing.assert_array_equal(P, sinusoidal_positions(600, 8).astype(jnp.bfloat16))


@pytest.mark.parametrize(("form", "first"), [("opennmt", 1), ("fairseq", 2)])
def test_these_forms_count_from_another_number_and_end_with_the_lowest_frequency(form, first):
    angles = np.arange(first, first + 3)[:, None] * [1.0, 1e-2, 1e-4]
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    np.testing.assert_allclose(sinusoidal_positions(3, 6, form=form), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "rotary"}, r"form must be one of \('interleaved', 'halves', 'opennmt', 'fairseq'\); got 'rotary'"),
        ({"form": "opennmt", "num_features": 2}, "must be at least 0 and 3; got 4 and 2"),
        ({"form": "fairseq", "num_features": 7}, "must be even for fairseq; got 7"),
        ({"num_features": 0}, "must be at least 0 and 1; got 4 and 0"),
    ],
)
def test_a_form_that_there_is_not_or_too_few_features_are_refused(own_checks, arguments, message):
    with pytest.raises(ValueError, match=message):
        sinusoidal_positions(**{"length": 4, "num_features": 6} | arguments)
