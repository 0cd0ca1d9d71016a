"""Evaluation from stored observations: clean AP, certified recall, sweeps and tuning. No detector runs here.

All APs and recalls are percentages (0 to 100); scores, thresholds, areas and the clean recall asked for are fractions.
"""

from __future__ import annotations

from objectseeker.core.threats import WHERES
from objectseeker.evaluation.scene import Scene
from objectseeker.evaluation.settings import BASE_SCORES, RECOMMENDED, Settings
from objectseeker.evaluation.summary import evaluate
from objectseeker.evaluation.tuning import Choices, Tuning, tune

__all__ = ["BASE_SCORES", "RECOMMENDED", "WHERES", "Choices", "Scene", "Settings", "Tuning", "evaluate", "tune"]
