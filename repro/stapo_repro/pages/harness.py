"""The small model's base evaluated with one other setting of the harness: is the difference named by its cause?"""

from __future__ import annotations

from pathlib import Path

from stapo_repro.calibration.beside import own_cells
from stapo_repro.calibration.judging import MARGIN
from stapo_repro.calibration.page import Calibration, sheets
from stapo_repro.calibration.two_runs import pairs
from stapo_repro.records.reading import HARNESS
from stapo_repro.tables.render.markdown import escape, grid
from stapo_results.sizes import SMALL

BASE = Path("small", "eval", f"base-{SMALL}")


def page_block(records: Path) -> str:
    """The base of the table beside each evaluation in `HARNESS`, and beside itself, benchmark by benchmark.

    Args:
        records: results/records.

    Raises:
        BadInput: runs that do not compare. RecordError: a record that is broken.
    """
    folders = sorted(p for p in (records / HARNESS).glob("*") if (p / "cells").is_dir())
    if not folders:
        return "Not run."
    base = own_cells([records / BASE])
    found = [p for folder in (records / BASE, *folders) for p in pairs(base, own_cells([folder]), MARGIN)[0]]
    (sheet,) = sheets(Calibration("", MARGIN, pairs=found))
    return "\n".join(
        grid([escape(h) for h in sheet.header], [[escape(x) for x in row] for row in sheet.rows], sheet.left)
    )
