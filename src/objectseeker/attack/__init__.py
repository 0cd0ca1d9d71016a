"""Adaptive patch attacks, white-box and black-box, that try to refute our own certificates.

job           the call, its goals and its result
setup         the attacked defense, and the choice of objects
pipeline      the judge, budgets, targets and tasks
placement     positions where the certificate is weakest
whitebox      a torch detector as a differentiable function of patch pixels
losses        objectives of the gradient: hide, plant, relabel, fabricate, degrade
optimizers    sign gradients and random search
hiding        attacks that hide objects
fabrication   attacks that fabricate boxes or flip labels
universal     one patch for a dataset: corner, far, random or carried; the attacked dataset
metrics       success rates with confidence intervals, effects, recall between its bounds
artifacts     files: images, loss curves, reproductions of broken guarantees
"""

from __future__ import annotations

from objectseeker.attack.artifacts import recheck
from objectseeker.attack.job import AttackResult, attack
from objectseeker.attack.metrics import read_recall
from objectseeker.attack.pipeline import AttackBudget, Pipeline, Target
from objectseeker.attack.universal import attack_dataset

__all__ = [
    "AttackBudget",
    "AttackResult",
    "Pipeline",
    "Target",
    "attack",
    "attack_dataset",
    "read_recall",
    "recheck",
]
