"""The main table from all records: one row a printed number, and what a reader must know before believing it.

Layout of the paper's main table: a section a model size, a line a method, a column a benchmark, both decoding settings
in each cell, the unweighted average last. Real models come first, toys last. Missing data is a status, never a blank or
a zero.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Literal

from stapo_repro import labels, paper
from stapo_repro.paper import PaperTable
from stapo_repro.read import Loaded, final_step, inputs_hash, weights_of
from stapo_repro.scores import (
    Difference,
    Score,
    ScoreKey,
    adjust,
    average,
    differences,
    engine_of,
    preset_of,
    score_all,
    unlike,
)
from stapo_repro.text import as_written, code_shown
from stapo_results.benchmarks import registry
from stapo_results.schema import MAX_TOKENS, SETTINGS, CellRecord
from stapo_results.sizes import is_miniature_size
from stapo_results.statistics import Number

Within = Literal["within", "outside", "not judged", ""]


@dataclass
class Row:
    """One cell of the table; the CSV's line.

    Attributes:
        source: whose number: this suite's or the paper's, as printed.
        benchmark: or "avg".
        minus_paper: minus the paper's printed value, in points; None where there is none to compare with.
        paper_within: whether the paper's value lies in our 95 % interval; "not judged" where samples or problems are
            missing or other ones, or training step, prompt, limit of tokens or scoring are not the paper's.
        best: the highest complete value of our rows in its column, where at least two can be compared.
        unlike: several engines sampled its column.
    """

    section: str
    size: str
    method: str
    source: Literal["ours", "paper"]
    benchmark: str
    setting: str
    score: Score
    minus_paper: float | None = None
    paper_within: Within = ""
    best: bool = False
    unlike: bool = False

    @property
    def complete(self) -> bool:
        n = self.score.estimate
        return self.score.status == "run" and not n.missing and n.problems == self.score.rows


@dataclass(frozen=True)
class Section:
    """A block of the table: the heading, the columns before the average, and its notes; `warnings` are those of them
    without which its numbers mislead."""

    id: str
    title: str
    size: str
    benchmarks: list[str]
    footnotes: list[str]
    warnings: list[str]


@dataclass(frozen=True)
class Table:
    """Everything that the written forms show.

    `synthetic`: a record was made up for a test. `families` says of each family of tests how many there are; `gains`
    are the paper's own. A difference belongs to the section whose id is its key.
    """

    schema_version: int
    inputs_sha256: str
    synthetic: bool
    paper: str
    records: list[dict[str, str]]
    sections: list[Section]
    rows: list[Row]
    differences: dict[str, list[Difference]]
    families: dict[str, int]
    gains: list[paper.Gain]


def _against_paper(row: Row, printed: str) -> None:
    """Our value beside the paper's; judged where nothing is missing, and problems and evaluation are its."""
    if row.score.status != "run":
        return
    known, n, theirs = registry(), as_written(row.score.percent), float(printed)
    records = [c.record for c in row.score.cells]
    same = all(
        r.benchmark_rows == known[r.cell.benchmark].rows
        and not (r.variant or r.text_variants or r.chat or r.context_limit or r.options_refused)
        and (r.max_tokens, r.scored_by) == (MAX_TOKENS, "rule+judge")
        and (preset_of(r) in (None, "ours") and r.cell.step in ("base", paper.setting("steps")))
        for r in records
    )
    row.minus_paper, row.paper_within = n.mean - theirs, "not judged"
    if n.has_interval and row.complete and same:
        row.paper_within = "within" if n.low <= theirs <= n.high else "outside"


def _mark_best(rows: Iterable[Row]) -> None:
    """Ties are all marked; none is where methods were not evaluated alike."""
    columns: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for r in rows:
        if r.source == "ours" and r.score.cells:
            columns[r.benchmark, r.setting].append(r)
    for column in columns.values():
        complete = [r for r in column if r.complete]
        top = max((Decimal(r.score.shown) for r in complete), default=None)
        differing = set[str]().union(*(unlike(a.score, b.score) for a, b in combinations(column, 2)))
        for r in column:
            r.unlike = "engines" in differing
            r.best = r.complete and len(complete) > 1 and not differing and Decimal(r.score.shown) == top


def _rows(
    section: str, size: str, method: str, benchmarks: Sequence[str], scores: Mapping[ScoreKey, Score],
    printed: PaperTable,
) -> list[Row]:  # fmt: skip
    """A method's rows, those of the paper first where it prints the method."""
    ours, theirs = [], []
    for name in (*benchmarks, labels.AVERAGE):
        for s in SETTINGS:
            parts = [scores.get((size, method, b, s), Score()) for b in benchmarks if name in (b, labels.AVERAGE)]
            score = average(parts) if name == labels.AVERAGE else parts[0]
            row = Row(section, size, method, "ours", name, s, score)
            ours.append(row)
            if (line := printed.get(size, method, s)) is not None:
                _against_paper(row, line.values[name])
                samples = printed.samples_per_problem.get(name, 0)
                problems = registry()[name].rows if samples else 0
                n = Number(mean=float(line.values[name]) / 100, problems=problems, samples=samples)
                score = Score("paper", line.values[name], n, problems)
                theirs.append(Row(section, size, method, "paper", name, s, score, best=name in line.best))
    return theirs + ours


def footnotes(scores: Mapping[ScoreKey, Score], warnings: Sequence[str]) -> list[str]:
    """What a reader must know before believing a section, read from the records; empty where nothing was run."""
    if not scores:
        return []
    records = [c.record for s in scores.values() for c in s.cells]
    limits = {r.max_tokens for r in records}
    limit = [f"Responses of at most {max(limits):,} tokens."] if len(limits) == 1 else []
    steps = {r.cell.step for r in records if r.cell.step != "base"}
    step = [f"Trained models at step {max(map(int, steps)):,}."] if len(steps) == 1 else []
    return [*_seeds(scores), *step, *scoring(records), *limit, *warnings, provenance(records)]


def _warnings(scores: Mapping[ScoreKey, Score]) -> list[str]:
    """Samples that are missing, seeds that are one model, and what differs between records that a reader compares."""
    return [
        *_seeds_differ(scores),
        *_twins(scores),
        *_missing(scores),
        *_unlike([c.record for s in scores.values() for c in s.cells]),
    ]


def _join(items: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, items)))


def _trainings(scores: Mapping[ScoreKey, Score]) -> dict[str, dict[tuple[int, ...], list[str]]]:
    """Each trained method's training seeds, with the columns that they have; several where columns have other ones."""
    found = defaultdict[str, dict[tuple[int, ...], list[str]]](dict)
    for (_, method, benchmark, setting), s in scores.items():
        if not s.is_base:
            column = f"{labels.benchmark_label(benchmark)} at {setting}"
            found[labels.method_label(method)].setdefault(tuple(sorted(s.by_seed)), []).append(column)
    return found


def _seeds(scores: Mapping[ScoreKey, Score]) -> list[str]:
    """The number of seeds of each method whose columns have the same (`_seeds_differ` has the rest)."""
    trainings = _trainings(scores)
    texts = [f"{method} {len(seeds)}" for method, of in trainings.items() if len(of) == 1 for seeds in of]
    notes = [f"Training seeds: {', '.join(texts)}."] if texts else []
    if any(len(seeds) == 2 for of in trainings.values() for seeds in of):
        notes.append(
            "With two seeds an interval held the truth in as few as 88 of 100 simulations (docs/statistics.md)."
        )
    return notes


def _seeds_differ(scores: Mapping[ScoreKey, Score]) -> list[str]:
    return [
        f"SEEDS DIFFER: {method}: "
        + "; ".join(f"seed {_join(seeds)} on {', '.join(columns)}" for seeds, columns in of.items())
        + "."
        for method, of in _trainings(scores).items()
        if len(of) > 1
    ]


def _twins(scores: Mapping[ScoreKey, Score]) -> list[str]:
    """Models that should be several and have equal weights: seeds of a method, methods, or a method and its base."""
    several = defaultdict[str, set[str]](set)
    for s in scores.values():
        for r in (c.record for c in s.cells):
            seed = "" if s.is_base else f" seed {r.cell.train_seed}"
            several[weights_of(r)].add(f"{labels.method_label(r.cell.method)}{seed}")
    return [
        f"ONE MODEL UNDER SEVERAL NAMES: {_join(twins)} have equal weights and are no independent trainings."
        for weights, twins in several.items()
        if weights and len(twins) > 1
    ]


def _missing(scores: Mapping[ScoreKey, Score]) -> list[str]:
    return [
        f"MISSING SAMPLES: {labels.method_label(method)} on {labels.benchmark_label(benchmark)} at {setting}: "
        f"{e.missing} of {e.problems * e.samples}; the value is over those present and never marked best."
        for (_, method, benchmark, setting), s in scores.items()
        if (e := s.estimate).missing
    ]


def _who(records: Sequence[CellRecord], of: Callable[[CellRecord], str]) -> str:
    """The values of `of`, each with its methods; "" where all have one. A record that has none is left out."""
    by: dict[str, set[str]] = defaultdict(set)
    for r in (r for r in records if of(r)):
        by[of(r)].add(labels.method_label(r.cell.method))
    return "; ".join(f"{k}: {_join(v)}" for k, v in sorted(by.items())) if len(by) > 1 else ""


def scoring(records: Sequence[CellRecord]) -> list[str]:
    """By rule or by judge, and the notes on the judge."""
    texts = {"rule": "Scored by the rule alone.", "rule+judge": "Scored by the rule, then by the judge where it fails."}
    ways = {texts[r.scored_by] for r in records}
    return [
        *(ways if len(ways) == 1 else ()),
        *(n if n.endswith(".") else f"{n}." for n in sorted({r.judge_note for r in records if r.judge_note})),
    ]


def _unlike(records: Sequence[CellRecord]) -> list[str]:
    """What differs between records that a reader compares; fields that older records lack are left out."""
    golds: dict[str, set[str]] = defaultdict(set)
    cells: dict[str, list[CellRecord]] = defaultdict(list)
    variants = set()
    for r in records:
        name = labels.benchmark_label(r.cell.benchmark)
        golds[name].add(r.benchmark_sha256)
        cells[f"{name} at {r.cell.setting}"].append(r)
        if r.variant:
            variants.add(f"{name} is a variant: {r.variant}.")
        who = f"{labels.method_label(r.cell.method)} on {name} at {r.cell.setting}"
        if (limit := r.context_limit) and r.cell.setting in SETTINGS:
            variants.add(f"SHORTER RESPONSES: {who}: the model has {limit.context:,} positions, which left some "
                         f"responses less than {limit.asked:,} tokens.")  # fmt: skip
        if r.options_refused:
            variants.add(f"OTHER SAMPLING: {who}: the endpoint did not take {_join(r.options_refused)}, so its own "
                         "defaults counted.")  # fmt: skip
        if r.chat and r.cell.setting in SETTINGS:
            variants.add(f"{who}: the prompt has more than the paper's, {json.dumps(r.chat, ensure_ascii=False)}.")
        if r.text_variants:
            variants.add(f"{name}: {r.text_variants} problems with another text than the registered copy.")
    sampled: dict[str, list[str]] = defaultdict(list)
    for name, of in sorted(cells.items()):
        if who := _who(of, engine_of):
            sampled[who].append(name)
    values: dict[str, Callable[[CellRecord], str]] = {
        "SCORED": lambda r: r.scored_by,
        "GRADED": lambda r: r.grader or "",
        "JUDGED": lambda r: (r.judge or "") if r.scored_by == "rule+judge" else "",
        "PROMPTED": lambda r: json.dumps(r.chat, ensure_ascii=False) if r.chat else "as the paper says",
        "LIMITED": lambda r: f"{r.max_tokens} tokens",
        "TRAINED": lambda r: "" if r.cell.step == "base" else f"step {r.cell.step}",
    }
    return [
        *(f"NOT SAMPLED ALIKE on {', '.join(names)}: {who}." for who, names in sampled.items()),
        *(f"NOT THE SAME COPY of {n}: {len(v)} sets of gold answers." for n, v in sorted(golds.items()) if len(v) > 1),
        *(f"NOT {what} ALIKE: {who}." for what, of in values.items() if (who := _who(records, of))),
        *sorted(variants),
    ]


def provenance(records: Sequence[CellRecord]) -> str:
    """Engines and code."""
    code = {code_shown(r.code_commit, bool(r.code_dirty)) for r in records}
    bitwise = "deterministic" if all(r.deterministic for r in records) else "not bitwise repeatable"
    made_up = f" {labels.SYNTHETIC}" if any(r.synthetic for r in records) else ""
    engines = _join({r.engine for r in records})
    return (
        f"Engine {engines} ({bitwise}), code {_join(code)}, {len(records)} record{'s' * (len(records) > 1)}.{made_up}"
    )


def build(cells: Sequence[Loaded], printed: PaperTable) -> Table:
    """The whole table from all records.

    Raises:
        RecordError: records that cannot be pooled (see `scores.score`).
    """
    final, earlier = final_step(cells)
    scores = score_all(final)
    sections: list[Section] = []
    rows: list[Row] = []
    compared: dict[str, list[Difference]] = {}

    every, mini, real = (labels.BASE, *labels.METHODS), list(labels.MINI_BENCHMARKS), list(labels.PAPER_BENCHMARKS)

    def add(id: str, title: str, size: str, benchmarks: Sequence[str], always: Sequence[str] = every) -> None:
        """`always`: models whose rows say so where they have no record."""
        of_section = {k: v for k, v in scores.items() if k[0] == size and k[2] in benchmarks}
        recorded = {k[1] for k in of_section}
        methods = [m for m in labels.METHODS if m in always or m in recorded]
        methods += sorted(recorded - {labels.BASE, *labels.METHODS})
        base = [labels.BASE] if labels.BASE in always or labels.BASE in recorded else []
        section_rows: list[Row] = []
        for m in (*base, *methods):
            section_rows += _rows(id, size, m, benchmarks, of_section, printed)
        _mark_best(section_rows)
        rows.extend(section_rows)
        left = sum(c.record.cell.size == size for c in earlier)
        warnings = _warnings(of_section)
        notes = [f"{left} records of earlier checkpoints are not in this table."] if left else []
        shown_here = {*mini, *real} if size == labels.MINI else {*benchmarks}
        outside = {
            f"{b} at {at}"
            for at_size, _, b, at in scores
            if at_size == size and (b not in shown_here or at not in SETTINGS)
        }
        if outside:
            notes.append(f"On record and not shown: {_join(outside)}. Shown are {_join(SETTINGS)} on these benchmarks.")
        sections.append(
            Section(id, title, size, list(benchmarks), [*footnotes(of_section, warnings), *notes], warnings)
        )
        table = "the paper's three sizes" if size in labels.PAPER_SIZES else id
        compared[id] = differences(of_section, size, methods, benchmarks, table)

    for size, label in labels.REAL_SIZES.items():
        add(size, f"{label}, from 4-bit weights (none of the paper's models)", size, real, [labels.BASE])
    for size, label in labels.PAPER_SIZES.items():
        add(size, f"RL from the {label} base model", size, real)
    sizes = {k[0] for k in scores} - {labels.MINI, *labels.REAL_SIZES, *labels.PAPER_SIZES}
    for size in sorted(sizes, key=lambda size: (is_miniature_size(size), size)):
        add(size, f"Other models: {size}", size, sorted({k[2] for k in scores if k[0] == size}), [])
    add("miniature", "Miniature (a tiny model on additions; not a result of the paper)", labels.MINI, mini)
    if any(k[0] == labels.MINI and k[2] in real for k in scores):
        title = "Miniature model on the paper's benchmarks (shows that the path works; not a result)"
        add("miniature-real", title, labels.MINI, real)
    adjusted, families = adjust(compared)
    return Table(
        schema_version=4,
        inputs_sha256=inputs_hash(cells, printed.model_dump_json()),
        synthetic=any(c.record.synthetic for c in cells),
        paper=printed.source,
        records=[{"cell": c.record.cell.id, "path": c.path, "sha256": c.sha256} for c in cells],
        sections=sections,
        rows=rows,
        differences=adjusted,
        families=families,
        gains=paper.gains(printed),
    )
