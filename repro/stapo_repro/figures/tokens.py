"""STAPO's tokens among the other figures: those of `stapo-repro tokens`, for the first run of a size that has a log."""

from __future__ import annotations

from dataclasses import replace

from stapo_repro.figures.canvas import Sketch
from stapo_repro.figures.material import Material
from stapo_results import token_log


def tokens(material: Material) -> list[Sketch]:
    """The five figures of a log; nothing where no run of STAPO has one."""
    from stapo_repro.tokens import analysis  # its figures are drawn with this package, which is not yet whole here
    from stapo_repro.tokens.logged_run import load

    out = []
    for group in material.groups():
        runs = [r for size in group.sizes for r in material.runs_of(size, ["stapo"])["stapo"]]
        logged = [r for r in runs if (r.folder / token_log.FOLDER).is_dir()]
        if logged:
            out += [replace(s, name=f"{group.name}_{s.name}") for s in analysis.sketches(load(logged[0].folder))]
    return out
