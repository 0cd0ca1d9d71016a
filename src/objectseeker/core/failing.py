"""Views on which a detector fails: the rule that `seeker` states and proves, for everyone who shows views."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from objectseeker.errors import is_want_of_memory

T = TypeVar("T")
log = logging.getLogger("objectseeker")


def attempt(see: Callable[[], T]) -> T | BaseException:
    """What a view gives by itself, or how that failed; want of memory is raised, for it says nothing about the view."""
    try:
        return see()
    except (Exception, SystemExit) as error:
        if is_want_of_memory(error):
            raise
        return error


def where_it_worked(
    found: Sequence[T | BaseException], again: Callable[[int], T | BaseException], nothing: T
) -> list[T]:
    """What the views of an image gave, `nothing` where one failed, which is said.

    An error if all failed; or if one that had worked, tried `again` by its number, does not any more: after a failure
    that stays, whatever is left to do would look empty.
    """
    failures = [entry for entry in found if isinstance(entry, BaseException)]
    if failures:
        worked = next((view for view, entry in enumerate(found) if not isinstance(entry, BaseException)), None)
        if worked is None or isinstance(again(worked), BaseException):
            raise failures[0]
        reason = (str(failures[0]) or type(failures[0]).__name__).splitlines()[0]
        log.warning(
            "the detector failed on %d of %d views of an image, which count as empty: %s",
            len(failures), len(found), reason[:200],
        )  # fmt: skip
    return [nothing if isinstance(entry, BaseException) else entry for entry in found]
