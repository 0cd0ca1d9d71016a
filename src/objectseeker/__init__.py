"""objectseeker: object detection that provably survives adversarial patches."""

from objectseeker.core.boxes import Detections
from objectseeker.core.certification import Certificates
from objectseeker.core.iou_rule import IouRule
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import Bands, Halves, Pairs, halves
from objectseeker.core.rule import Rule
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.datasets import open_dataset
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.gate import gate

__version__ = "0.1.0"

__all__ = [
    "Bands",
    "Certificates",
    "Defense",
    "Detections",
    "Halves",
    "IouRule",
    "ObjectSeeker",
    "ObjectSeekerError",
    "Observation",
    "Pairs",
    "Patch",
    "Rule",
    "gate",
    "halves",
    "load_image",
    "open_dataset",
]
