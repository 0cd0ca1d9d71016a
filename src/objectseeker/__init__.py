"""objectseeker: object detection that provably survives adversarial patches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from objectseeker.core.boxes import Detections
from objectseeker.core.certification import Certificates
from objectseeker.core.observation import Observation
from objectseeker.core.recipes import Bands, Halves, Pairs, Windows
from objectseeker.core.rules import IouRule, Rule
from objectseeker.core.seeker import ObjectSeeker
from objectseeker.core.threats import Patch
from objectseeker.datasets import open_dataset
from objectseeker.defense import Defense
from objectseeker.errors import ObjectSeekerError
from objectseeker.files.images import load_image
from objectseeker.gate import gate
from objectseeker.inference import detect, draw

if TYPE_CHECKING:
    from objectseeker.metrics.comparison import compare
    from objectseeker.metrics.evaluation import evaluate
    from objectseeker.metrics.tuning import tune
    from objectseeker.runs.observe import observe
    from objectseeker.runs.run import Run, open_run

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
    "Run",
    "Windows",
    "compare",
    "detect",
    "draw",
    "evaluate",
    "gate",
    "load_image",
    "observe",
    "open_dataset",
    "open_run",
    "tune",
]

# Imported when they are first used: they need pyarrow, which detecting does not.
_LAZY = {
    "Run": "runs.run",
    "compare": "metrics.comparison",
    "evaluate": "metrics.evaluation",
    "observe": "runs.observe",
    "open_run": "runs.run",
    "tune": "metrics.tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'objectseeker' has no attribute {name!r}")
    return getattr(import_module(f"objectseeker.{_LAZY[name]}"), name)
