import pytest

from jax_attn.settings import RecurrentConfig
from train.config import SearchConfig
from train.setting import ConfigError
from train.translating.check_search import check_search, search_bytes


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (SearchConfig(beam_size=101), "beam_size must be at most 100, the size of the target vocabulary; got 101"),
        (SearchConfig(coverage_penalty=1.0), "coverage_penalty needs attention, and the model has none"),
        (SearchConfig(min_len=21), "min_len must be at most 20, the longest target in the training"),
        (SearchConfig(max_len=65_536, beam_size=100, batch_size=60_000), r"the search needs about \d+\.\d GB"),
        (SearchConfig(sample=True, num_samples=10_000, batch_size=60_000), "lower num_samples, max_len"),
    ],
)
def test_a_search_that_cannot_be_done_is_refused(search, message):
    check_search(SearchConfig(min_len=20), RecurrentConfig(attention="none"), 100, 30, 20)
    with pytest.raises(ConfigError, match=message):
        check_search(search, RecurrentConfig(attention="none"), 100, 30, 20)


def test_ten_thousand_samples_of_a_hundred_sentences_are_counted_in_gigabytes():
    search = SearchConfig(sample=True, num_samples=10_000)
    assert 5e9 < search_bytes(search, RecurrentConfig(), 500, 13, 14) < 40e9
    assert search_bytes(SearchConfig(beam_size=5), RecurrentConfig(), 8000, 60, 60) < 1e9
