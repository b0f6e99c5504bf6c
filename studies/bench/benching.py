"""Side-by-side measurements: ratios to a baseline, the record of a measurement, its table on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stapo_results import provenance, store
from stapo_results.schema import Part, Record
from studies import command


class BenchRow(Part):
    """One timed way of doing something; ratios are to the baseline within the same repeat."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    seconds: Annotated[float, Field(gt=0)]
    ratio: Annotated[float, Field(gt=0)]
    ratio_low: float
    ratio_high: float
    values: dict[str, float] = Field(default_factory=dict)


class Bench(Record):
    """A side-by-side measurement: every row against `baseline`, in one run."""

    run_id: str
    part: str
    baseline: str
    labels: dict[str, str] = Field(default_factory=dict)
    rows: list[BenchRow]


def timed_row(
    name: str,
    seconds: Sequence[float],
    baseline: Sequence[float],
    *,
    labels: Mapping[str, str] | None = None,
    values: Mapping[str, float] | None = None,
) -> BenchRow:
    """A way of doing something against the baseline, both timed once in every repeat.

    The ratio is that of the fastest repeats, since whatever else the machine does only adds; its spread is that of the
    ratios within a repeat.
    """
    ratios = [s / b for s, b in zip(seconds, baseline, strict=True)]
    return BenchRow(
        name=name,
        labels=dict(labels or {}),
        seconds=min(seconds),
        ratio=min(seconds) / min(baseline),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        values=dict(values or {}),
    )


def record(
    out: Path,
    part: str,
    config: Mapping[str, Any],
    baseline: str,
    measure: Callable[[], tuple[list[BenchRow], dict[str, str]]],
) -> Bench:
    """Measure, and write the record to `out` (run.json, bench.json).

    Args:
        config: what was measured with; has a `seed`.
        measure: gives the rows, and labels that hold for all of them.

    Raises:
        BadInput: before it measures, where `out` cannot be written or holds a record of another kind.
    """
    command.check_replaced(out, "bench")
    began = time.perf_counter()
    run = provenance.new_run("bench", {"part": part, **config}, seeds={"run": config["seed"]}, deterministic=False)
    run = run.model_copy(update={"command": [_without_path(word) for word in run.command]})
    rows, labels = measure()
    command.write_run(run, out, time.perf_counter() - began)
    bench = Bench(run_id=run.run_id, part=part, baseline=baseline, labels=labels, rows=rows)
    store.write_json(out / "bench.json", bench)
    return bench


def _without_path(word: str) -> str:
    """A word of a command line, where this machine's folders are not named: the record is committed as it is."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}(path)" if Path(value).is_absolute() else word


def spread(row: BenchRow) -> str:
    """ "1.011 (0.997 to 1.116)"."""
    return f"{row.ratio:.3f} ({row.ratio_low:.3f} to {row.ratio_high:.3f})"


def text(table: Sequence[Sequence[str]]) -> str:
    """A table for a terminal; the first row is the head."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table)
