"""Parts of a corpus: what is held out, and that it stays held out."""

from collections import Counter

import numpy as np
import pytest

from train.data.corpus import CorpusError, Pair
from train.data.splits import hash_pairs, split_by_hash, split_in_order


def numbered(start, end):
    return [Pair(f"source {i}", f"target {i}") for i in range(start, end)]


def split(pairs, train=None, valid=None, test=None, how=split_by_hash):
    report: Counter[str] = Counter()
    parts = how(*hash_pairs(pairs), train, valid, test, report)
    return [[pairs[i] for i in part] for part in parts], report


def test_the_hash_is_the_same_on_every_machine_and_ignores_case_and_spaces():
    (source, *others), _ = hash_pairs([Pair(text, "") for text in ("Ein Hund", "ein  hund", "EIN HUND", "ein hun")])
    assert source == 0x29385608F17C0944 == others[0] == others[1] != others[2]


def test_every_pair_is_in_one_part_or_counted_and_no_sentence_is_in_two_parts():
    pairs = [Pair(f"source {i}", f"target {i // 7}") for i in range(3000)]  # seven sources have the same target
    pairs += [Pair(f"Source  {i}", f"other {i}") for i in range(0, 3000, 2)]
    (train, valid, test), report = split(pairs)
    assert (len(valid), len(test)) == (60, 60)
    assert len(train) + len(valid) + len(test) + report.total() == len(pairs)
    assert train == sorted(train, key=pairs.index)
    for side in range(2):
        held, learnt = ({pair[side].lower().replace("  ", " ") for pair in part} for part in (valid + test, train))
        assert not held & learnt
        assert not {pair[side] for pair in valid} & {pair[side] for pair in test}
    assert len({pair.source.lower() for pair in test}) == 60
    assert report["pairs left out of training for a target that is held out"] > 500


def test_a_grown_file_keeps_its_split():
    small, large = numbered(0, 4000), numbered(0, 7000)
    (train, valid, test), _ = split(small, valid=100, test=100)
    (grown_train, grown_valid, grown_test), _ = split(large, valid=100, test=100)
    assert set(train) <= set(grown_train)
    for before, after in ((valid, grown_valid), (test, grown_test)):
        assert not set(before) & set(grown_train)
        assert not set(after) & set(train)
        assert len(set(before) & set(after)) > 40


def test_training_pairs_are_drawn_from_all_over_the_file():
    pairs = numbered(0, 4000)
    (train, *held), report = split(pairs, 400, 50, 50)
    places = [pairs.index(pair) for pair in train]
    assert len(places) == 400
    assert places == sorted(places)
    assert abs(np.mean(places) - 2000) < 200
    assert report["pairs not drawn for training"] > 3000
    assert split(pairs, valid=50, test=50)[0][1:] == held  # the held-out pairs do not depend on it


@pytest.mark.parametrize(
    ("pairs", "sizes", "said"),
    [
        (600 * [Pair("a", "b")], {}, "600 pairs with only 1 different source sentence are too few"),
        (numbered(0, 10), {"valid": 8, "test": 8}, "only 10 different source sentences"),
        (numbered(0, 100), {"train": 99}, "pairs are left for training"),
    ],
)
def test_too_few_pairs_say_why(pairs, sizes, said):
    with pytest.raises(CorpusError, match=said):
        split(pairs, **sizes)


def test_the_first_pairs_train_and_the_next_ones_that_share_no_sentence_are_held_out():
    lines = ["a 1", "b 2", "a 3", "c 1", "d 4", "d 5", "e 4", "f 6"]
    pairs = [Pair(*line.split()) for line in lines]
    (train, valid, test), report = split(pairs, 2, 1, 1, split_in_order)
    assert [pair.source for pair in train + valid + test] == ["a", "b", "d", "f"]
    assert report["held-out pairs passed over for a sentence that is known"] == 4
    with pytest.raises(CorpusError, match="8 pairs with only 6 different source sentences are too few"):
        split(pairs, 2, 3, 2, split_in_order)
