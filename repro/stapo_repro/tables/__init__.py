"""The main table as one value, made from records alone; `render` writes it in every form.

model        what a value, a row, a comparison, a section and the table are
scores       one score a method, benchmark and setting from its records
values       one value from a score: mean, interval, against the paper's; best marks
comparisons  paired differences of methods, Holm's correction; the paper's own gains beside its design's noise
build        all of it, with its footnotes
"""

from stapo_repro.tables.build import build
from stapo_repro.tables.comparisons import paper_gains
from stapo_repro.tables.model import AgainstPaper, Difference, Gain, MethodRow, Section, Table, Value

__all__ = [
    "AgainstPaper",
    "Difference",
    "Gain",
    "MethodRow",
    "Section",
    "Table",
    "Value",
    "build",
    "paper_gains",
]
