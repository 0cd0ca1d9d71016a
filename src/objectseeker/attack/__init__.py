"""Adaptive patch attacks, white-box and black-box, that try to refute our own certificates.

job           the call, its result, the choice of objects and the evaluation of patches
pipeline      the attacked system, its judge, budgets and tasks
placement     positions where the certificate is weakest
whitebox      a torch detector as a differentiable function of patch pixels
losses        objectives of the gradient: hide, plant, relabel
optimizers    the white-box and the black-box attack
fabrication   attacks that fabricate boxes or flip labels
universal     one patch for a dataset: corner, far, random or carried; the attacked dataset
metrics       success rates with confidence intervals, effects, recall between its bounds
artifacts     files: images, loss curves, reproductions of broken guarantees
"""

from __future__ import annotations

from objectseeker.attack.artifacts import recheck
from objectseeker.attack.fabrication import FabricationResult, fabricate
from objectseeker.attack.job import AttackResult, attack
from objectseeker.attack.metrics import read_recall
from objectseeker.attack.pipeline import AttackBudget, Pipeline, Target
from objectseeker.attack.universal import attack_dataset

__all__ = [
    "AttackBudget",
    "AttackResult",
    "FabricationResult",
    "Pipeline",
    "Target",
    "attack",
    "attack_dataset",
    "fabricate",
    "read_recall",
    "recheck",
]
