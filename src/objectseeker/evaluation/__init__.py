"""Evaluation from stored observations: clean AP, certified recall, sweeps and tuning. No detector runs here.

Boxes are pruned and certified in the detector's labels and counted in the data set's. All APs and recalls are
percentages (0 to 100); scores, thresholds, areas and the clean recall asked for are fractions.
"""

from __future__ import annotations

from objectseeker.core.threats import WHERES
from objectseeker.evaluation.object_rows import ObjectRow, certify_images
from objectseeker.evaluation.outcomes import DefendedOutcome
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import BASE_SCORES, Settings, Threat
from objectseeker.evaluation.summary import Evaluation, evaluate
from objectseeker.evaluation.tuning import Choices, Search, Tuning, tune

__all__ = [
    "BASE_SCORES",
    "WHERES",
    "Choices",
    "DefendedOutcome",
    "Evaluation",
    "ObjectRow",
    "Scene",
    "Search",
    "Settings",
    "Threat",
    "Tuning",
    "certify_images",
    "evaluate",
    "tune",
]
