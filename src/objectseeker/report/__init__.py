"""The HTML report of a run and the paper's figures: files that load nothing from any network."""

from objectseeker.report.page import Report, write_page, write_report
from objectseeker.report.report_data import Baseline, ReportSource

__all__ = ["Baseline", "Report", "ReportSource", "write_page", "write_report"]
