import math

import torch

from torch_ref import additive_score, bilinear_score, dot_score, gaussian_score, scaled_dot_score

QUERIES = torch.tensor([[[1.0, 2.0], [0.0, -1.0]]])  # [1, 2, 2]
KEYS = torch.tensor([[[3.0, 1.0], [1.0, 1.0], [0.0, 0.0]]])  # [1, 3, 2]


def test_scores_by_hand():
    dot = torch.tensor([[[5.0, 3.0, 0.0], [-1.0, -1.0, 0.0]]])
    assert torch.equal(dot_score(QUERIES, KEYS), dot)
    assert torch.allclose(scaled_dot_score(QUERIES, KEYS), dot / math.sqrt(2))
    assert torch.equal(bilinear_score(QUERIES, KEYS, torch.eye(2)), dot)
    assert bilinear_score(QUERIES, torch.ones(1, 3, 5), torch.ones(2, 5))[0, 0].tolist() == [15.0] * 3
    assert torch.allclose(gaussian_score(QUERIES, KEYS, sigma=2.0)[0, 0], -torch.tensor([5.0, 1.0, 5.0]) / 8)
    w_v = torch.tensor([2.0, -1.0])
    expected = 2 * math.tanh(1 + 3) - math.tanh(2 + 1)
    assert math.isclose(additive_score(QUERIES, KEYS, w_v)[0, 0, 0], expected, rel_tol=1e-6)
    assert additive_score(QUERIES, KEYS, w_v, use_tanh=False)[0, 0, 0] == 2 * 4 - 3


def test_half_precision_products_do_not_overflow_on_the_way():
    # 300 * 300 is above float16's largest number, the difference of two such products is not.
    queries, keys = torch.tensor([[300.0, 300.0]]).half(), torch.tensor([[300.0, -300.0]]).half()
    assert dot_score(queries, keys).item() == 0
    assert dot_score(queries, keys).dtype == torch.float16
