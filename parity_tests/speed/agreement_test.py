import numpy as np
import pytest

from parity_tests.speed.agreement import DisagreementError, require_agreement
from parity_tests.speed.workload import Agreement

TRUTH = {"output": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)}


def test_the_error_is_that_of_a_tensor():
    found = {"output": TRUTH["output"] + np.float32(4e-6)}
    assert require_agreement("w", found, TRUTH, Agreement(1e-5)) == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"output": TRUTH["output"] + np.float32(1e-3)}, "output is 0.00025 from"),
        ({"output": TRUTH["output"] * np.nan}, "output is nan from"),
        ({"output": TRUTH["output"][:1]}, r"output is \[1, 2\], in the reference \[2, 2\]"),
        ({"other": TRUTH["output"]}, "has .'other'."),
    ],
)
def test_a_difference_is_an_error(found, words):
    with pytest.raises(DisagreementError, match=words):
        require_agreement("w", found, TRUTH, Agreement(1e-5))


def test_a_tie_in_one_sentence_takes_its_score_along():
    truth = {"ids": np.zeros((40, 3), np.int64), "scores": np.ones(40, np.float32)}
    found = {name: x.copy() for name, x in truth.items()}
    found["ids"][7, 1], found["scores"][7] = 5, 9.0
    assert require_agreement("w", found, truth, Agreement(1e-5, ids=0.03)) == 0
    with pytest.raises(DisagreementError, match="differs in 1 of 40 rows"):
        require_agreement("w", found, truth, Agreement(1e-5))
    found["scores"][8] = 1.1
    with pytest.raises(DisagreementError, match=r"scores is 0\.1 from"):
        require_agreement("w", found, truth, Agreement(1e-5, ids=0.03))
