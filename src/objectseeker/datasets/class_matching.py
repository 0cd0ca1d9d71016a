"""Which of a detector's classes is which of a dataset's.

A class map pairs names by hand. Of the rest, names match if they are equal, else if they are equal but for case,
blanks, underscores and hyphens, else if both are usual names of one thing (aeroplane and airplane). The closest kind
of match wins.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Bools, Ints
from objectseeker.errors import ObjectSeekerError
from objectseeker.text import plain, shown

LONGEST_LIST = 20  # unknown classes that are named; a near miss of each takes a comparison with all others
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
    spare: tuple[str, ...]  # the detector classes that the dataset has none for

    @property
    def unused(self) -> int:
        return len(self.spare)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user, two at most; empty if every dataset class is known."""
        if not self.unknown:
            return ()
        unknown = _truncated_list(self.unknown, LONGEST_LIST)
        lost = f"dataset classes skipped because the detector does not know them: {unknown}"
        if not self.spare:
            return (lost,)
        near = _suggestions(self.spare, self.unknown)
        told = [f"{plain(name)} (nearest is {plain(other)})" for name, other in near.items()]
        told += [plain(name) for name in self.spare if name not in near]
        return (
            lost,
            f"detector classes that match none of the dataset: {_truncated_list(told)}; "
            "a class map can pair them by hand",
        )


def match_classes(
    dataset_names: Sequence[str], detector_names: Sequence[str], *, class_map: Mapping[str, str] | None = None
) -> ClassMatch:
    """Match by `class_map` (detector name to dataset name), and what it does not name, by name.

    A detector class that two dataset classes answer to equally well is left unmatched. No match at all is an error: it
    means the wrong detector or wrong names, and every figure would be empty.
    """
    pairs = dict(class_map or {})
    for name, other in pairs.items():
        _require(name, detector_names, "detector")
        _require(other, dataset_names, "dataset")
    find = _ClassLookup(dataset_names)
    to_dataset = np.array([find(pairs.get(name, name)) for name in detector_names], dtype=np.int64)
    known = np.isin(np.arange(len(dataset_names)), to_dataset)
    if not known.any():
        raise ObjectSeekerError(
            f"the detector knows none of the dataset's classes ({_truncated_list(dataset_names)}); "
            f"its own are {_truncated_list(detector_names)}; a class map can pair them by hand"
        )
    for array in (to_dataset, known):
        array.setflags(write=False)
    unknown = tuple(name for name, has_match in zip(dataset_names, known, strict=True) if not has_match)
    spare = tuple(name for name, label in zip(detector_names, to_dataset, strict=True) if label < 0)
    return ClassMatch(to_dataset, known, unknown, spare)


class _ClassLookup:
    """The label of the one dataset class that a name stands for, or -1."""

    def __init__(self, dataset_names: Sequence[str]) -> None:
        keys: tuple[Callable[[str], str], ...] = (str, _normalized, _meaning)
        self._labels: list[tuple[Callable[[str], str], dict[str, list[int]]]] = []
        for key in keys:
            labels: dict[str, list[int]] = {}
            for label, name in enumerate(dataset_names):
                labels.setdefault(key(name), []).append(label)
            self._labels.append((key, labels))

    def __call__(self, name: str) -> int:
        for key, labels in self._labels:
            if candidates := labels.get(key(name)):
                return candidates[0] if len(candidates) == 1 else -1
        return -1


def _require(name: str, names: Sequence[str], whose: str) -> None:
    if name in names:
        return
    near = _nearest(name, names)
    hint = f"the nearest is {shown(near)}" if near is not None else f"it has {_truncated_list(names)}"
    raise ObjectSeekerError(f"the class map names {shown(name)}, which is no class of the {whose}; {hint}")


def _suggestions(spare: Sequence[str], unknown: Sequence[str]) -> dict[str, str]:
    """For the first few unknown dataset classes the spare detector class most like each: detector to dataset."""
    pairs = ((_nearest(name, spare), name) for name in unknown[:LONGEST_LIST])
    return {near: name for near, name in pairs if near is not None}


def _nearest(name: str, names: Sequence[str]) -> str | None:
    alike = {_normalized(other): other for other in reversed(names)}
    near = difflib.get_close_matches(_normalized(name), alike, n=1)
    return alike[near[0]] if near else None


def _normalized(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


MEANINGS = {_normalized(name): _normalized(group[0]) for group in ALIASES for name in group}


def _meaning(name: str) -> str:
    return MEANINGS.get(_normalized(name), _normalized(name))


def _truncated_list(names: Sequence[str], most: int = 5) -> str:
    listed = ", ".join(plain(name) for name in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
