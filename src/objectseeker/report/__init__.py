"""The HTML report: one file, no network."""

from objectseeker.report.numbers import provenance_of
from objectseeker.report.page import write_report

__all__ = ["provenance_of", "write_report"]
