"""The HTML report: one file, no network."""

from objectseeker.report.page import Picture, write_page

__all__ = ["Picture", "write_page"]
