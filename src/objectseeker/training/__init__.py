"""Training for certification: the masks of the defense as an augmentation for any training pipeline.

A detector that never saw half an image reports false positives on one, which costs the defense precision. Training on
images without one side of a random line, or without a band between two lines, prevents that.

masking     the augmentation, on an image as an array, a tensor or a Pillow image
batches     the same on whole batches on a device
transforms  the same for torchvision, albumentations, PyTorch datasets and transformers

No framework is imported before it is needed.
"""

from __future__ import annotations

from objectseeker.training.batches import draw_strips, kept_parts, mask_and_move, visible_targets
from objectseeker.training.masking import Masked, Masking, Strip, apply_strip, draw_strip, mask_strip
from objectseeker.training.transforms import AlbumentationsMask, MaskedDataset, MaskedDetectionDataset, TorchvisionMask

__all__ = [
    "AlbumentationsMask",
    "Masked",
    "MaskedDataset",
    "MaskedDetectionDataset",
    "Masking",
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
