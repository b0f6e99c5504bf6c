"""The page: S2T's tokens and those on which sampler and trainer disagree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from stapo_repro import labels, read
from stapo_repro.read import TrainingRun
from stapo_repro.report import MISMATCH, mismatch_cells
from stapo_repro.text import escape, grid
from stapo_repro.tokens import numbers
from stapo_repro.tokens.log import log_of, run_label
from stapo_results.sizes import is_miniature_size
from studies import command

ASKED = ("stapo", "tis", "icepop")
"""The methods whose runs are asked."""
_HEAD = """# Mismatch of sampler and trainer

How it is measured, and what it says: [tokens](../../docs/tokens.md#mismatch-or-spurious)."""


def add(files: dict[Path, bytes]) -> None:
    """Add the page of the committed records."""
    apart = tuple(name for name in read.APART if name != read.METHODS)
    runs = read.load_training_runs([command.RECORDS], apart)
    lines = [_HEAD, "", *mismatches(runs), "", *came_out_alike(runs)]
    files[command.TABLES / "mismatch.md"] = "\n".join(lines).encode()


def came_out_alike(runs: Sequence[TrainingRun]) -> list[str]:
    """Those of several methods that came out alike, as TIS and IcePop do where they cut no weight."""
    made = defaultdict[bytes, list[str]](list)
    for run in runs:
        if run.method in ASKED:
            made[(run.folder / "metrics.jsonl").read_bytes()].append(escape(run_label(run)))
    same = [" and ".join(names) for names in made.values() if len(names) > 1]
    return [line for names in same for line in (f"{names} came out alike: their metrics are the same bytes.", "")]


def mismatches(runs: Sequence[TrainingRun]) -> list[str]:
    """Whether S2T's tokens are those on which sampler and trainer disagree (`numbers.mismatch`), a line a run."""
    rows = []
    for method in ASKED:
        of_method = sorted((r for r in runs if r.method == method), key=lambda r: (r.size, r.seed))
        for run in of_method:
            log = log_of(run)
            found = numbers.mismatch(log) if log else None
            why = "no sampler's probability, or no token that S2T would silence" if log else "no token log on record"
            model = "miniature" if is_miniature_size(run.size) else labels.size_label(run.size)
            note = f" ({model})" + (", SYNTHETIC" if run.synthetic else "")
            rows.append([escape(run_label(run) + note), *(mismatch_cells(found) if found else [why])])
        if not of_method:
            rows.append([escape(labels.method_label(method)), "not run"])
    head = ("Run", *MISMATCH)
    return grid(head, [[*row, *[""] * (len(head) - len(row))] for row in rows])
