import threading

import pytest

from train.data.prefetch import prefetch


def test_all_items_come_in_order_and_at_most_two_ahead():
    made = []

    def items():
        for i in range(10):
            made.append(i)
            yield i

    for i, item in enumerate(prefetch(items(), 2)):
        assert item == i
        assert len(made) <= i + 4  # the one in use, two ahead, and one under way
    assert made == list(range(10))


def test_the_next_item_is_made_while_one_is_used():
    made = [threading.Event() for _ in range(4)]

    def items():
        for event in made:
            event.set()
            yield event

    for i, _ in enumerate(prefetch(items(), 1)):
        assert made[min(i + 1, 3)].wait(timeout=30)


def test_an_exception_comes_at_its_place_and_the_thread_ends():
    def items():
        yield 1
        raise ValueError("no more")

    coming = prefetch(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="no more"):
        next(coming)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_a_consumer_that_stops_ends_the_thread():
    coming = prefetch(iter(int, 1))
    next(coming)
    coming.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
