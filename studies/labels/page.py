"""The page of the labelled sample, and the figures of its probe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stapo_repro.figures import tokens
from stapo_repro.figures.style import Sketch, save, style
from stapo_repro.labels import benchmark_label, size_label
from stapo_repro.read import load_cells
from stapo_repro.tokens.log import load
from stapo_results.schema import Run
from stapo_results.store import read_json
from studies import command
from studies.labels import readers

_FOLDER = command.RECORDS / "labels"
_HEAD = """# Rare tokens labelled by two readers

How they were drawn and read: [the record](../records/labels/README.md). What follows:
[tokens](../../docs/tokens.md#labelled-by-readers)."""
_SAMPLES = {
    "labels-real": "Four trainings of Qwen2.5-Coder-0.5B-Instruct on MATH",
    "labels": "SmolLM2-135M on sums of one digit",
}
"""Folder of a record, and whose tokens they are."""


def add(files: dict[Path, bytes]) -> None:
    """Add the page and the figures of the committed record."""
    sections = [line for name, title in _SAMPLES.items()
                for line in ("", f"## {title}", "", *readers.section(_FOLDER / name / readers.FILE))]  # fmt: skip
    files[command.TABLES / "labels.md"] = "\n".join([_HEAD, *sections, ""]).encode()
    command.add_figures(files, "labels", _of_probe())


def _of_probe() -> list[Sketch]:
    """Density and gradient norms of the probe; the captions say whose responses they show."""
    log, base = load(_FOLDER / "probe"), read_json(_FOLDER / "base" / "run.json", Run).config
    asked = ", ".join(sorted({benchmark_label(c.record.cell.benchmark) for c in load_cells([_FOLDER])}))
    name, steps = size_label(base["size"]), base["plan"]["warm_up"]
    what = f"{name} after {steps} steps of warm-up on the benchmark {asked}, not a result of the paper."
    with style():
        found = tokens.density(log), tokens.quadrant_bars(log)
        return [save(replace(s, name=f"probe_{s.name}", title=f"{s.title} of one model's responses",
                             caption=f"{what} {s.caption}")) for s in found]  # fmt: skip
