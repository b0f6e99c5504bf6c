"""What `stapo-repro calibrate` shows: the same tables on a terminal and as Markdown, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stapo_repro import labels
from stapo_repro.calibration.beside import NOT_STATED, Row, own_cells
from stapo_repro.calibration.causes import Change, cause_of
from stapo_repro.calibration.judging import MARGIN, Difference, rule
from stapo_repro.calibration.published import Published, Set
from stapo_repro.calibration.two_runs import Pair, apart_in_words, pairs
from stapo_repro.text import escape, grid, p_shown, shown, signed


class Sheet(NamedTuple):
    """A table: its title, headings (the first `left` of text), and rows of text."""

    title: str
    left: int
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Calibration:
    """All that one call found. `model` is "" where no published results were asked for."""

    model: str
    margin: float
    rows: list[Row] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    sources: list[Set] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _change(d: Difference) -> str:
    """+1.25 [-0.40, +2.90]"""
    ends = "" if d.low is None else f" [{signed(d.low)}, {signed(d.high)}]"
    return f"{signed(d.points)}{ends}"


def _verdict(d: Difference) -> str:
    return f"{d.verdict} ({d.why})" if d.why else d.verdict


def _theirs(p: Published) -> str:
    spread = f" ± {p.sd}" if p.sd is not None else ""
    return f"{p.value}{spread} ({p.n or '?'})"


def _apart(r: Row, changes: Sequence[Change]) -> str:
    """temperature 0.7 / 0.8; grader ours / justrl (-1.25)"""
    found = {(x.cell, x.cause): x for x in changes}

    def moves(name: str, theirs: Any) -> str:
        cause = cause_of(name, theirs, r.ours.n if r.ours else 0)
        x = found.get((r.ours.cell, cause)) if r.ours else None
        points = x.difference.points if x else None
        return "" if x is None or points is None else f" ({'rule alone ' * x.alone}{signed(points)})"

    known = [f"{k} {a} / {b}{moves(k, b)}" for k, (a, b) in r.differs_in.items() if b != NOT_STATED]
    silent = [k for k, (_, b) in r.differs_in.items() if b == NOT_STATED]
    return "; ".join([*known, *([f"not stated: {', '.join(silent)}"] if silent else [])]) or "nothing"


def _name(benchmark: str) -> str:
    return labels.benchmark_label(benchmark)


def sheets(c: Calibration) -> Iterator[Sheet]:
    """Every table that has a row."""
    run = any(r.ours for r in c.rows)
    if run:
        yield Sheet(
            f"{c.model}: ours beside published scores, percent (samples a problem)",
            3,
            ("benchmark", "at", "source", "ours", "published", "ours - published [95 %]", "p (Holm)", "verdict"),
            [
                (_name(r.benchmark), r.setting, r.published.source,
                 f"{shown(r.ours.value)} ({r.ours.n})", _theirs(r.published), _change(r.difference),
                 p_shown(r.difference.p_holm), _verdict(r.difference))
                if r.ours
                else (_name(r.benchmark), "–", r.published.source, "not run", _theirs(r.published), "–", "–", "not run")
                for r in c.rows
            ],
        )  # fmt: skip
        yield Sheet(
            "Settings that differ, ours / theirs"
            + (", in brackets what the change does to our responses" if c.changes else "")
            + "; the published score's noise",
            4,
            ("benchmark", "at", "source", "settings", "noise"),
            [
                (_name(r.benchmark), r.setting, r.published.source, _apart(r, c.changes), r.noise_of_published)
                for r in c.rows
                if r.ours
            ],
        )
    elif c.rows:
        yield Sheet(
            f"{c.model}: published scores, percent ± SD over seeds (samples a problem)",
            2,
            ("benchmark", "source", "published", "T", "top-p", "limit", "grader", "judge", "ours"),
            [(_name(r.benchmark), r.published.source, _theirs(r.published), *_stated(r.published), "not run")
             for r in c.rows],
        )  # fmt: skip
    if c.changes:
        yield Sheet(
            "One cause changed on the same responses; all of a source's; what remains to its score; percent",
            3,
            ("benchmark", "at", "cause", "before", "after", "after - before [95 %]", "gained/lost", "p (Holm)",
             "verdict"),
            [
                (_name(x.benchmark), x.setting, x.name, shown(x.before), shown(x.after), _change(x.difference),
                 "–" if x.gained is None else f"{x.gained}/{x.lost}", p_shown(x.difference.p_holm),
                 _verdict(x.difference) + (f"; leaves SE {x.noise:.2f}" if x.noise is not None else ""))
                for x in c.changes
            ],
        )  # fmt: skip
    if c.pairs:
        yield Sheet(
            "A run against others, percent",
            3,
            ("second run", "benchmark", "at", "first", "second", "first - second [95 %]", "p (Holm)", "verdict",
             "what differs", "first / second"),
            [
                (p.against, _name(p.benchmark), p.setting, shown(p.first_score), shown(p.second_score),
                 _change(p.difference), p_shown(p.difference.p_holm), _verdict(p.difference), p.says,
                 apart_in_words(p.settings) or "nothing")
                for p in c.pairs
            ],
        )  # fmt: skip


def _stated(p: Published) -> tuple[str, ...]:
    s = p.setting
    values = (s.temperature, s.top_p, s.max_tokens, s.grader, s.judge)
    return tuple(NOT_STATED if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in values)


def lines(c: Calibration) -> list[str]:
    """What stands below the tables."""
    judged = [*(r.difference for r in c.rows), *(x.difference for x in c.changes), *(p.difference for p in c.pairs)]
    out = [rule(c.margin)] if any(d.verdict != "not run" for d in judged) else []
    for s in c.sources:
        at = f" at {s.source.commit[:12]}" if s.source.commit else ""
        kind = "" if s.kind == "evaluation" else f" ({s.kind})"
        out.append(f"{s.name}{kind}: github.com/{s.source.repository}{at}, {', '.join(s.source.places)}")
    if c.changes:
        out.append("single causes overlap and do not add up to a gap; 'as SOURCE' changes them together, 'remains to "
                   "SOURCE' is its score minus that: what these responses do not explain")  # fmt: skip
    for cell in dict.fromkeys(x.cell for x in c.changes):
        mine = [x for x in c.changes if x.cell == cell and x.kind not in ("source", "remainder")]
        moving = ", ".join(x.name for x in mine if x.difference.verdict == "differs")
        tried = any(x.difference.verdict != "not run" for x in mine)
        nothing = "nothing that was tried" if tried else "not run"
        out.append(f"{_name(mine[0].benchmark)} at {mine[0].setting}: what moves the score: {moving or nothing}")
    return [*out, *c.notes]


def to_terminal(c: Calibration) -> None:
    """Print all tables; a narrow terminal wraps lines, no number is cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.width = max(console.width, 160)
    for g in sheets(c):
        drawn = Table(title=g.title, title_justify="left", box=box.SIMPLE_HEAD)
        for i, name in enumerate(g.header):
            words = i < g.left or name in ("verdict", "what differs", "first / second", "noise", "settings")
            drawn.add_column(name, justify="left" if words else "right", no_wrap=not words)
        for row in g.rows:
            drawn.add_row(*row)
        console.print(drawn, markup=False)
    for line in lines(c):
        console.print(f"- {line}", highlight=False, markup=False)


def to_markdown(c: Calibration) -> str:
    parts = [f"# Calibration{f' of {escape(c.model)}' if c.model else ''}"]
    for g in sheets(c):
        parts += ["", f"## {escape(g.title)}", "", *_grid(g)]
    return "\n".join([*parts, "", *_lines(c)]) + "\n"


def _grid(g: Sheet) -> list[str]:
    return grid([escape(h) for h in g.header], [[escape(x) for x in row] for row in g.rows], g.left)


def _lines(c: Calibration) -> list[str]:
    return [f"- {escape(x)}" for x in lines(c)]


def page_block(first: Path, others: Path) -> str:
    """The committed run `first`, at the settings that the others have, against those in the folder `others`, each
    called as its folder there.

    Raises:
        BadInput, RecordError: as `two_runs.pairs` and reading records do.
    """
    folders = sorted(p.parent for p in others.glob("*/run.json"))
    if not folders:
        return "Not run."
    cells = {f.name: own_cells([f]) for f in folders}
    settings = {c.record.cell.setting for of in cells.values() for c in of}
    found, alone = pairs([c for c in own_cells([first]) if c.record.cell.setting in settings], cells, MARGIN)
    c = Calibration("", MARGIN, pairs=found, notes=alone)
    (sheet,) = sheets(c)
    return "\n".join([f"{sheet.title}:", "", *_grid(sheet), "", *_lines(c)])


def to_json(c: Calibration) -> str:
    """Every number; points and percent, null where undefined."""

    def plain(rows: Sequence[Any]) -> list[Any]:
        return [
            asdict(r) | ({"published": asdict(r.published) | {"setting": r.published.setting.model_dump()}}
                         if isinstance(r, Row) else {})
            for r in rows
        ]  # fmt: skip

    value = {"schema_version": 1, "model": c.model, "margin": c.margin, "rule": rule(c.margin),
             "rows": plain(c.rows), "causes": plain(c.changes), "runs": plain(c.pairs),
             "sources": [s.model_dump(exclude={"rows"}) for s in c.sources], "notes": c.notes}  # fmt: skip
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
