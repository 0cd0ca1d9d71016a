"""The HTML report: one file, no network."""

from objectseeker.results.report.baseline import Baseline
from objectseeker.results.report.numbers import provenance_of
from objectseeker.results.report.page import write_report

__all__ = ["Baseline", "provenance_of", "write_report"]
