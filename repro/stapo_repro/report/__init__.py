"""The report: one HTML page of everything that the records say, self-contained and without a network.

state      how far the reproduction is, and what each missing cell would take
cells      a cell's problems: verdicts, means
responses  single responses of run folders, a bounded number of them
runs       provenance of every run
build      all of it as one value
page       the value as HTML
"""

from stapo_repro.report.build import ReportedExperiment, ReportPage, build
from stapo_repro.report.page import to_html

__all__ = ["ReportPage", "ReportedExperiment", "build", "to_html"]
