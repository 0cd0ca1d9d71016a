"""`objectseeker demo`: the built-in detector, defended and certified, on the bundled images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from objectseeker import detectors
from objectseeker.core.boxes import Bools, Detections, area, iou
from objectseeker.core.certification import Certificates
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.core.seeker import DefendedImage
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
    """A defended image, its objects without crowds, and their certificates at the `LOCATIONS`."""

    sample: Sample
    defended: DefendedImage
    objects: Detections
    certificates: Certificates

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per object, as `objectseeker demo --json` prints it."""
        height, width = self.defended.image.shape[:2]
        base, recovered = (_matched(self.objects, of) for of in (self.defended.base, self.defended.recovered))
        certified, vacuous = self.certificates.certified, self.certificates.vacuous
        for n, label in enumerate(self.objects.label.tolist()):
            side = int(self.certificates.largest_square[n])
            yield {
                "image": self.sample.name,
                "object": VOC_20[label],
                "area_fraction": float(area(self.objects.xyxy)[n] / (width * height)),
                "found_undefended": bool(base[n]),
                "found_defended": bool(base[n] or recovered[n]),
                "certified": {location: bool(certified[p, n]) for p, location in enumerate(LOCATIONS)},
                "vacuous_far": bool(vacuous[LOCATIONS.index("far"), n]),
                "largest_certified_square": side,
                "largest_certified_area": side * side / (width * height),
            }

    def draw(self) -> PIL.Image.Image:
        """Draw objects in the color of their certificate: over green, only away from it orange, none red.

        Objects without a certificate are often many and tiny, so they have no caption. A legend explains the colors.
        """
        over = self.certificates.certified[LOCATIONS.index("over")]
        away = self.certificates.certified.any(axis=0) & ~over
        layers, keys = list[Layer](), list[LegendEntry]()
        for selected, color, meaning in (
            (~over & ~away, VULNERABLE, "not certified"),
            (away, ORANGE, "certified away from it"),
            (over, CERTIFIED, "certified, even under the patch"),
        ):
            dashed = color == VULNERABLE
            captions = [] if dashed else [VOC_20[label] for label in self.objects.label[selected]]
            layers.append(Layer(self.objects.xyxy[selected], captions, color=color, dashed=dashed))
            if selected.any():
                keys.insert(0, LegendEntry(f"{meaning} ({int(selected.sum())})", color, dashed=dashed))
        return with_legend(annotate(self.defended.image, layers), keys)


def run(defense: Defense | None = None, *, patch_area: float = 0.01) -> Iterator[Verdicts]:
    """Defend the bundled images and certify their objects, by default with the detector's own defense."""
    seeker = (defense or Defense.for_detector("builtin")).build()
    patches = [Patch(patch_area, 1.0, location) for location in LOCATIONS]
    for sample in samples():
        defended = seeker.defend(load_image(sample.path))
        objects = sample.ground_truth[~sample.crowd]
        yield Verdicts(sample, defended, objects, seeker.certify(defended.observation, objects, patches))


def _matched(objects: Detections, boxes: Detections) -> Bools:
    """Return whether a box of the same label overlaps each object with an IoU of at least `MATCH_IOU`."""
    match = (iou(objects.xyxy, boxes.xyxy) >= MATCH_IOU) & (objects.label[:, None] == boxes.label[None])
    return np.asarray(match.any(axis=1))


def save(out: Path, verdicts: Verdicts) -> Path:
    """Write the annotated image; return its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{verdicts.sample.name}.jpg"
    verdicts.draw().save(path, quality=90)
    return path


def save_report(path: Path, results: Sequence[Verdicts], defense: Defense, *, patch_area: float) -> None:
    """Write the interactive report on the images, under the defense of their verdicts."""
    images = [
        ObservedImage(
            v.sample.name, v.sample.path, v.defended.observation, v.sample.ground_truth, v.sample.crowd, v.sample.crowd
        )
        for v in results
    ]
    threat = ThreatModel(area=patch_area)
    source = ReportSource(
        "objectseeker demo",
        images,
        LabelMap.from_names(VOC_20),
        EvaluationSettings(rule=defense.rule, threshold_schedule=defense.resolved_schedule, threat=threat),
        defense=defense.with_fingerprint(detectors.load_detector(defense.detector, **defense.options).fingerprint),
        provenance={"dataset": f"{len(results)} images that come with objectseeker (COCO val2017, CC BY 2.0)"},
        shows_ap=False,
        caveats=[
            f"A demonstration: {len(results)} images are too few to measure anything. For metrics, run objectseeker "
            "observe on a dataset, and then evaluate and report."
        ],
    )
    write_page(source, path)
