"""Training for certification: the masks of the defense as an augmentation for any training pipeline.

A detector that never saw half an image sees things in it, and the defense pays for that with precision. Trained on
images of which one side of a random line is removed, or a band between two lines, it does not.

`strips` draws masks; `masking` is the augmentation itself, on one image as an array, a tensor or a picture;
`masked_batches` is the same for whole batches on a device; the other modules fit it into the pipelines people use. No
framework is imported before it is needed.
"""

from __future__ import annotations

from objectseeker.training.albumentations_transform import AlbumentationsMask
from objectseeker.training.masked_batches import draw_strips, kept_parts, mask_and_move, visible_targets
from objectseeker.training.masked_datasets import MaskedDataset, MaskedDetection
from objectseeker.training.masking import Masked, Strip, apply_strip, draw_strip, mask_strip
from objectseeker.training.torchvision_transform import TorchvisionMask

__all__ = [
    "AlbumentationsMask",
    "Masked",
    "MaskedDataset",
    "MaskedDetection",
    "Strip",
    "TorchvisionMask",
    "apply_strip",
    "draw_strip",
    "draw_strips",
    "kept_parts",
    "mask_and_move",
    "mask_strip",
    "visible_targets",
]
