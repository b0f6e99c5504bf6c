"""The shapes that `planted_figure` reads today. To go when it reads `masks.parts`."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from stapo_repro.read import TrainingRun
from stapo_repro.tokens import masks
from stapo_repro.tokens.masks import SELECTORS, Interval

__all__ = ["SELECTORS", "PlantedSection", "section"]
PlantedSection = SimpleNamespace


def section(runs: Sequence[TrainingRun], title: str) -> PlantedSection | None:
    """title, trained (label, method, measured, base.rare), on_same (title, base.rare, compared.masks)."""
    logged = masks.planted_logs(runs)
    if not logged:
        return None
    first, *rest = masks.parts(logged)

    def base(line: masks.Line) -> SimpleNamespace:
        return SimpleNamespace(rare=Interval(line.base[1], None, None))

    return SimpleNamespace(
        title=title + ", SYNTHETIC RECORDS" * any(run.synthetic for run, _ in logged),
        trained=[SimpleNamespace(**line._asdict() | {"base": base(line)}) for line in first.lines],
        on_same=[
            SimpleNamespace(
                title=part.title,
                base=base(part.lines[0]),
                compared=SimpleNamespace(masks={line.selector: line.measured for line in part.lines}),
            )
            for part in rest
        ],
    )
