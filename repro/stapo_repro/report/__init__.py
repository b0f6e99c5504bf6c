"""The report: one HTML page of everything that the records say, self-contained and without a network.

state      how far the reproduction is, and what each missing cell would take
cells      a cell's problems: verdicts, means
responses  single responses of run folders, a bounded number of them
runs       provenance of every run
page       all of it as HTML
"""

from stapo_repro.report.page import ReportedExperiment, ReportedTestbed, to_html

__all__ = ["ReportedExperiment", "ReportedTestbed", "to_html"]
