"""The falsifier: a patch attack that tries to refute our own certificates.

pipeline        what is attacked, and who judges: the real pipeline on the finished 8-bit image
weakest         where the certificate is weakest
plan            what an attack is asked to do, and what it brings back
whitebox        a torch detector as a differentiable function of patch pixels
objectives      what the gradient follows: hide, plant, relabel
gradient        the white-box attack
search          the black-box attack
falsify         attack objects, judge, compare with certificates
statistics      success rates with confidence intervals, recall between its bounds
artifacts, reproduction    what is left on disk
job             what the command line does
"""

from __future__ import annotations

from objectseeker.attack.artifacts import recheck
from objectseeker.attack.attack_metrics import read_recall, robust_recall
from objectseeker.attack.falsify import JudgedImage, Outcome, falsify
from objectseeker.attack.pipeline import Pipeline, Target
from objectseeker.attack.plan import Budget

__all__ = [
    "Budget",
    "JudgedImage",
    "Outcome",
    "Pipeline",
    "Target",
    "falsify",
    "read_recall",
    "recheck",
    "robust_recall",
]
