"""The whole analysis of one token log, as files."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stapo_repro.figures.canvas import KINDS, Drawn, Sketch, save, style
from stapo_repro.tokens import cases as cases_of
from stapo_repro.tokens import clouds, density, figures, page, quadrants, ranking, silencing, tables, taxonomy
from stapo_repro.tokens.cases import Case
from stapo_repro.tokens.labelling import Labels
from stapo_repro.tokens.material import Material
from stapo_repro.tokens.texts import marked

_KEPT = 500  # different tokens a part in the files; the page's bars have fewer


@dataclass(frozen=True)
class Analysis:
    """The files by name, and what the command prints."""

    files: dict[str, bytes]
    said: tuple[str, ...]


def build(material: Material, labels: Labels | None = None, top: int = 30) -> Analysis:
    """Everything but the sample for labelling.

    Args:
        top: how many cases are shown.

    Raises:
        RunFailed: the log contradicts the run's metrics (`silencing.by_step`).
    """
    counts = silencing.by_step(material)
    found = quadrants.build(material)
    region, by_step = silencing.spread(material), silencing.thresholds(material)
    words = ranking.ranked(material)
    cases = cases_of.choose(material, top)
    by_id = labels.by_id if labels is not None else {}
    with style():
        drawn = [save(sketch) for sketch in sketches(material)]
    table = taxonomy.build(material, found, labels)
    steps, ranked = _steps(material, counts), _ranked(material, words)
    heading = material.heading("Cases of rare tokens")
    texts = {
        "index.html": page.to_html(material, counts, table, steps, cases, drawn, labels),
        "taxonomy.tex": tables.to_latex(table),
        "cases.md": tables.cases_markdown(heading, cases, by_id),
        "cases.tex": tables.cases_latex(heading, cases, by_id),
        "cases.csv": tables.to_csv([_case_record(c, by_id) for c in cases]),
        "tokens_document.tex": tables.document(),
    }
    for sheet in (table, steps, ranked):
        texts |= {f"{sheet.name}.md": tables.to_markdown(sheet), f"{sheet.name}.csv": tables.to_csv(sheet.records)}
    value = {
        "schema_version": 1,
        "run_id": material.run.run_id if material.run is not None else None,
        "provenance": dict(page.provenance(material, counts)),
        "inputs": dict(sorted(material.inputs.items())),
        "facts": material.facts.model_dump(mode="json"),
        "comparison": silencing.statement(material, counts),
        "threshold": {"all": asdict(region) if region else None, "steps": [asdict(t) for t in by_step]},
        "taxonomy": list(table.records),
        "silenced": list(steps.records),
        "ranked": list(ranked.records),
        "cases": [asdict(c) | {"category": by_id.get(c.id)} for c in cases],
        "labels": {"file": labels.file, "empty": labels.empty, "by_id": labels.by_id} if labels else None,
        "captions": {d.name: {"title": d.title, "caption": d.caption} for d in drawn},
    }
    texts["tokens.json"] = json.dumps(_finite(value), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    files = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    return Analysis(files | _pictures(drawn), (silencing.statement(material, counts), *page.notices(material, counts)))


def sketches(material: Material) -> list[Sketch]:
    """All figures, to be drawn under the style; raises as `build`."""
    region = silencing.spread(material)
    return [
        density.density(material, region),
        figures.quadrant_bars(material, quadrants.build(material)),
        figures.silenced_share(material, silencing.by_step(material)),
        figures.threshold(material, region, silencing.thresholds(material)),
        clouds.clouds(material, ranking.ranked(material)),
    ]


def _pictures(drawn: Sequence[Drawn]) -> dict[str, bytes]:
    return {f"{d.name}.{kind}": d.files[kind] for d in drawn for kind in KINDS}


def _finite(value: Any) -> Any:
    """The same with null in the place of numbers that JSON does not have: an infinite threshold (q is 0 or 1)."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _steps(material: Material, counts: Sequence[silencing.StepCount]) -> tables.Sheet:
    by = {t.step: t for t in silencing.thresholds(material)}
    rows, records = [], []
    for c in counts:
        tau = by.get(c.step)
        share = f"{100 * c.silenced / c.tokens:.4g} %" if c.tokens else "no token"
        rows.append(
            (
                f"{c.step}",
                f"{c.tokens:,}",
                f"{c.rare:,}",
                f"{c.region:,}",
                f"{c.silenced:,}",
                "no metrics" if c.metric is None else f"{c.metric:,}",
                share,
                "none" if tau is None else f"{tau.median:.4g}",
            )
        )
        records.append({**asdict(c), "tau_h_median": tau.median if tau else None})
    header = (
        "Step",
        "Tokens",
        "Rare",
        "S2T's region",
        "Silenced",
        "In the metrics",
        "Silenced share",
        "Threshold (nats)",
    )
    return tables.Sheet("silenced", material.heading("Silenced tokens by step"), header, tuple(rows), tuple(records))


def _ranked(material: Material, parts: Sequence[ranking.Ranked]) -> tables.Sheet:
    rows, records = [], []
    for part in parts:
        for rank, (text, n) in enumerate(list(part.counts.items())[:_KEPT], 1):
            rows.append((part.part, f"{rank}", marked(text), f"{n:,}", f"{100 * n / part.total:.3g} %"))
            records.append({"part": part.part, "rank": rank, "token": text, "count": n, "share": n / part.total})
    cut = [f"{p.part}: {len(p.counts):,} different tokens, the first {_KEPT} stand here" for p in parts
           if len(p.counts) > _KEPT]  # fmt: skip
    return tables.Sheet(
        "ranked",
        material.heading("Rare tokens by occurrence"),
        ("Part", "Rank", "Token", "Count", "Share of the part"),
        tuple(rows),
        tuple(records),
        tuple(cut),
    )


def _case_record(c: Case, by_id: dict[str, str]) -> dict[str, tables.Plain]:
    value = asdict(c) | {"top": c.top_text, "category": by_id.get(c.id)}
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in value.items()}
