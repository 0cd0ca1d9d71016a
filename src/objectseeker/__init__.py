"""objectseeker: object detection that provably survives adversarial patches."""

from objectseeker.boxes import Detections
from objectseeker.certification import Certificates, certify
from objectseeker.errors import ObjectSeekerError
from objectseeker.iou_variant import IouRule, iou_certify, iou_prune
from objectseeker.masks import MaskPairs, MaskSet, halves, pairs
from objectseeker.observation import Observation
from objectseeker.pruning import Rule, prune
from objectseeker.seeker import ObjectSeeker
from objectseeker.threats import Patch

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
