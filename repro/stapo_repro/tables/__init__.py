"""The main table as one value, made from records alone; `render` writes it in every form.

model        what a value, a row, a comparison, a section and the table are
rounding     percent and printed digits
scores       one score a method, benchmark and setting from its records
values       one value from a score: mean, interval, against the paper's; best marks
differences  paired differences of methods, Holm's correction over the table
gains        the paper's own gains beside what its design can tell from noise
notes        footnotes
build        all of it
"""

from stapo_repro.tables.build import build
from stapo_repro.tables.gains import Gain, paper_gains
from stapo_repro.tables.model import AgainstPaper, Difference, MethodRow, Section, Table, Value
from stapo_repro.tables.rounding import p_shown, percent, shown, signed

__all__ = [
    "AgainstPaper",
    "Difference",
    "Gain",
    "MethodRow",
    "Section",
    "Table",
    "Value",
    "build",
    "p_shown",
    "paper_gains",
    "percent",
    "shown",
    "signed",
]
