"""The figures of a run slice by slice: of one class, of one size, of the images with one tag. The worst is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from objectseeker.core.boxes import Ints
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.threats import PATCH_LOCATIONS, PatchLocation
from objectseeker.errors import ObjectSeekerError
from objectseeker.metrics.defended_images import shares
from objectseeker.metrics.image_tags import BUILT_IN, SIZES, Tags, did_you_mean
from objectseeker.metrics.parallel import OnImage
from objectseeker.metrics.policy_metrics import RunMeasurements, clean_recall_of, fppi_of, measure_run
from objectseeker.metrics.settings import EvaluationSettings, ThreatModel
from objectseeker.text import plain, shown

FEW = 30  # objects: below that a share says little, and no slice is called the worst
MOST_LISTED = 4  # of those

Cut = Callable[[RunMeasurements], RunMeasurements]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRow:
    """One slice. Shares are percentages; what a slice of objects does not have, or one without objects, is None."""

    name: str  # COLUMN=VALUE
    images: int
    objects: int
    clean_recall: float | None  # the mean over its classes
    certified: dict[PatchLocation, float | None]
    vacuous_far: int
    joint_certified_recall: float | None  # of slices of images
    fppi: float | None  # an image; likewise

    @property
    def column(self) -> str:
        return self.name.partition("=")[0]

    @property
    def few(self) -> bool:
        return self.objects < FEW

    def to_row(self) -> dict[str, Any]:
        certified = {f"certified_{where}": share for where, share in self.certified.items()}
        return {
            "slice": self.name,
            "images": self.images,
            "objects": self.objects,
            "clean_recall": self.clean_recall,
            **certified,
            "vacuous_far": self.vacuous_far,
            "joint_certified_recall": self.joint_certified_recall,
            "fppi": self.fppi,
        }


def measured_slices(
    images: Sequence[ObservedImage],
    vocabulary: LabelMap,
    settings: EvaluationSettings,
    tags: Tags,
    asked: Sequence[str],
    *,
    processes: int = 1,
    on_image: OnImage = lambda: None,
) -> list[SliceRow]:
    """The rows of every slice that is asked for (COLUMN or COLUMN=VALUE, class and size among them), in that order.

    Measured is the settings' own rule against their threat. `tags` are those of these very images.
    """
    jointly = [settings.threat] if settings.threat.count == 1 and not all(map(_of_objects, asked)) else []
    require_slices(asked, vocabulary.dataset_names, tags)
    measured = measure_run(
        images,
        vocabulary,
        settings,
        [settings.threat],
        curves=False,
        jointly=jointly,
        processes=processes,
        on_image=on_image,
    )
    return slice_rows(measured, tags, asked, settings.threat)


def slice_rows(measured: RunMeasurements, tags: Tags, asked: Sequence[str], threat: ThreatModel) -> list[SliceRow]:
    """The same of what was measured against this threat already."""
    cut_out = [(name, cut(measured)) for one in dict.fromkeys(asked) for name, cut in cuts(one, measured, tags).items()]
    return [_row(name, part, threat) for name, part in dict(cut_out).items()]


def worst_slices(rows: Sequence[SliceRow]) -> dict[str, SliceRow | None]:
    """Of every column the slice with the lowest certified recall anywhere, among those that do not have few objects.

    None where all of them have few.
    """
    worst: dict[str, SliceRow | None] = {}
    for column in dict.fromkeys(row.column for row in rows):
        enough = [row for row in rows if row.column == column and not row.few]
        worst[column] = min(enough, key=lambda row: (row.certified["anywhere"] or 0.0, -row.objects), default=None)
    return worst


def in_words(rows: Sequence[SliceRow]) -> list[str]:
    """The worst slice of every column, and which ones are too small to be called that."""
    lines = []
    for column, worst in worst_slices(rows).items():
        mine = [row for row in rows if row.column == column]
        few = [f"{plain(row.name)} ({row.objects})" for row in mine if row.few]
        listed = ", ".join(few) if len(few) <= MOST_LISTED else f"{len(few)} of {len(mine)} slices"
        if worst is None:
            lines.append(f"worst {plain(column)}: not said, every slice has fewer than {FEW} objects: {listed}")
            continue
        share = f"{worst.certified['anywhere']:.1f} % of {worst.objects} objects are certified anywhere"
        line = f"worst {plain(column)}: {plain(worst.name)}, {share}"
        lines.append(line + (f"; left out, with fewer than {FEW} objects: {listed}" if few else ""))
    return lines


def cuts(asked: str, measured: RunMeasurements, tags: Tags) -> dict[str, Cut]:
    """How each slice that COLUMN or COLUMN=VALUE stands for is cut out of a run, by its name."""
    column, equals, value = asked.partition("=")
    if column == "class":
        labels = [label_of(value, measured.names)] if equals else np.unique(measured.label).tolist()
        return {f"class={measured.names[n]}": partial(_of_class, label=n) for n in labels}
    if column == "size":
        limits = {name: SIZES[name] for name in ([_size(value)] if equals else SIZES)}
        return {f"size={name}": partial(_of_size, limits=of) for name, of in limits.items()}
    return {name: partial(_of_images, images=images) for name, images in tags.slices(asked).items()}


def _of_class(measured: RunMeasurements, *, label: int) -> RunMeasurements:
    return measured.of_classes([label])


def _of_size(measured: RunMeasurements, *, limits: tuple[float, float]) -> RunMeasurements:
    return measured.of_sizes(*limits)


def _of_images(measured: RunMeasurements, *, images: Ints) -> RunMeasurements:
    return measured.of_images(images)


def require_slices(asked: Sequence[str], names: Sequence[str], tags: Tags) -> None:
    """Refuse a slice that is not there, before anything long begins."""
    for one in asked:
        column, equals, value = one.partition("=")
        if column == "class" and equals:
            label_of(value, names)
        elif column == "size" and equals:
            _size(value)
        elif column not in BUILT_IN:
            tags.slices(one)


def label_of(name: str, names: Sequence[str]) -> int:
    """The label of a class that the run has."""
    if name in names:
        return list(names).index(name)
    instead = did_you_mean(name, names) or f"it has {plain(', '.join(names))}"
    raise ObjectSeekerError(f"the run has no class {shown(name)}: {instead}")


def _size(value: str) -> str:
    if value not in SIZES:
        raise ObjectSeekerError(f"a size is {', '.join(SIZES)}, got {shown(value)}")
    return value


def _of_objects(asked: str) -> bool:
    return asked.partition("=")[0] in BUILT_IN


def _row(name: str, part: RunMeasurements, threat: ThreatModel) -> SliceRow:
    objects, of_objects = len(part.label), _of_objects(name)
    all_images = np.ones((1, len(part.ids)))
    recall = float(clean_recall_of(part).values(all_images)[0]) if objects else None
    remaining = None if of_objects or threat not in part.remaining else int(part.remaining[threat].sum())
    wrong = None if of_objects or not part.ids else float(fppi_of(part).values(all_images)[0])
    return SliceRow(
        name=name,
        images=len(np.unique(part.image)) if of_objects else len(part.ids),
        objects=objects,
        clean_recall=recall,
        certified=shares(part.certified[threat].sum(axis=1), objects),
        vacuous_far=int(part.vacuous[threat][PATCH_LOCATIONS.index("far")].sum()),
        joint_certified_recall=100 * (remaining / objects) if remaining is not None and objects else None,
        fppi=wrong,
    )
