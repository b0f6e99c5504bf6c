"""The report as one HTML page, from records, the paper's printed numbers and, where they are named, run folders.

The committed records hold two experiments, the main one and the ablation, whose cells have the same ids; each has its
own figures, cells and runs in the page.

Everything is escaped by the template engine, and every text passes `visible` on its way. Should that ever fail, the
page's content security policy still runs nothing: the one style sheet and the one script are allowed by their hashes,
and no address of any kind is.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stapo_repro import labels, paper, tables
from stapo_repro.ablation import build as ablation
from stapo_repro.ablation import claims
from stapo_repro.ablation import render as render_ablation
from stapo_repro.audit.findings import NOTE, Audit, with_reasons
from stapo_repro.audit.run import load_and_audit
from stapo_repro.driver.readiness import FILLING
from stapo_repro.figures.canvas import Drawn
from stapo_repro.figures.experiment import ExperimentName
from stapo_repro.figures.inline import Glyphs, picture
from stapo_repro.records.reading import Loaded, TrainingRun
from stapo_repro.report import cells, responses, runs, state
from stapo_repro.tables.render import view
from stapo_repro.templating import template, visible


@dataclass(frozen=True)
class ReportedExperiment:
    """An experiment as it was read and drawn.

    Attributes:
        roots, skip: folders with its records, and folders in them that are left out.
        drawn: its figures, with their SVG.
    """

    name: ExperimentName
    title: str
    roots: Sequence[Path]
    skip: Sequence[str]
    cells: Sequence[Loaded]
    trainings: Sequence[TrainingRun]
    drawn: Sequence[Drawn]

    @property
    def anchors(self) -> dict[str, str]:
        """Cell id -> its anchor in the page."""
        return cells.anchors((c.record.cell.id for c in self.cells), self.name[0])


def _section(
    e: ReportedExperiment, run_folders: Sequence[Path], page_folder: Path, most: int, glyphs: Glyphs
) -> dict[str, Any]:
    """One experiment in the page. `shown`: cell's anchor -> its responses, of cells that a run folder made."""
    anchor = e.anchors
    held = responses.load(run_folders, e.cells, most) if run_folders else {}
    listed = runs.load(e.roots, page_folder, e.skip, e.name[0])
    made_by = {run["id"]: run["anchor"] for run in listed}

    def view_of(c: Loaded) -> dict[str, Any]:
        i = c.record.cell.id
        first: dict[str, str] = {}
        for number, r in enumerate(held[i].responses if i in held else ()):
            first.setdefault(r.problem, f"{anchor[i]}-r{number}")
        return cells.view(c, anchor[i], page_folder, first, made_by.get(c.record.run_id, ""))

    return {
        "title": e.title,
        "pictures": [picture(d.name, d.title, d.caption, d.files["svg"], glyphs) for d in e.drawn],
        "models": cells.by_model([view_of(c) for c in e.cells]),
        "shown": {anchor[i]: s for i, s in held.items()},
        "runs": listed,
    }


def _claim(number: int, judged: claims.JudgedClaim) -> dict[str, Any]:
    c, n = judged.claim, judged.number
    digits = 2 if c.measure == "accuracy" else render_ablation.MEASURES[c.measure][2]
    value = n.status if n.mean is None else tables.signed(n.mean, digits)
    if n.status == "incomplete":
        value += f", of {len(n.seeds)} seeds"
    return {
        "number": number,
        "claim": c.claim,
        "place": c.place,
        "quantity": f"{render_ablation.quantity(c)}; claimed {c.direction} 0",
        "value": value,
        "interval": "" if n.low is None else f"{tables.shown(n.low, digits)} to {tables.shown(n.high, digits)}",
        "verdict": judged.verdict,
    }


def _masks(read: Sequence[ReportedExperiment]) -> dict[str, Any] | None:
    """The claims that the ablation judges, and its rule; None where the ablation is not among the records."""
    found = next((e for e in read if e.name == "ablation"), None)
    if found is None:
        return None
    a = ablation.build(found.cells, found.trainings, claims.load())
    made_of = f"{len(a.records)} evaluation records, {len(a.trainings)} trainings, inputs {a.inputs_sha256[:16]}"
    rows = [_claim(n, j) for n, j in enumerate(a.claims, 1)]
    return {
        "headline": render_ablation.headline(a),
        "rule": a.rule,
        "rows": rows,
        "stamp": f"Ablation: {made_of}.",
    }


def _counts(read: Sequence[ReportedExperiment], sizes: Sequence[state.Size], audit: Audit) -> list[tuple[str, str]]:
    def complete(miniature: bool) -> str:
        models = [m for s in sizes if s.miniature == miniature for m in s.models[1:]]
        return f"{sum(m.run == m.cells for m in models)} of {len(models)}"

    return [
        (complete(miniature=False), "models of the paper run"),
        (complete(miniature=True), "methods run in miniature"),
        (f"{sum(len(e.cells) for e in read):,}", "evaluation records"),
        (f"{sum(len(e.trainings) for e in read):,}", "training records"),
        (f"{sum(len(c.findings) for c in audit.checks)}", "findings of the audit"),
    ]


def _notice(read: Sequence[ReportedExperiment]) -> str:
    """What must be read before anything else; "" where there is nothing."""
    synthetic = [c.record.synthetic for e in read for c in e.cells]
    if not any(synthetic):
        return ""
    return f"SYNTHETIC RECORDS: {sum(synthetic)} of {len(synthetic)} were made up for a test. This is no result."


def _made_visible(value: object) -> object:
    """What the template writes in the place of a value: a text that is no markup yet, made visible."""
    return visible(value) if type(value) is str else value


def _asset(name: str) -> str:
    return resources.files("stapo_repro.report").joinpath("templates", name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The hash by which a policy allows an element's text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _bars(solved: Sequence[int]) -> list[tuple[int, int, int]]:
    """(x, y, height) of each bar of a picture 24 high; a bar that stands for something is at least 1 high."""
    top = max(max(solved), 1)
    heights = [-(-22 * n // top) for n in solved]
    return [(8 * i, 24 - h, h) for i, h in enumerate(heights)]


def to_html(
    read: Sequence[ReportedExperiment], run_folders: Sequence[Path], page_folder: Path, most: int = responses.SHOWN
) -> str:
    """The page of the main experiment, which stands first in `read`, and of what follows it; the same bytes each time.

    Args:
        run_folders: folders whose single responses are shown.
        page_folder: where the page will stand; records below it are linked.
        most: responses in all.

    Raises:
        BadInput, RecordError: as reading the records does.
    """
    main, glyphs, style, script = read[0], Glyphs(), _asset("style.css"), _asset("script.js")
    table = tables.build(main.cells, paper.load())
    sizes = state.overview(table, main.trainings)
    audit, masks, anchor = load_and_audit(), _masks(read), main.anchors
    stamps = [view.stamp(table), masks["stamp"]] if masks else [view.stamp(table)]
    report = {
        "notice": _notice(read),
        "sizes": sizes,
        "counts": _counts(read, sizes, audit),
        "state": view.state_of_paper_cells(table),
        "introduction": view.introduction(table),
        "main": [view.main_grid(s) for s in table.sections],
        "differences": view.difference_grids(table),
        "gains": view.gains_grid(table),
        "links": {c.path: f"#{anchor[c.record.cell.id]}" for c in main.cells},
        "glyphs": glyphs,
        "audit": audit,
        "masks": masks,
        "todo": state.todo(main.roots, main.skip),
        "parts": [_section(e, run_folders, page_folder, most, glyphs) for e in read],
        "stamps": [*stamps, f"Audit: inputs {audit.inputs_sha256[:16]}."],
    }
    policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
    return template("stapo_repro.report", "report.html.jinja", _made_visible).render(
        r=report,
        policy=f"{policy}base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
        methods=(labels.method_label(labels.BASE), *labels.METHODS.values()),
        audit_note=NOTE,
        filling=FILLING,
        with_reasons=with_reasons,
        bars=_bars,
    )
