"""The report as one HTML page, from records, the paper's printed numbers and, where they are named, run folders.

The committed records hold two experiments, the main one and the testbed. Of the testbed the page has the judged claims
and the figures; its single cells and runs would be many times the rest of the page.

Everything is escaped by the template engine, and every text passes `visible` on its way. Should that ever fail, the
page's content security policy still runs nothing: the one style sheet and the one script are allowed by their hashes,
and no address of any kind is.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stapo_repro import labels, paper, tables, text
from stapo_repro.audit.findings import NOTE, Audit, with_reasons
from stapo_repro.audit.run import load_and_audit
from stapo_repro.driver.readiness import FILLING
from stapo_repro.figures.inline import Glyphs, picture
from stapo_repro.figures.style import Drawn
from stapo_repro.read import Loaded, TrainingRun
from stapo_repro.report import cells, responses, runs, state
from stapo_repro.tables.render import view
from stapo_repro.testbed import render as render_testbed
from stapo_repro.testbed.build import Testbed
from stapo_repro.testbed.claims import Judged
from stapo_repro.text import template, visible
from stapo_results.sizes import MINI


@dataclass(frozen=True)
class ReportedExperiment:
    """The main experiment as it was read and drawn.

    Attributes:
        roots, skip: folders with its records, and folders in them that are left out.
        drawn: its figures, with their SVG.
    """

    title: str
    roots: Sequence[Path]
    skip: Sequence[str]
    cells: Sequence[Loaded]
    trainings: Sequence[TrainingRun]
    drawn: Sequence[Drawn]

    @property
    def anchors(self) -> dict[str, str]:
        """Cell id -> its anchor in the page."""
        return cells.anchors((c.record.cell.id for c in self.cells), "m")


@dataclass(frozen=True)
class ReportedTestbed:
    """The testbed as it was read and drawn."""

    value: Testbed
    drawn: Sequence[Drawn]


def _pictures(drawn: Sequence[Drawn], glyphs: Glyphs) -> list[Any]:
    return [picture(d.name, d.title, d.caption, d.files["svg"], glyphs) for d in drawn]


def _section(
    e: ReportedExperiment, run_folders: Sequence[Path], page_folder: Path, most: int, glyphs: Glyphs
) -> dict[str, Any]:
    """The experiment in the page. `shown`: cell's anchor -> its responses, of cells that a run folder made."""
    anchor = e.anchors
    held = responses.load(run_folders, e.cells, most) if run_folders else {}
    listed = runs.load(e.roots, page_folder, e.skip, "m")
    made_by = {run["id"]: run["anchor"] for run in listed}

    def view_of(c: Loaded) -> dict[str, Any]:
        i = c.record.cell.id
        first: dict[str, str] = {}
        for number, r in enumerate(held[i].responses if i in held else ()):
            first.setdefault(r.problem, f"{anchor[i]}-r{number}")
        return cells.view(c, anchor[i], page_folder, first, made_by.get(c.record.run_id, ""))

    return {
        "title": e.title,
        "pictures": _pictures(e.drawn, glyphs),
        "models": cells.by_model([view_of(c) for c in e.cells]),
        "shown": {anchor[i]: s for i, s in held.items()},
        "runs": listed,
    }


def _claim(j: Judged) -> dict[str, Any]:
    c, q = j.claim, j.quantity
    digits = render_testbed.MEASURES[c.measure][2]
    return {
        "number": f"{c.number} ({c.world})",
        "claim": c.claim,
        "place": c.place,
        "quantity": f"{render_testbed.quantity_words(c)}; claimed {render_testbed.expected(c)}",
        "value": q.status if q.mean is None else text.signed(q.mean, digits),
        "interval": "" if q.low is None else f"{text.shown(q.low, digits)} to {text.shown(q.high, digits)}",
        "verdict": j.verdict,
        "holm": j.verdict_holm,
    }


def _testbed(testbed: ReportedTestbed, glyphs: Glyphs) -> dict[str, Any]:
    """The claims that the testbed judges, with its rule and figures."""
    t = testbed.value
    return {
        "headline": render_testbed.headline(t),
        "rule": t.rule,
        "rows": [_claim(j) for j in t.claims],
        "pictures": _pictures(testbed.drawn, glyphs),
        "stamp": f"Testbed: {t.records} evaluation records, {sum(t.trainings.values())} trainings, inputs "
        f"{t.inputs_sha256[:16]}.",
    }


def _counts(
    main: ReportedExperiment, testbed: Testbed | None, sizes: Sequence[state.Size], audit: Audit
) -> list[tuple[str, str]]:
    def complete(of: Collection[str]) -> str:
        models = [m for s in sizes if s.size in of for m in s.models[1:]]
        return f"{sum(m.run == m.cells for m in models)} of {len(models)}"

    return [
        (complete(labels.PAPER_SIZES), "models of the paper run"),
        (complete((MINI,)), "methods run in miniature"),
        (f"{len(main.cells) + (testbed.records if testbed else 0):,}", "evaluation records"),
        (f"{len(main.trainings) + (sum(testbed.trainings.values()) if testbed else 0):,}", "training records"),
        (f"{sum(len(c.findings) for c in audit.checks)}", "findings of the audit"),
    ]


def _notice(main: ReportedExperiment) -> str:
    """What must be read before anything else; "" where there is nothing."""
    synthetic = [c.record.synthetic for c in main.cells]
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
    main: ReportedExperiment, testbed: ReportedTestbed | None, run_folders: Sequence[Path], page_folder: Path,
    most: int = responses.SHOWN,
) -> str:  # fmt: skip
    """The page; the same bytes each time.

    Args:
        testbed: None where its records were not asked for.
        run_folders: folders whose single responses are shown.
        page_folder: where the page will stand; records below it are linked.
        most: responses in all.

    Raises:
        BadInput, RecordError: as reading the records does.
    """
    glyphs, style, script = Glyphs(), _asset("style.css"), _asset("script.js")
    table = tables.build(main.cells, paper.load())
    sizes = state.overview(table, main.trainings)
    audit, judged, anchor = load_and_audit(), _testbed(testbed, glyphs) if testbed else None, main.anchors
    stamps = [view.stamp(table), *([judged["stamp"]] if judged else [])]
    report = {
        "notice": _notice(main),
        "sizes": sizes,
        "counts": _counts(main, testbed.value if testbed else None, sizes, audit),
        "state": view.state_of_paper_cells(table),
        "introduction": view.introduction(table),
        "main": [view.main_grid(s) for s in table.sections],
        "differences": view.difference_grids(table),
        "gains": view.gains_grid(table),
        "links": {c.path: f"#{anchor[c.record.cell.id]}" for c in main.cells},
        "glyphs": glyphs,
        "audit": audit,
        "testbed": judged,
        "todo": state.todo(main.roots, main.skip),
        "part": _section(main, run_folders, page_folder, most, glyphs),
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
