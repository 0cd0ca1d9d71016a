"""objectseeker: object detection that provably survives adversarial patches."""

from objectseeker.boxes import Detections
from objectseeker.certification import Certificates, certify
from objectseeker.errors import ObjectSeekerError
from objectseeker.masks import MaskSet, halves
from objectseeker.observation import Observation
from objectseeker.pruning import Rule, prune
from objectseeker.seeker import ObjectSeeker
from objectseeker.threats import Patch

__version__ = "0.1.0"

__all__ = [
    "Certificates",
    "Detections",
    "MaskSet",
    "ObjectSeeker",
    "ObjectSeekerError",
    "Observation",
    "Patch",
    "Rule",
    "certify",
    "halves",
    "prune",
]
