"""`objectseeker demo`: the built-in detector, defended and certified, on the bundled images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from objectseeker import detectors
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, area, iou
from objectseeker.core.label_map import LabelMap
from objectseeker.core.masks import Image
from objectseeker.core.observation import ObservedImage
from objectseeker.core.seeker import DefendedImage, ObjectSeeker
from objectseeker.core.threats import Patch, PatchLocation
from objectseeker.defense import Defense
from objectseeker.demo.samples import Sample, samples
from objectseeker.detectors.network.class_names import VOC_20
from objectseeker.files.images import load_image
from objectseeker.inference.drawing import CERTIFIED, ORANGE, VULNERABLE, Layer, LegendEntry, annotate, with_legend
from objectseeker.metrics import EvaluationSettings, ThreatModel
from objectseeker.report import ReportSource, write_page

LOCATIONS: tuple[PatchLocation, ...] = ("far", "close", "over")
MATCH_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """An image with detections and certificates for each of its objects, without crowds."""

    sample: Sample
    defended: DefendedImage
    label: Ints
    area_fraction: Floats  # of the image
    found_undefended: Bools
    found_defended: Bools
    certified: Bools  # (LOCATIONS, objects)
    vacuous_far: Bools  # there is no far position
    largest_square: Ints
    annotated: PIL.Image.Image

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per object, as `objectseeker demo --json` prints it."""
        height, width = self.defended.image.shape[:2]
        for n in range(len(self.label)):
            side = int(self.largest_square[n])
            yield {
                "image": self.sample.name,
                "object": VOC_20[self.label[n]],
                "area_fraction": float(self.area_fraction[n]),
                "found_undefended": bool(self.found_undefended[n]),
                "found_defended": bool(self.found_defended[n]),
                "certified": {location: bool(self.certified[p, n]) for p, location in enumerate(LOCATIONS)},
                "vacuous_far": bool(self.vacuous_far[n]),
                "largest_certified_square": side,
                "largest_certified_area": side * side / (width * height),
            }


def run(defense: Defense | None = None, *, patch_area: float = 0.01) -> Iterator[Verdicts]:
    """Evaluate the bundled images under a defense of the built-in detector, by default its own."""
    seeker = (defense or Defense.for_detector("builtin")).build()
    for sample in samples():
        yield evaluate_sample(seeker, sample, patch_area)


def evaluate_sample(seeker: ObjectSeeker, sample: Sample, patch_area: float) -> Verdicts:
    """Detect, certify against a square patch of `patch_area`, and draw the verdicts."""
    image = load_image(sample.path)
    defended = seeker.defend(image)
    objects = sample.ground_truth[~sample.crowd]
    height, width = image.shape[:2]
    patches = [Patch(patch_area, 1.0, location) for location in LOCATIONS]
    certificates = seeker.certify(defended.observation, objects, patches)
    undefended, recovered = _matched(objects, defended.base), _matched(objects, defended.recovered)
    return Verdicts(
        sample=sample,
        defended=defended,
        label=objects.label,
        area_fraction=area(objects.xyxy) / (width * height),
        found_undefended=undefended,
        found_defended=undefended | recovered,
        certified=certificates.certified,
        vacuous_far=certificates.vacuous[LOCATIONS.index("far")],
        largest_square=certificates.largest_square,
        annotated=draw_verdicts(image, objects, certificates.certified),
    )


def draw_verdicts(image: Image, objects: Detections, certified: Bools) -> PIL.Image.Image:
    """Draw objects in the color of their certificate: over green, only away from it orange, none red.

    Objects without a certificate are often many and tiny, so they have no caption. A legend explains the colors.
    """
    over = certified[LOCATIONS.index("over")]
    away = certified.any(axis=0) & ~over
    layers, keys = list[Layer](), list[LegendEntry]()
    for selected, color, dashed, meaning in (
        (~over & ~away, VULNERABLE, True, "not certified"),
        (away, ORANGE, False, "certified away from it"),
        (over, CERTIFIED, False, "certified, even under the patch"),
    ):
        captions = [VOC_20[c] for c in objects.label[selected]] if color != VULNERABLE else []
        layers.append(Layer(objects.xyxy[selected], captions, color=color, dashed=dashed))
        if selected.any():
            keys.insert(0, LegendEntry(f"{meaning} ({int(selected.sum())})", color, dashed=dashed))
    return with_legend(annotate(image, layers), keys)


def _matched(objects: Detections, boxes: Detections) -> Bools:
    """Return whether a box of the same label overlaps each object with an IoU of at least `MATCH_IOU`."""
    match = (iou(objects.xyxy, boxes.xyxy) >= MATCH_IOU) & (objects.label[:, None] == boxes.label[None])
    return np.asarray(match.any(axis=1))


def save(out: Path, verdicts: Verdicts) -> Path:
    """Write the annotated image; return its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{verdicts.sample.name}.jpg"
    verdicts.annotated.save(path, quality=90)
    return path


def save_report(path: Path, results: Sequence[Verdicts], defense: Defense, *, patch_area: float) -> None:
    """Write the interactive report on the images, under the defense of their verdicts."""
    images = [
        ObservedImage(
            v.sample.name, v.sample.path, v.defended.observation, v.sample.ground_truth, v.sample.crowd, v.sample.crowd
        )
        for v in results
    ]
    bound = defense.with_fingerprint(detectors.load_detector(defense.detector, **defense.options).fingerprint)
    source = ReportSource(
        "objectseeker demo",
        images,
        LabelMap.from_names(VOC_20),
        EvaluationSettings(
            rule=defense.rule, threshold_schedule=defense.resolved_schedule, threat=ThreatModel(area=patch_area)
        ),
        defense=bound,
        provenance={
            "dataset": f"{len(results)} images that come with objectseeker (COCO val2017, CC BY 2.0)",
        },
        shows_ap=False,
        caveats=[
            f"A demonstration: {len(results)} images are too few to measure anything. For metrics, run objectseeker "
            "observe on a dataset, and then evaluate and report."
        ],
    )
    write_page(source, path)
