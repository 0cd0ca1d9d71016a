"""Which of a detector's classes is which of a dataset's.

Names match if they are equal, else if they are equal but for case, blanks, underscores and hyphens, else if both are
usual names of one thing (aeroplane and airplane). The closest kind of match wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.errors import ObjectSeekerError

ALIASES = (
    ("airplane", "aeroplane"),
    ("cell phone", "cellular phone", "mobile phone"),
    ("couch", "sofa"),
    ("dining table", "dinner table"),
    ("donut", "doughnut"),
    ("hair drier", "hair dryer"),
    ("motorcycle", "motorbike"),
    ("person", "pedestrian"),
    ("potted plant", "pot plant"),
    ("tv", "tv monitor", "television", "monitor"),
)


@dataclass(frozen=True, slots=True, eq=False)
class ClassMatch:
    """How a detector's labels translate to a dataset's.

    Several detector classes may stand for one dataset class (a detector that knows both tv and monitor, on VOC);
    no detector class stands for two.
    """

    to_dataset: Ints  # for each detector label the dataset label, or -1
    known: Bools  # for each dataset label whether the detector has a class for it
    unknown: tuple[str, ...]  # the dataset classes it has none for: they cannot be found, so they must not count
    unused: int  # how many detector classes the dataset has no class for

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user; empty if every dataset class is known."""
        if not self.unknown:
            return ()
        return (f"dataset classes left out because the detector does not know them: {', '.join(self.unknown)}",)


def match_classes(dataset_names: Sequence[str], detector_names: Sequence[str]) -> ClassMatch:
    """Match by name. A detector class that two dataset classes answer to equally well is left unmatched.

    No match at all is an error: it means the wrong detector or wrong names, and every figure would be empty.
    """
    to_dataset = np.array([_find(name, dataset_names) for name in detector_names], dtype=np.int64)
    known = np.isin(np.arange(len(dataset_names)), to_dataset)
    if not known.any():
        raise ObjectSeekerError(
            f"the detector knows none of the dataset's classes ({_some(dataset_names)}); "
            f"its own are {_some(detector_names)}"
        )
    for array in (to_dataset, known):
        array.setflags(write=False)
    unknown = tuple(name for name, has_match in zip(dataset_names, known, strict=True) if not has_match)
    return ClassMatch(to_dataset, known, unknown, int((to_dataset < 0).sum()))


def _find(name: str, dataset_names: Sequence[str]) -> int:
    keys: tuple[Callable[[str], str], ...] = (str, _normalised, _meaning)
    for key in keys:
        candidates = [label for label, other in enumerate(dataset_names) if key(other) == key(name)]
        if candidates:
            return candidates[0] if len(candidates) == 1 else -1
    return -1


def _normalised(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


MEANINGS = {_normalised(name): _normalised(group[0]) for group in ALIASES for name in group}


def _meaning(name: str) -> str:
    return MEANINGS.get(_normalised(name), _normalised(name))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none"
