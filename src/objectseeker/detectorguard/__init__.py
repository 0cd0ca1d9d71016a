"""DetectorGuard (Xiang and Mittal, CCS 2021), a certified defence that raises an alert: docs/detectorguard.md."""
