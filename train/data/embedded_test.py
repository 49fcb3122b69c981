"""The pairs of embedded.tsv: different sentences, whole words, and links between all of them."""

from train.data.embedded import embedded_pairs
from train.data.tokens import detokenize


def test_no_sentence_occurs_twice_and_each_word_is_linked_within_its_pair():
    pairs = embedded_pairs()
    assert len({pair.source for pair in pairs}) == len({pair.target for pair in pairs}) == len(pairs) == 21_000
    for source, target, alignment in pairs:
        for words in (source.split(" "), target.split(" ")):
            assert detokenize(words).replace("'", "' ").split() == words
        sure, possible = alignment.sure, alignment.possible
        assert not sure & possible
        assert {i for i, _ in sure | possible} == set(range(len(source.split())))
        assert sorted(j for _, j in sure) == list(range(len(target.split())))  # one sure link each
        assert {j for _, j in possible} <= {j for _, j in sure}
