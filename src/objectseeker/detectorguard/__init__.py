"""DetectorGuard (Xiang and Mittal, CCS 2021), prior work, compared with ObjectSeeker.

objectness       the objectness map, its votes and alerts
features         the deployed guard, its network, and features stored in a run
certification    certificates, in our threat model and in the published one
comparison       AP, false alerts and certified recall; the call that compares, and its table
"""

from __future__ import annotations

from objectseeker.detectorguard.comparison import DetectorGuardComparison, compare_with_detectorguard
from objectseeker.detectorguard.features import DetectorGuard, ObjectnessFeatures

__all__ = ["DetectorGuard", "DetectorGuardComparison", "ObjectnessFeatures", "compare_with_detectorguard"]
