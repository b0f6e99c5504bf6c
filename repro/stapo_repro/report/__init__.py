"""The report: one HTML page of everything that the records say, self-contained and without a network.

text       any text made fit to be shown, anchors
pictures   figures as inline SVG without styles of their own
grids      the table's grids with what a reader sorts by
cells      a cell's problems: verdicts, means
responses  single responses of run folders, a bounded number of them
runs       provenance of every run
state      how far the reproduction is, and what each missing cell would take
build      all of it as one value
page       the value as HTML
"""

from stapo_repro.report.build import Report, build
from stapo_repro.report.page import to_html

__all__ = ["Report", "build", "to_html"]
