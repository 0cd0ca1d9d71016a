"""Matching of a detector's classes to a dataset's, which makes the label map.

A class map pairs names explicitly. Other names match if they are equal, else if they differ only in case, spaces,
underscores and hyphens, else if both are common names of one thing (aeroplane and airplane). The closest kind of match
wins.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.errors import ObjectSeekerError
from objectseeker.text import quote, quote_plain

MAX_LISTED = 20  # unmatched classes in a warning; the suggestion for each takes a comparison with all others
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
    """Dataset labels of a detector's labels.

    Several detector classes may map to one dataset class (both tv and monitor, on VOC); no detector class maps to two.
    """

    dataset_labels: Ints  # for each detector label the dataset label, or -1
    unmatched_dataset: tuple[str, ...]  # dataset classes that cannot be found, so they must not count
    unmatched_detector: tuple[str, ...]  # detector classes that the dataset does not have

    @property
    def warnings(self) -> tuple[str, ...]:
        """At most two sentences for the user; empty if every dataset class is matched."""
        if not self.unmatched_dataset:
            return ()
        unknown = _truncated_list(self.unmatched_dataset, MAX_LISTED)
        lost = f"dataset classes skipped because the detector does not know them: {unknown}"
        if not self.unmatched_detector:
            return (lost,)
        near = _suggestions(self.unmatched_detector, self.unmatched_dataset)
        descriptions = [f"{quote_plain(name)} (nearest is {quote_plain(other)})" for name, other in near.items()]
        descriptions += [quote_plain(name) for name in self.unmatched_detector if name not in near]
        return (
            lost,
            f"detector classes that match none of the dataset: {_truncated_list(descriptions)}; a class map can pair "
            "them",
        )


def match_classes(
    dataset_names: Sequence[str], detector_names: Sequence[str], *, class_map: Mapping[str, str] | None = None
) -> ClassMatch:
    """Match a detector's classes to a dataset's by `class_map`, and those it omits by their names.

    A detector class that two dataset classes match equally well stays unmatched.

    Args:
        dataset_names: Classes of the dataset, by label.
        detector_names: Classes of the detector, by label.
        class_map: Detector name to dataset name, for names that do not match.

    Returns:
        The dataset label of each detector label, and the classes without a match.

    Raises:
        ObjectSeekerError: No class matches, or the class map names a class that does not exist.

    Example:
        >>> match_classes(("car", "person"), ("Lkw", "Person"), class_map={"Lkw": "car"}).dataset_labels.tolist()
        [0, 1]
    """
    pairs = dict(class_map or {})
    for name, other in pairs.items():
        _require(name, detector_names, "detector")
        _require(other, dataset_names, "dataset")
    find = _ClassLookup(dataset_names)
    dataset_labels = np.array([find(pairs.get(name, name)) for name in detector_names], dtype=np.int64)
    dataset_labels.setflags(write=False)
    matched = set(dataset_labels.tolist()) - {-1}
    if not matched:
        raise ObjectSeekerError(
            f"the detector knows none of the dataset's classes ({_truncated_list(dataset_names)}); "
            f"its own are {_truncated_list(detector_names)}; pair them with a class map"
        )
    return ClassMatch(
        dataset_labels,
        unmatched_dataset=tuple(name for label, name in enumerate(dataset_names) if label not in matched),
        unmatched_detector=tuple(
            name for name, label in zip(detector_names, dataset_labels.tolist(), strict=True) if label < 0
        ),
    )


class _ClassLookup:
    """Lookup of the one dataset label that a name matches, or -1."""

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
    hint = f"the nearest is {quote(near)}" if near is not None else f"it has {_truncated_list(names)}"
    raise ObjectSeekerError(f"the class map names {quote(name)}, which the {whose} does not have; {hint}")


def _suggestions(unmatched_detector: Sequence[str], unmatched_dataset: Sequence[str]) -> dict[str, str]:
    """Return the most similar unmatched detector class of the first unmatched dataset classes."""
    pairs = ((_nearest(name, unmatched_detector), name) for name in unmatched_dataset[:MAX_LISTED])
    return {near: name for near, name in pairs if near is not None}


def _nearest(name: str, names: Sequence[str]) -> str | None:
    alike = {_normalized(other): other for other in reversed(names)}
    near = difflib.get_close_matches(_normalized(name), alike)
    return alike[near[0]] if near else None


def _normalized(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


MEANINGS = {_normalized(name): _normalized(group[0]) for group in ALIASES for name in group}


def _meaning(name: str) -> str:
    return MEANINGS.get(_normalized(name), _normalized(name))


def _truncated_list(names: Sequence[str], max_count: int = 5) -> str:
    listed = ", ".join(quote_plain(name) for name in names[:max_count])
    return listed + (f" and {len(names) - max_count} more" if len(names) > max_count else "") if names else "none"
