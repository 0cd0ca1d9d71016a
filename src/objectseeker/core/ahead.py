"""Reading while something else works: the next item of an iterator is made in a thread."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

_T = TypeVar("_T")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


_END = object()


def one_ahead(source: Iterable[_T]) -> Generator[_T]:
    """The items of `source`, in order; while one is in use the next is made, and no more than that.

    What `source` raises is raised here, after the items before it. Closing this generator ends the thread, as soon as
    the item that it is at is made: nobody waits for that, a camera that does not answer must not keep anyone.
    """
    asked: SimpleQueue[bool] = SimpleQueue()
    made: SimpleQueue[object] = SimpleQueue()
    Thread(target=_make, args=(source, asked, made), daemon=True).start()
    try:
        asked.put(True)
        while (item := made.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            asked.put(True)
            yield item  # type: ignore[misc]  # what came out of `source`
    finally:
        asked.put(False)


def _make(source: Iterable[object], asked: SimpleQueue[bool], made: SimpleQueue[object]) -> None:
    """An item for every time one is asked for; a source that is a generator is closed in the thread that runs it."""
    try:
        items = iter(source)
        try:
            while asked.get():
                made.put(next(items, _END))
        finally:
            if isinstance(items, Generator):
                items.close()
    except BaseException as error:  # whoever waits for the item gets it
        made.put(_Failure(error))
