"""The table as Markdown, LaTeX, CSV and JSON: one set of grids and rows, so that every form prints the same numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, TypeVar, get_args

from stapo_repro import labels, paper
from stapo_repro.scores import Difference
from stapo_repro.statistics import significant
from stapo_repro.table.build import Row, Section, Table
from stapo_repro.text import escape, grid, p_shown, shown, signed, spans, written
from stapo_results.schema import SETTINGS
from stapo_results.sizes import is_miniature_size

T = TypeVar("T", Row, Difference, paper.Gain)
FIRST, SECOND = SETTINGS  # order of the paper's cells: T=1.0, then T=0.7 in brackets
_ABSENT = ("not run", "n/a", "other problems", "other engine", "evaluated otherwise", "seeds differ")
_IN_SMALL = "<br><sub>{}</sub>"
_NAMED = ("cut ", "by ", "p ", "Holm ")
"""How a line of small print begins that says what it is."""
_BESIDE = (
    "Ours minus paper in percentage points; within or outside: whether the paper's printed value lies in our 95 % "
    "interval. Not judged: samples or problems are missing, or these, the training step, prompt, token limit "
    "or scoring are other ones."
)
_LEGEND = (
    "Accuracy in percent at temperature 1.0 / top-p 1.0, in brackets at 0.7 / 0.9; below it the 95 % interval over "
    "problems and samples and, with several training seeds, over those. N: samples a problem, x problems. Cut: the "
    "share of responses that met the limit of tokens. By: the engine, where several sampled; between them nothing is "
    "compared. Bold: a size's best complete value in a column that was evaluated alike, and what is incomplete."
)


@dataclass(frozen=True)
class Grid:
    """A table as texts in Markdown: `**` around the column's best and around what must not be overlooked, `<br><sub>`
    before each line of small print. `id` names it within its file."""

    id: str
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def _both(first: str, second: str, *small: tuple[str, str]) -> str:
    """The paper's cell: temperature 1.0, in brackets 0.7; below it lines of small print for both, or one text. A
    setting that was not run has none."""
    if first == second and first in _ABSENT:
        return first
    lines = []
    for a, b in small:
        name = a.partition(" ")[0] + " " if a.startswith(_NAMED) else ""
        if second == "not run":
            lines.append(a)
        elif first == "not run":
            lines.append(f"{name}({b})" if b else a)
        else:
            lines.append(f"{a} ({b})" if b else a)
    return f"{first} ({second})" + "".join(_IN_SMALL.format(escape(line)) for line in lines if line)


def _interval(low: float, high: float) -> str:
    """Two ends with one decimal."""
    return f"{shown(low, 1)} to {shown(high, 1)}"


def _number(r: Row) -> str:
    s = r.score
    if s.status == "incomplete":
        return f"**{s.status if s.cells else s.shown}**"  # an average says why there is none
    if s.status == "not run":
        return s.status
    text = f"**{s.shown}**" if r.best else s.shown
    return f"{text} (**{s.fewest_samples}/{s.estimate.samples} samples**)" if s.estimate.missing else text


def _sampled(r: Row) -> str:
    """N and the problems; of an average, whose benchmarks differ in N, the problems alone."""
    n = r.score.estimate
    part = f" of {r.score.rows}" if n.problems < r.score.rows else ""
    if r.benchmark == labels.AVERAGE:
        return f"{n.problems}{part} problems" if n.problems else ""
    return f"N {_samples(r)} x {n.problems}{part}" if n.problems else "n/a"


def _samples(r: Row) -> str:
    """Samples a problem of each training seed, those of all its evaluations together."""
    by_seed = Counter[int]()
    for c in r.score.cells:
        by_seed[c.record.cell.train_seed] += c.record.n
    return " or ".join(map(str, sorted(set(by_seed.values())))) or str(r.score.estimate.samples)


def _cut(r: Row) -> str:
    share = r.score.truncated
    return shown(share, 1) + " %" * (not math.isnan(share))


def _cell(first: Row, second: Row) -> str:
    small, a, b = [], first.score.percent, second.score.percent
    if "run" in (first.score.status, second.score.status):
        small.append((_interval(a.low, a.high), _interval(b.low, b.high)))
    if any(texts := (_sampled(first), _sampled(second))):
        small.append((texts[0], "") if texts[0] == texts[1] else texts)
    if not all(math.isnan(r.score.truncated) for r in (first, second)):
        small.append((f"cut {_cut(first)}", _cut(second)))
    ran = [r.score for r in (first, second) if r.score.cells]
    if first.unlike or second.unlike or len({name for s in ran for _, name in s.engines}) > 1:
        by, other = (", ".join(sorted({name for _, name in r.score.engines})) for r in (first, second))
        small.append((f"by {by}", "" if other == by else other))
    return _both(_number(first), _number(second), *small)


def _minus_paper(first: Row, second: Row) -> str:
    def points(r: Row) -> str:
        return "not run" if r.score.status == "not run" else signed(r.minus_paper)

    return _both(points(first), points(second), (first.paper_within or "n/a", second.paper_within or "n/a"))


def _header(first: str, benchmarks: Sequence[str]) -> list[str]:
    """Headings of the columns, the average last."""
    return [first, *(escape(labels.benchmark_label(b)) for b in benchmarks), f"Avg of {len(benchmarks)}"]


def _pairs(found: Iterable[T], benchmarks: Iterable[str]) -> list[tuple[T, T]]:
    """What a line shows: of each benchmark, the average last, both settings."""
    cell_at = {(x.benchmark, x.setting): x for x in found}
    return [(cell_at[b, FIRST], cell_at[b, SECOND]) for b in (*benchmarks, labels.AVERAGE)]


def main_grid(table: Table, section: Section) -> Grid:
    """The section in the paper's layout."""
    rows, notes = [], section.footnotes
    lines = groupby((r for r in table.rows if r.section == section.id), lambda r: (r.method, r.source))
    for (method, source), line in lines:
        label, pairs = escape(labels.method_label(method)), _pairs(line, section.benchmarks)
        rows.append([f"*{label}, paper*" if source == "paper" else label, *(_cell(*p) for p in pairs)])
        if any(r.paper_within for p in pairs for r in p):
            notes = [_BESIDE, *section.footnotes]
            rows.append([f"{label}, ours minus paper", *(_minus_paper(*p) for p in pairs)])
    return Grid(section.id, section.title, _header("Method", section.benchmarks), rows, notes)


def _difference(first: Difference, second: Difference) -> str:
    def points(d: Difference) -> str:
        if d.number.missing:
            return f"**{d.number.missing} samples missing**"
        return signed(d.number.mean) if d.number.known else d.status

    small, a, b = [], first.number, second.number
    if a.known or b.known:
        small = [
            (_interval(a.low, a.high), _interval(b.low, b.high)),
            (f"p {p_shown(first.p)}", p_shown(second.p)),
            (f"Holm {p_shown(first.p_holm)}", p_shown(second.p_holm)),
        ]
    return _both(points(first), points(second), *small)


def _tests(found: Sequence[Difference], families: Mapping[str, int]) -> list[str]:
    sizes = "; ".join(f"{name}: {families[name]} tests" for name in dict.fromkeys(d.family for d in found if d.family))
    tested, by_seed = [d for d in found if d.family], defaultdict[str, list[Difference]](list)
    for d in tested:
        if d.seeds:
            by_seed[", ".join(map(str, d.seeds))].append(d)
    alone = {(d.method, d.against) for d in tested if not d.seeds}
    which = list(by_seed)
    if alone or len(by_seed) > 1:
        which = [f"{seeds}: {_named_pairs(of_seeds, alone)}" for seeds, of_seeds in by_seed.items()]
    notes = [
        "In percentage points, paired by problem: the 95 % t interval, the two-sided p of a sign-flip permutation "
        f"test, and that p by Holm over its family ({sizes}). It compares these two checkpoints, not their "
        "methods trained anew."
    ]
    if which:
        text = "; ".join(which)
        notes.append(f"Paired by training seed too ({text}): interval and p are the t test's over problems and seeds.")
    return notes


def _named_pairs(found: Sequence[Difference], alone: Collection[tuple[str, str]]) -> str:
    """The methods that are compared, with the benchmarks where others of the pair are not: those in `alone`."""
    pairs = dict[tuple[str, str], dict[str, None]]()
    for d in found:
        pairs.setdefault((d.method, d.against), {})[labels.benchmark_label(d.benchmark)] = None
    named = [
        f"{labels.method_label(m)} minus {labels.method_label(a)}" + f" on {', '.join(on)}" * ((m, a) in alone)
        for (m, a), on in pairs.items()
    ]
    return ", ".join(named)


def difference_grid(table: Table, section: Section) -> Grid | None:
    """Differences of methods; None where no pair was run."""
    differences, rows = table.differences.get(section.id, []), []
    for (method, against), line in groupby(differences, lambda d: (d.method, d.against)):
        pairs = _pairs(line, section.benchmarks)
        if any(d.status != "not run" for p in pairs for d in p):
            label = f"{labels.method_label(method)} minus {labels.method_label(against)}"
            rows.append([escape(label), *(_difference(*p) for p in pairs)])
    title = f"Differences of methods: {section.title}"
    head = _header("Difference", section.benchmarks)
    return Grid(f"{section.id}-differences", title, head, rows, _tests(differences, table.families)) if rows else None


def gains_grid(table: Table) -> Grid:
    """The paper's gains beside their minimal detectable differences."""

    def text(g: paper.Gain) -> str:
        number = signed(g.points)
        return {"above both": f"**{number}**", "between": number, "below both": f"{number}†"}[g.reading]

    def counted(averages: bool) -> str:
        readings = [g.reading for g in table.gains if (g.benchmark == labels.AVERAGE) == averages]
        return ", ".join(f"{readings.count(reading)} {reading}" for reading in get_args(paper.Reading))

    averages, rows = [g for g in table.gains if g.benchmark == labels.AVERAGE], []
    for (size, baseline), line in groupby(table.gains, lambda g: (g.size, g.baseline)):
        cells = [
            _both(
                text(a), text(b), (_interval(a.mde_sampling, a.mde_unpaired), _interval(b.mde_sampling, b.mde_unpaired))
            )
            for a, b in _pairs(line, labels.PAPER_BENCHMARKS)
        ]
        rows.append([f"*{labels.PAPER_SIZES[size]}, STAPO minus {labels.method_label(baseline)}*", *cells])
    unpaired = sum(significant(g.points, g.se_unpaired) for g in averages)
    sampling = sum(significant(g.points, g.se_sampling) for g in averages)
    notes = [
        "Printed values of the paper, in percentage points. Below: the minimal detectable difference (80 % power, "
        "two-sided 5 %) by the number of problems and samples: by sampling alone, and with the models' problems "
        "independent. Bold: above both. †: below both. The spread between training runs is in neither.",
        f"On averages: {counted(True)}. On single benchmarks: {counted(False)}.",
        f"Significance at a two-sided 5 % asks for less, 1.96 standard errors. Of the {len(averages)} averages "
        f"{unpaired} have it with the models' problems independent, {sampling} by sampling alone.",
    ]
    title = "The paper's gains beside what its design can tell from noise"
    return Grid("gains", title, _header("Gain", tuple(labels.PAPER_BENCHMARKS)), rows, notes)


def all_grids(table: Table) -> list[Grid]:
    """Every section with its differences, then the gains."""
    pairs = [(main_grid(table, s), difference_grid(table, s)) for s in table.sections]
    return [*(g for pair in pairs for g in pair if g is not None), gains_grid(table)]


def stamp(table: Table) -> str:
    """What the table was made of; the same in every form."""
    text = f"Generated by stapo-repro tables from {len(table.records)} records, inputs {table.inputs_sha256[:16]}."
    return f"{labels.SYNTHETIC} {text}" if table.synthetic else text


def introduction(table: Table) -> str:
    """How to read it."""
    return (
        f"Italic rows are the paper's printed values ({table.paper}); the others are this suite's own runs. "
        f"Not run: no record exists. {_LEGEND}"
    )


def state_of_paper_cells(table: Table) -> str:
    """One sentence: how many of the paper's models were run, whole and at both settings."""
    models: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for r in table.rows:
        if r.size in labels.PAPER_SIZES and r.source == "ours" and r.method in labels.METHODS:
            models[r.size, r.method].append(r)
    run = sum(all(r.score.status == "run" and r.complete for r in rows) for rows in models.values())
    return f"Of the paper's {len(models)} models (three sizes, four methods), {run} have been run with this suite."


def lines(g: Grid) -> list[str]:
    """A grid with its notes as lines of Markdown."""
    return [*grid(g.header, g.rows), *(["", *(f"- {escape(n)}" for n in g.notes)] if g.notes else [])]


def to_markdown(table: Table, toys: bool | None = None) -> str:
    """All sections, or those of toys, or all others."""
    title = "Main table" if not toys else "Toys: tiny models on problems of this project's own"
    out = [f"# {title}", "", f"{escape(stamp(table))} {escape(introduction(table))}", ""]
    is_toy = {s.id: is_miniature_size(s.size) for s in table.sections}
    for g in all_grids(table):
        if toys is not None and is_toy.get(g.id.removesuffix("-differences"), False) != toys:
            continue
        level = "###" if g.id.endswith("-differences") else "##"
        out += [f"{level} {escape(g.title)}", "", *lines(g), ""]
    return "\n".join(out)


def readme_block(table: Table) -> str:
    """The README's table: real models, whose base rows say so where they were not run, beside the paper's rows."""
    real, rows, ours = list(labels.PAPER_BENCHMARKS), [], list[Section]()
    for s in (s for s in table.sections if s.size in labels.REAL_SIZES | labels.PAPER_SIZES):
        part = main_grid(table, s)
        ours += [s] if s.size in labels.REAL_SIZES else []
        for label, *cells in part.rows:
            if s.size in labels.REAL_SIZES or set(cells) != {"not run"}:
                mark = "*" if label.startswith("*") else ""
                rows.append([f"{mark}{escape(labels.size_label(s.size))}: {label.removeprefix('*')}", *cells])
    file = "[results/tables/main_table.md](results/tables/main_table.md)"
    common = [note for note in (ours[0].footnotes if ours else ()) if all(note in s.footnotes for s in ours)]
    what = "Base model: before training. Qwen2.5-Coder: instruction-tuned, from 4-bit weights; the paper's: not tuned."
    warned = [f"{labels.size_label(s.size)}: {note}" for s in ours for note in s.warnings if note not in common]
    own = " ".join([what, *(escape(note) for note in (*warned, *common)), ""]) if ours else ""
    more = (
        f"Italic: as the paper prints it. {own}{state_of_paper_cells(table)} All sections, notes, differences: {file}."
    )
    return "\n".join([*grid(_header("Model", real), rows), "", f"{_LEGEND} {more}", ""])


COLUMNS = {
    Row: (
        "section size method source benchmark setting score.status score.shown score.percent.mean score.percent.se "
        "score.percent.low score.percent.high score.percent.se_problems score.percent.se_seeds "
        "score.percent.se_sampling score.percent.bootstrap_low score.percent.bootstrap_high score.seeds minus_paper "
        "paper_within score.estimate.problems score.rows score.estimate.samples score.fewest_samples "
        "score.estimate.missing score.truncated best score.records"
    ),
    Difference: (
        "method against benchmark setting status points=number.mean number.se number.low number.high test p p_holm "
        "p_sign_flip=number.sign_flip family number.problems number.missing seeds"
    ),
}
"""What the files hold of a row, in percent, and of a difference, in points."""


def to_json(table: Table) -> str:
    """The full data: every value with its interval and the record files that it came from."""

    def plain(value: object) -> dict[str, Any]:
        return written(value, COLUMNS[type(value)]) if type(value) in COLUMNS else vars(value)

    return json.dumps(table, default=plain, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


_COUNTS = ("problems", "rows", "samples", "fewest_samples", "missing")


def to_csv(table: Table) -> str:
    """One line a number; counts are empty where there is no record. The last column has the start of the inputs'
    SHA-256, or says "synthetic"."""
    lines = [written(row, COLUMNS[Row]) for row in table.rows]
    names = [name for name in lines[0] if name != "shown"]
    inputs = "synthetic" if table.synthetic else table.inputs_sha256[:16]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, "inputs"])
    for line in lines:
        values = ("" if n in _COUNTS and not line["records"] else line[n] for n in names)
        texts = (";".join(map(str, v)) if isinstance(v, dict | list) else int(v) if v is True or v is False else v
                 for v in values)  # fmt: skip
        writer.writerow([*("" if t is None else t for t in texts), inputs])
    return out.getvalue()


_LATEX = {c: f"\\{c}" for c in "{}$&#%_"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "²": "$^2$",
    "†": r"$\dagger$",
}


def latex(markdown: str) -> list[str]:
    """A cell, label or note of a grid as lines of LaTeX: the marks stay, every other character is text."""
    marks = {"bold": r"\textbf{%s}", "italic": r"\emph{%s}", "small": r"{\tiny %s}"}
    lines = [""]
    for text, mark in spans(markdown):
        lines += [""] if mark == "small" else []
        escaped = "".join(_LATEX.get(c, c) for c in text)
        lines[-1] += marks.get(mark, "%s") % re.sub(r"(?<![\w.])([+-])(?=\d)", r"$\1$", escaped)
    return lines


def _latex_rows(row: Sequence[str]) -> list[str]:
    """A row of a grid; each line of small print is a row of its own, and a little space ends them."""
    columns = list(zip_longest(*map(latex, row), fillvalue=""))
    return [*(" & ".join(cells) + r" \\" for cells in columns), *([r"\addlinespace"] if len(columns) > 1 else [])]


def to_latex(table: Table) -> str:
    r"""Every grid as a `table` of its own, with booktabs and graphicx."""
    head = latex(escape(f"{stamp(table)} {introduction(table)} {state_of_paper_cells(table)}"))[0]
    out = ["% Needs booktabs and graphicx.", rf"\par\noindent {head}\par"]
    for g in all_grids(table):
        out += [
            r"\begin{table}[p]\centering\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{latex(escape(g.title))[0]}}}\label{{tab:stapo-{re.sub('[^a-z0-9]+', '-', g.id.lower())}}}",
            r"\smallskip\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{@{{}}l{'c' * (len(g.header) - 1)}@{{}}}}\toprule",
            *_latex_rows(g.header),
            r"\midrule",
            *(line for row in g.rows for line in _latex_rows(row)),
            r"\bottomrule\end{tabular}}",
            *([r"\par\smallskip\begin{minipage}{\linewidth}\tiny\raggedright"] if g.notes else []),
            *(latex(escape(n))[0] + r"\par" for n in g.notes),
            (r"\end{minipage}" if g.notes else "") + r"\end{table}",
        ]
    return "\n".join(out) + "\n"


FILES = {
    "main_table.md": partial(to_markdown, toys=False),
    "toys.md": partial(to_markdown, toys=True),
    "main_table.csv": to_csv,
    "main_table.json": to_json,
    "main_table.tex": to_latex,
}
"""What each file of tables holds."""
