"""Compute the next items of an iterator in a thread, while the present one is used."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], ahead: int = 2) -> Generator[Item]:
    """Yield the items, of which up to `ahead` are computed in advance, one after another in one thread.

    An exception of the iterator is raised where its item would have come. When the consumer stops (or closes the
    generator), the thread ends after the item that it is at.
    """
    iterator = iter(items)
    end: Any = object()
    with ThreadPoolExecutor(1, "prefetch") as pool:
        try:
            coming = deque(pool.submit(next, iterator, end) for _ in range(ahead))
            while (item := coming.popleft().result()) is not end:
                coming.append(pool.submit(next, iterator, end))
                yield item
        finally:
            pool.shutdown(cancel_futures=True)
