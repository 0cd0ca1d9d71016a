"""DetectorGuard (Xiang and Mittal, CCS 2021), a certified defense that raises an alert: docs/detectorguard.md."""
