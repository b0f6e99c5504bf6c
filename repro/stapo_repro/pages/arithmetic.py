"""The miniature with other last digits, beside the committed one: what of its result hangs on the processor?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stapo_repro import labels
from stapo_repro.records.reading import ARITHMETIC, Loaded, final_step, load_cells
from stapo_repro.tables import shown
from stapo_repro.tables.render import grid
from stapo_results.errors import RecordError
from stapo_results.schema import SETTINGS, Run
from stapo_results.store import read_json

_HEAD = ("Arithmetic", "Seeds", "Method", *labels.MINI_BENCHMARKS)


def page_block(records: Path) -> str:
    """The accuracies of every method, by arithmetic, of the seeds that were run so.

    Args:
        records: results/records. The miniature's folder has the committed runs, each folder of `ARITHMETIC` a run with
            other last digits, which is named by what its records say of the machine and the base model.

    Raises:
        RecordError: a run whose records name no such difference, or more than one.
    """
    folders = sorted(p for p in (records / ARITHMETIC).glob("*") if p.is_dir())
    rows: list[Sequence[str]] = []
    for folder in folders:
        cells, told = final_step(load_cells([folder]))[0], _told(folder)
        seeds = {c.record.cell.train_seed for c in cells if c.record.cell.method != labels.BASE}
        rows += _rows("the committed runs", final_step(load_cells([records / "miniature"]))[0], seeds)
        rows += _rows(told, cells, seeds)
    if not rows:
        return "Not run."
    note = "Accuracy in percent at temperature 1.0, in brackets at 0.7 / 0.9; of several seeds the mean."
    return "\n".join([*grid(_HEAD, list(dict.fromkeys(map(tuple, rows))), 3), "", f"<sub>{note}</sub>"])


def _told(folder: Path) -> str:
    """What the run records say: variables that choose the instructions, noise on the base model."""
    found = set()
    for path in sorted(folder.rglob("run.json")):
        run = read_json(path, Run)
        if run.kind == "train":
            found.add(", ".join(f"`{k}={v}`" for k, v in sorted(run.hardware.get("arithmetic", {}).items())))
        if run.kind == "base" and run.config.get("noise"):
            found.add(f"noise of {run.config['noise']:g} on every weight of the base model")
    if len(found := found - {""}) != 1:
        raise RecordError(
            f"{folder}: its runs are to differ from the committed ones in one way",
            found=" | ".join(sorted(found)) or "no difference on record",
            expected="the variables of one processor, or noise on the base model",
            next_step="docs/reproduction.md has the commands",
        )
    return found.pop()


def _rows(name: str, cells: Sequence[Loaded], seeds: set[int]) -> list[Sequence[str]]:
    rows = []
    for method, label in labels.METHODS.items():
        values = []
        for benchmark in labels.MINI_BENCHMARKS:
            by = {s: _mean(cells, method, benchmark, s, seeds) for s in SETTINGS}
            values.append(f"{by['t1.0']} ({by['t0.7']})")
        rows.append((name, ", ".join(map(str, sorted(seeds))), label, *values))
    return rows


def _mean(cells: Sequence[Loaded], method: str, benchmark: str, setting: str, seeds: set[int]) -> str:
    mine = [c.record for c in cells if (c.record.cell.method, c.record.cell.benchmark) == (method, benchmark)]
    mine = [r for r in mine if r.cell.setting == setting and r.cell.train_seed in seeds]
    if {r.cell.train_seed for r in mine} != seeds:
        return "not run"
    verdicts = "".join(p.verdicts for r in mine for p in r.problems)
    return "incomplete" if "-" in verdicts else shown(100 * verdicts.count("1") / len(verdicts), 2)
