"""What was found in an image, as `detect` writes it and as tensors; and what the model says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectseeker.core.threats import PATCH_LOCATIONS
from objectseeker.defense import Defense
from objectseeker.inference.image_sources import Categories, Source
from objectseeker.inference.images import ABOUT, CERTIFICATE, Found, box_rows, coco_result
from objectseeker.metrics.settings import ThreatModel
from objectseeker.serve.protocol import CERTIFIED_OUTPUTS, INPUT, OUTPUTS, Array

SENT = Source(1, "image", None)  # type: ignore[arg-type]  # an image that is sent has no place, and no name to trust


@dataclass(frozen=True, slots=True)
class Model:
    """What is served: a defense that is bound to its detector, the class names, and what is certified against."""

    name: str
    defense: Defense
    classes: tuple[str, ...]
    threat: ThreatModel

    @property
    def version(self) -> str:
        """The defense is what makes one model differ from another: its checksum is the version."""
        return self.defense.sha256

    def metadata(self) -> dict[str, Any]:
        """As the protocol has it; under `parameters`, which defense answers and what its certificates are about."""
        outputs = [
            {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
            for output in (*OUTPUTS, *CERTIFIED_OUTPUTS)
        ]
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "objectseeker",
            "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, -1, 3]}],
            "outputs": outputs,
            "parameters": {
                "defense": self.defense.described(),
                "classes": list(self.classes),
                "certified": {"where": list(PATCH_LOCATIONS)} | self.threat.described(self.defense.rule),
                "about": ABOUT,
            },
        }

    def document(self, found: Found) -> dict[str, Any]:
        """The answer of /detect: rows of detections.json, what alerts.json says, and certificates.json if certified."""
        categories = Categories.of_detector(self.classes)
        sha256 = self.defense.sha256
        rows = [coco_result(row | {"defense": sha256}) for row in box_rows(SENT, found, categories)]
        answer: dict[str, Any] = {
            "width": found.size[0],
            "height": found.size[1],
            "detections": rows,
            "alert": found.recovered > 0,
            "found_by_masks_only": found.recovered,
            "defense": sha256,
        }
        if found.certificates is not None:
            counts = {name: sum(row[name] for row in rows) for name in CERTIFICATE[:-1]}
            about = {"about": ABOUT} | self.threat.described(self.defense.rule) | {"boxes": len(rows)} | counts
            about["defense"] = sha256
            answer["certificates"] = about
        return answer


def tensors_of(found: Found) -> Mapping[str, Array]:
    """Every output that there is, base boxes first."""
    boxes = found.boxes
    tensors: dict[str, Array] = {
        "boxes": boxes.xyxy,
        "scores": boxes.score,
        "labels": boxes.label,
        "found_by_masks": np.arange(len(boxes)) >= found.base,
    }
    if found.certificates is not None:
        table = np.array(found.certificates, np.int64).reshape(len(boxes), len(CERTIFICATE))
        tensors["certified"] = table[:, : len(PATCH_LOCATIONS)] != 0
        tensors["vacuous_far"] = table[:, CERTIFICATE.index("vacuous_far")] != 0
        tensors["largest_square"] = table[:, CERTIFICATE.index("largest_square")]
    return tensors
