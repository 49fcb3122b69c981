import math

import torch

from torch_ref import greedy_search

EOS, BOS = 0, 3
# The most probable token after each: 3 -> 1 -> 2 -> eos, and for the second sentence 3 -> 2 -> 1 -> 2 -> 1 …
NEXT = torch.tensor([[0, 2, 0, 1], [0, 2, 1, 2]])


def step(tokens, state, memory):
    """Give the next token the probability 7/10, and weights that mark the number of the step."""
    best = torch.nn.functional.one_hot(memory[0, tokens], 4)
    return (0.1 + 0.6 * best).log(), state + 1, torch.nn.functional.one_hot(state, 6).double()


def test_the_most_probable_token_is_taken_until_eos_or_max_len():
    found = greedy_search(step, torch.zeros(2).long(), NEXT, bos=BOS, eos=EOS, max_len=5, batch_size=2)
    assert found.ids.tolist() == [[[1, 2, EOS, EOS, EOS]], [[2, 1, 2, 1, 2]]]
    assert found.lengths.tolist() == [[3], [5]]
    log_p = math.log(0.7)
    assert torch.allclose(found.token_scores, log_p * torch.tensor([[[1.0, 1, 1, 0, 0]], [[1.0] * 5]]))
    assert torch.allclose(found.scores, log_p * torch.tensor([[3.0], [5.0]]))
    assert torch.equal(found.weights[0, 0], torch.eye(6).double()[:5] * torch.tensor([[1], [1], [1], [0], [0]]))


def test_no_sentence_is_shorter_than_the_minimum_and_of_equal_tokens_the_lowest_wins():
    settings = {"bos": BOS, "eos": EOS, "max_len": 5, "batch_size": 2}
    longer = greedy_search(step, torch.zeros(2).long(), NEXT, **settings, min_len=5)
    assert longer.ids.tolist() == [[[1, 2, 1, 2, EOS]], [[2, 1, 2, 1, 2]]]

    def flat(tokens, state, memory):
        return torch.full((1, 4), math.log(0.25)), state, None

    found = greedy_search(flat, None, None, **settings, min_len=3)
    assert found.ids.tolist() == [[[1, 1, EOS, EOS, EOS]]] * 2
    assert found.weights is None
