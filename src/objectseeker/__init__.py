"""objectseeker: object detection that provably survives adversarial patches."""

from objectseeker.core.boxes import Detections
from objectseeker.core.certification import Certificates, certify
from objectseeker.core.iou_variant import IouRule, iou_certify, iou_prune
from objectseeker.core.masks import MaskPairs, MaskSet, halves, pairs
from objectseeker.core.observation import Observation
from objectseeker.core.pruning import Rule, prune
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.errors import ObjectSeekerError

__version__ = "0.1.0"

__all__ = [
    "Certificates",
    "Detections",
    "IouRule",
    "MaskPairs",
    "MaskSet",
    "ObjectSeeker",
    "ObjectSeekerError",
    "Observation",
    "Patch",
    "Rule",
    "certify",
    "halves",
    "iou_certify",
    "iou_prune",
    "pairs",
    "prune",
]
