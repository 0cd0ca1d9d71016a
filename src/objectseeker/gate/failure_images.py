"""Pictures of what speaks against a requirement: objects that are missed or not certified, images that are flagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import PIL.Image

from objectseeker.core.iou_rule import AnyRule
from objectseeker.core.label_map import LabelMap
from objectseeker.core.observation import ObservedImage
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.inference.drawing import BASE, VULNERABLE, Key, Layer, annotate, captions, draw, with_legend
from objectseeker.metrics.gate import Gate, Instance
from objectseeker.report.thumbnails import photo_of_pixels
from objectseeker.text import escape_invisible

Pictures = Mapping[Instance, bytes | str]  # a JPEG file, or a word on why there is none


def pictures_of(
    gate: Gate, images: Sequence[ObservedImage], vocabulary: LabelMap, rule: AnyRule
) -> dict[Instance, bytes | str]:
    """A picture for every instance of every requirement that does not pass, and of those that do."""
    wanted: dict[str, list[Instance]] = {}
    for judgment in gate.judgments:
        for instance in judgment.instances:
            wanted.setdefault(instance.image, []).append(instance)
    pictures: dict[Instance, bytes | str] = {}
    for image in images if wanted else ():
        for instance in wanted.pop(image.id, ()):
            pictures[instance] = _picture(image, instance, vocabulary, rule)
        if not wanted:
            break
    return pictures


def _picture(image: ObservedImage, instance: Instance, vocabulary: LabelMap, rule: AnyRule) -> bytes | str:
    try:
        pixels = load_image(image.path)
    except ObjectSeekerError as error:
        return str(error)
    if pixels.shape[1::-1] != (image.observation.width, image.observation.height):
        return f"{image.path} is no longer the image that was observed"
    base = image.observation.base.at_least(rule.base_threshold)
    boxes, names = rule.prune(image.observation), vocabulary.detector_names
    picture: PIL.Image.Image
    if instance.box is None:
        picture = draw(pixels, base, names, recovered=boxes[len(base) :])
    else:
        missed = Layer(np.array([instance.box]), [str(escape_invisible(instance.class_name))], color=VULNERABLE)
        layers = [Layer(boxes.xyxy, captions(boxes, names), color=BASE, width=0.5), missed]
        keys = [Key("the object", VULNERABLE), Key("output without an attack", BASE)]
        picture = with_legend(annotate(pixels, layers), keys)
    return photo_of_pixels(np.asarray(picture)).view
