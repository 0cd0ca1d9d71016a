"""The HTML report: one file, no network."""

from objectseeker.report.detectorguard_section import Baseline
from objectseeker.report.page import write_report
from objectseeker.report.report_data import provenance_of

__all__ = ["Baseline", "provenance_of", "write_report"]
