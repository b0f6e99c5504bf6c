"""The table from all records.

Layout of the paper's main table: a section a model size, a row a method, a column a benchmark, both decoding settings
in each cell, the unweighted average last. The miniature has sections of its own. Missing data is a status, never a
blank or a zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stapo_repro import labels
from stapo_repro.paper import PaperTable
from stapo_repro.records.reading import Loaded, final_step, inputs_hash
from stapo_repro.tables import differences, notes, values
from stapo_repro.tables.gains import paper_gains
from stapo_repro.tables.model import Section, Table
from stapo_repro.tables.scores import Score, ScoreKey, score_all


def _section(
    id: str, title: str, size: str, benchmarks: Sequence[str], scores: Mapping[ScoreKey, Score], *,
    paper: PaperTable | None = None, miniature: bool = False,
) -> Section:  # fmt: skip
    own = {k: v for k, v in scores.items() if k[0] == size and k[2] in benchmarks}
    methods = [*labels.METHODS, *sorted({k[1] for k in own} - {labels.BASE, *labels.METHODS})]
    rows = [values.our_row(own, size, labels.BASE, benchmarks, None)]
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
        differences=differences.differences(own, id, size, methods, benchmarks),
        footnotes=notes.footnotes(own),
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
    for size, label in labels.PAPER_SIZES.items():
        title = f"RL from the {label} base model"
        sections.append(_section(size, title, size, real, scores, paper=paper))
    for size in sorted({k[0] for k in scores} - labels.PAPER_SIZES.keys() - {labels.MINI}):
        benchmarks = sorted({k[2] for k in scores if k[0] == size})
        sections.append(_section(size, f"Other models: {size}", size, benchmarks, scores))
    sections, families = differences.adjust(sections)
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
        gains=paper_gains(paper),
    )
