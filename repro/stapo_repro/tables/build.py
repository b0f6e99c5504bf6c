"""The table from all records, with the footnotes that a reader must know before believing a number.

Layout of the paper's main table: a section a model size, a row a method, a column a benchmark, both decoding settings
in each cell, the unweighted average last. The miniature has sections of its own. Missing data is a status, never a
blank or a zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from stapo_repro import labels
from stapo_repro.paper import PaperTable
from stapo_repro.read import Loaded, final_step, inputs_hash
from stapo_repro.tables import comparisons, values
from stapo_repro.tables.model import Section, Table
from stapo_repro.tables.scores import Score, ScoreKey, score_all
from stapo_results.schema import CellRecord
from stapo_results.sizes import SMALL

SYNTHETIC = "SYNTHETIC RECORDS, made up for a test."


def footnotes(scores: Mapping[ScoreKey, Score]) -> list[str]:
    """Sentences in a fixed order, read from the records; empty where nothing was run."""
    if not scores:
        return []
    records = [c.record for s in scores.values() for c in s.cells]
    return [
        "Accuracy in percent at temperature 1.0 / top-p 1.0, in brackets at 0.7 / 0.9; below it the 95 % interval (t, "
        "clustered by problem; exact where every problem is all right or all wrong). Rounded half to even.",
        *_problems(scores),
        *scoring(records),
        *_unlike(records),
        *_models(records),
        provenance(records),
    ]


def _join(items: set[str]) -> str:
    return ", ".join(sorted(items))


def _problems(scores: Mapping[ScoreKey, Score]) -> list[str]:
    """How many problems and samples; then, loudly, which are missing."""
    shapes: dict[str, set[str]] = defaultdict(set)
    missing = []
    for (_, method, benchmark, setting), s in scores.items():
        part = f" of {s.rows}" if s.estimate.problems != s.rows else ""
        seeds = f" x {len(s.by_seed)} training seeds" if len(s.by_seed) > 1 else ""
        samples = s.estimate.samples // len(s.by_seed)
        shapes[benchmark].add(f"{s.estimate.problems}{part} problems x {samples} samples{seeds}")
        if s.estimate.missing:
            missing.append(
                f"MISSING SAMPLES: {labels.method_label(method)} on {labels.benchmark_label(benchmark)} at {setting} "
                f"lacks {s.estimate.missing} of {s.estimate.problems * s.estimate.samples} samples; its value is over "
                "those present and is never marked best."
            )
    text = "; ".join(f"{labels.benchmark_label(b)}: {' or '.join(sorted(v))}" for b, v in sorted(shapes.items()))
    return [f"{text}.", *missing]


def scoring(records: list[CellRecord]) -> list[str]:
    """By rule or by judge, and the notes on the judge."""
    by = {r.scored_by for r in records}
    if len(by) > 1:
        groups = {b: _join({labels.method_label(r.cell.method) for r in records if r.scored_by == b}) for b in by}
        said = "NOT SCORED ALIKE: " + "; ".join(f"{k}: {v}" for k, v in sorted(groups.items())) + "."
    else:
        said = "Scored by the rule" + (" alone." if by == {"rule"} else ", then by the judge where the rule fails.")
    return [said, *(n if n.endswith(".") else f"{n}." for n in sorted({r.judge_note for r in records if r.judge_note}))]


def _unlike(records: list[CellRecord]) -> list[str]:
    """What differs between records that a reader compares; fields that older records lack are left out."""
    notes, variants = [], set()
    copies: dict[str, set[str]] = defaultdict(set)
    for r in records:
        name = labels.benchmark_label(r.cell.benchmark)
        copies[name].add(r.benchmark_sha256)
        if r.variant:
            variants.add(f"{name} is a variant: {r.variant}.")
        if r.text_variants:
            variants.add(f"{name}: {r.text_variants} problems with another text than the registered copy.")
    for name, hashes in sorted(copies.items()):
        if len(hashes) > 1:
            notes.append(f"NOT THE SAME COPY of {name}: {len(hashes)} sets of gold answers.")
    for what, found in (
        ("GRADED", {r.grader for r in records if r.grader}),
        ("JUDGED", {r.judge for r in records if r.judge and r.scored_by == "rule+judge"}),
        ("LIMITED", {f"{r.max_tokens} tokens" for r in records}),
    ):
        if len(found) > 1:
            notes.append(f"NOT {what} ALIKE: {'; '.join(sorted(found))}.")
    return [*notes, *sorted(variants)]


def _models(records: list[CellRecord]) -> list[str]:
    steps: dict[str, set[int]] = defaultdict(set)
    seeds: dict[str, set[int]] = defaultdict(set)
    for r in records:
        if r.cell.step != "base":
            steps[r.cell.method].add(r.cell.step)
            seeds[r.cell.method].add(r.cell.train_seed)
    notes = []
    if steps:
        order = dict.fromkeys(m for m in (*labels.METHODS, *sorted(steps)) if m in steps)
        text = (f"{labels.method_label(m)} step {' and '.join(map(str, sorted(steps[m])))}" for m in order)
        notes.append(f"Evaluated checkpoints: {', '.join(text)}.")
    if several := [
        f"{labels.method_label(m)}: seeds {_join(set(map(str, s)))}" for m, s in seeds.items() if len(s) > 1
    ]:
        notes.append(
            f"Several training seeds ({', '.join(sorted(several))}): the interval covers the choice of problems and of "
            "seeds, SE² = SE² over problems + SE² over seeds; both, and each seed's score, stand in the JSON."
        )
    if two := {labels.method_label(m) for m, s in seeds.items() if len(s) == 2}:
        notes.append(
            f"Two training seeds ({_join(two)}) are few: where their standard error is three to six times that over "
            "problems, such an interval holds the truth in 88 of 100 simulations, not in 95."
        )
    if single := {labels.method_label(m) for m, s in seeds.items() if len(s) == 1}:
        notes.append(
            f"One training seed ({_join(single)}): the interval covers the choice of problems and the sampling, not "
            "the spread between training runs."
        )
    return notes


def provenance(records: list[CellRecord]) -> str:
    """Engines and code."""
    code = {r.code_commit[:12] + (" with uncommitted changes" if r.code_dirty else "") for r in records}
    engines = _join({r.engine for r in records})
    bitwise = "deterministic" if all(r.deterministic for r in records) else "not bitwise repeatable"
    synthetic = f" {SYNTHETIC}" if any(r.synthetic for r in records) else ""
    return f"Engine {engines} ({bitwise}), code {_join(code)}, {len(records)} records.{synthetic}"


def _section(
    id: str, title: str, size: str, benchmarks: Sequence[str], scores: Mapping[ScoreKey, Score], *,
    paper: PaperTable | None = None, miniature: bool = False, all_methods: bool = True,
) -> Section:  # fmt: skip
    """`all_methods`: those without a record have a row that says so."""
    own = {k: v for k, v in scores.items() if k[0] == size and k[2] in benchmarks}
    found = {k[1] for k in own}
    methods = [m for m in labels.METHODS if all_methods or m in found]
    methods += sorted(found - {labels.BASE, *labels.METHODS})
    rows = [values.our_row(own, size, labels.BASE, benchmarks, None)] if all_methods or labels.BASE in found else []
    for m in methods:
        if paper is not None and m in labels.METHODS:
            rows.append(values.paper_row(paper, size, m))
        rows.append(values.our_row(own, size, m, benchmarks, paper))
    values.mark_best(rows, [*benchmarks, labels.AVERAGE])
    return Section(
        id=id,
        title=title,
        miniature=miniature,
        size=size,
        benchmarks=list(benchmarks),
        rows=rows,
        differences=comparisons.differences(own, id, size, methods, benchmarks),
        footnotes=footnotes(own),
    )


def build(cells: Sequence[Loaded], paper: PaperTable) -> Table:
    """The whole table from all records.

    Raises:
        RecordError: records that cannot be pooled (see `scores.score`).
    """
    final, earlier = final_step(cells)
    scores = score_all(final)
    mini, real = list(labels.MINI_BENCHMARKS), list(labels.PAPER_BENCHMARKS)
    title = "Miniature (a tiny model on additions; not a result of the paper)"
    sections = [_section("miniature", title, labels.MINI, mini, scores, miniature=True)]
    if any(k[0] == labels.MINI and k[2] in real for k in scores):
        title = "Miniature model on the paper's benchmarks (shows that the path works; not a result)"
        sections.append(_section("miniature-real", title, labels.MINI, real, scores, miniature=True))
    title = f"{labels.size_label(SMALL)}, a real small model, on sums and word problems (not a result of the paper)"
    sections.append(_section("small", title, SMALL, list(labels.benchmarks_of(SMALL)), scores))
    for size, label in labels.PAPER_SIZES.items():
        title = f"RL from the {label} base model"
        sections.append(_section(size, title, size, real, scores, paper=paper))
    for size in sorted({k[0] for k in scores} - labels.PAPER_SIZES.keys() - {labels.MINI, SMALL}):
        benchmarks = sorted({k[2] for k in scores if k[0] == size})
        sections.append(_section(size, f"Other models: {size}", size, benchmarks, scores, all_methods=False))
    sections, families = comparisons.adjust(sections)
    if earlier:
        note = f"{len(earlier)} records of earlier checkpoints are not in this table."
        sections[0].footnotes.append(note)
    return Table(
        schema_version=2,
        inputs_sha256=inputs_hash(cells, paper.model_dump_json()),
        synthetic=any(c.record.synthetic for c in cells),
        paper=paper.source,
        records=[{"cell": c.record.cell.id, "path": c.path, "sha256": c.sha256} for c in cells],
        sections=sections,
        families=families,
        gains=comparisons.paper_gains(paper),
    )
