"""Training for certification: half-plane masks as an augmentation for any training pipeline.

A detector that never saw half an image sees things in it, and the defence pays for that with precision. Trained on
images of which one side of a random line is removed, it does not.

`masking` is the augmentation itself, on one image as an array, a tensor or a picture; `masked_batches` is the same for
whole batches on a device; the other modules fit it into the pipelines people use. No framework is imported before it is
needed.
"""

from __future__ import annotations

from objectseeker.training.albumentations_transform import AlbumentationsMask
from objectseeker.training.masked_batches import draw_halves, kept_parts, mask_and_move, visible_targets
from objectseeker.training.masked_datasets import MaskedDataset, MaskedDetection
from objectseeker.training.masking import HalfMask, Masked, apply_half, draw_half, mask_half
from objectseeker.training.torchvision_transform import TorchvisionMask

__all__ = [
    "AlbumentationsMask",
    "HalfMask",
    "Masked",
    "MaskedDataset",
    "MaskedDetection",
    "TorchvisionMask",
    "apply_half",
    "draw_half",
    "draw_halves",
    "kept_parts",
    "mask_and_move",
    "mask_half",
    "visible_targets",
]
