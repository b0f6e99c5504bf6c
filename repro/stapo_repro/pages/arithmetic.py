"""The miniature with other last digits, beside the committed one: what of its result hangs on the processor?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stapo_repro import labels
from stapo_repro.records.reading import ARITHMETIC, Loaded, final_step, load_cells
from stapo_repro.tables import shown, signed
from stapo_repro.tables.comparisons import difference
from stapo_repro.tables.model import Difference, Value
from stapo_repro.tables.render import grid
from stapo_repro.tables.scores import Score, score_all
from stapo_repro.tables.values import from_average
from stapo_results.errors import RecordError
from stapo_results.schema import SETTINGS, Run
from stapo_results.store import read_json

_HEAD = ("Arithmetic", "Seeds", "Method", "T=1.0", "less the base", "T=0.7", "less the base")


def page_block(records: Path) -> str:
    """The accuracies of every method, by arithmetic, of the seeds that were run so.

    Args:
        records: results/records. The miniature's folder has the committed runs, each folder of `ARITHMETIC` a run with
            other last digits, which is named by what its records say of the machine and the base model.

    Raises:
        RecordError: a run whose records name no such difference, or more than one; records that cannot be pooled.
    """
    folders = sorted(p for p in (records / ARITHMETIC).glob("*") if p.is_dir())
    rows: list[Sequence[str]] = []
    for folder in folders:
        cells, told = final_step(load_cells([folder]))[0], _told(folder)
        seeds = {c.record.cell.train_seed for c in cells if c.record.cell.method != labels.BASE}
        committed = [c for c in final_step(load_cells([records / "miniature"]))[0]
                     if c.record.cell.method == labels.BASE or c.record.cell.train_seed in seeds]  # fmt: skip
        rows += _rows("the committed runs", committed, seeds)
        rows += _rows(told, cells, seeds)
    if not rows:
        return "Not run."
    note = (
        "Accuracy in percent, mean over the two benchmarks, and its difference from the base model's in points; below "
        "each the 95 % interval, over problems and, with several, seeds."
    )
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
    scores = score_all(cells)
    rows = []
    for method in (labels.BASE, *labels.METHODS):
        values = []
        for setting in SETTINGS:
            own, base = ([scores.get((labels.MINI, m, b, setting)) for b in labels.MINI_BENCHMARKS]
                         for m in (method, labels.BASE))  # fmt: skip
            less = difference(own, base, (method, labels.BASE, labels.AVERAGE, setting), flips=1)
            shown_as = _lacking(own, seeds), _lacking(own, seeds) or _lacking(base, seeds)
            values += [shown_as[0] or _value(from_average(own))]
            values += ["" if method == labels.BASE else shown_as[1] or _value(less, signed)]
        of = "" if method == labels.BASE else ", ".join(map(str, sorted(seeds)))
        rows.append((name, of, labels.method_label(method), *values))
    return rows


def _lacking(parts: Sequence[Score | None], seeds: set[int]) -> str:
    """ "not run", or "incomplete" where a benchmark, a seed or a sample is missing; "" where nothing is."""
    there = [s for s in parts if s is not None]
    if not there:
        return "not run"
    whole = len(there) == len(parts) and all(s.is_base or s.by_seed.keys() == seeds for s in there)
    return "" if whole and not any(s.estimate.missing for s in there) else "incomplete"


def _value(v: Value | Difference, form: Callable[[float | None], str] = shown) -> str:
    mean = v.points if isinstance(v, Difference) else v.mean
    return f"{form(mean)}<br><sub>{shown(v.low, 1)} to {shown(v.high, 1)}</sub>"
