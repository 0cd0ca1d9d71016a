"""Evaluation from stored observations: clean AP, certified recall, sweeps and tuning.

Boxes are pruned and certified in the detector's labels and counted in the dataset's. All APs and recalls are
percentages (0 to 100); scores, thresholds, areas and the requested clean recall are fractions.
"""

from __future__ import annotations

from objectseeker.core.threats import PATCH_LOCATIONS, ThreatModel
from objectseeker.metrics.ap_search import SearchSpec, tune_images
from objectseeker.metrics.defended_images import DefendedOutcome
from objectseeker.metrics.evaluation import Evaluation, evaluate, evaluate_images
from objectseeker.metrics.image_set import ImageSet
from objectseeker.metrics.object_certificates import ObjectCertificate, certify_images
from objectseeker.metrics.search import SearchSpace, TunedRule, Tuning
from objectseeker.metrics.settings import BASE_THRESHOLDS, EvaluationSettings
from objectseeker.metrics.tuning import tune

__all__ = [
    "BASE_THRESHOLDS",
    "PATCH_LOCATIONS",
    "DefendedOutcome",
    "Evaluation",
    "EvaluationSettings",
    "ImageSet",
    "ObjectCertificate",
    "SearchSpace",
    "SearchSpec",
    "ThreatModel",
    "TunedRule",
    "Tuning",
    "certify_images",
    "evaluate",
    "evaluate_images",
    "tune",
    "tune_images",
]
