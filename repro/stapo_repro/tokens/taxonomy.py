"""The paper's taxonomy of tokens of correct responses, with this run's numbers in the place of high and low."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stapo_repro.tokens.labelling import CATEGORIES, NOT_SPURIOUS, Labels
from stapo_repro.tokens.material import Material
from stapo_repro.tokens.quadrants import Quadrant
from stapo_repro.tokens.tables import Plain, Sheet
from stapo_results.statistics.estimates import wilson

HEADER = (
    "Advantage", "Token prob.", "Entropy", "Spurious risk", "Gradient norm", "Entropy change", "Tokens", "Share",
)  # fmt: skip


def build(material: Material, quadrants: Sequence[Quadrant], labels: Labels | None) -> Sheet:
    """STAPO, Table "Taxonomy of Token-Level Optimization Mechanisms"; tokens and share are added."""
    counts = labels.counts if labels is not None else {}
    own = [counts.get(q.below) if q.rare else None for q in quadrants]
    return Sheet(
        "taxonomy",
        material.heading("Tokens of correct responses by probability and entropy"),
        HEADER,
        tuple(_row(q, c) for q, c in zip(quadrants, own, strict=True)),
        tuple(_record(q, c) for q, c in zip(quadrants, own, strict=True)),
        _notes(material, quadrants, labels),
    )


def _row(q: Quadrant, counts: Counter[str] | None) -> tuple[str, ...]:
    probability, entropy = f"p {'<' if q.rare else '≥'} τp", f"H {'<' if q.below else '≥'} τh"
    return "A > 0", probability, entropy, _risk(q, counts), _norm(q), _change(q), f"{q.tokens:,}", _share(q.share)


def _share(value: float | None) -> str:
    return "no token" if value is None else f"{100 * value:.4g} %"


def _interval(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{100 * hits / n:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _risk(q: Quadrant, counts: Counter[str] | None) -> str:
    if not q.rare:
        return "not judged: only rare tokens are labelled"
    n = sum(counts.values()) if counts else 0
    if not counts or not n:
        return "not judged: export labels"
    parts = [f"{CATEGORIES[c]} {_interval(counts[c], n)}" for c in CATEGORIES if c != NOT_SPURIOUS]
    return f"{_interval(n - counts[NOT_SPURIOUS], n)} of {n} read; {'; '.join(parts)}"


def _norm(q: Quadrant) -> str:
    if q.norm is None:
        return "no token"
    ends = "" if q.norm.low is None or q.norm.high is None else f" [{q.norm.low:.4g}, {q.norm.high:.4g}]"
    return f"{q.norm.mean:.4g}{ends} (rank {q.rank})"


def _change(q: Quadrant) -> str:
    if q.rises is None:
        return "no token"
    return f"↑ at {100 * q.rises:.4g} %" if q.rises > 0.5 else f"↓ at {100 * (1 - q.rises):.4g} %"


def _record(q: Quadrant, counts: Counter[str] | None) -> dict[str, Plain]:
    norm = q.norm
    record: dict[str, Plain] = {
        "rare": q.rare,
        "below_tau_h": q.below,
        "tokens": q.tokens,
        "share": q.share,
        "gradient_norm": norm.mean if norm else None,
        "gradient_norm_low": norm.low if norm else None,
        "gradient_norm_high": norm.high if norm else None,
        "mini_batches": norm.clusters if norm else 0,
        "gradient_norm_rank": q.rank,
        "entropy_rises": q.rises,
        "labelled": sum(counts.values()) if counts else 0,
    }
    for name in CATEGORIES:
        record[name] = counts[name] if counts else None
    return record


def _notes(material: Material, quadrants: Sequence[Quadrant], labels: Labels | None) -> tuple[str, ...]:
    facts = material.facts
    notes = [
        f"A > 0: tokens of responses with a positive advantage. τp = {facts.tau_p:g}; τh is the {facts.q:g}-quantile "
        "of the entropies of each mini-batch's rare tokens.",
        "Gradient norm: mean over the tokens of the norm with respect to the logits, 0 where the clip takes hold, "
        "before any silencing; rank 1 is the largest. Brackets: 95 % t interval over the mini-batches of this run "
        "(ratio estimator). It says how mini-batches differ, not how runs do.",
        "Entropy change: share of the tokens at which a gradient step raises (↑) or lowers (↓) the entropy, by the "
        "sign of log p + H (the paper's lemma on entropy, for an advantage above its expectation).",
    ]
    if labels is None:
        how = "stapo-repro tokens RUN --export-labels FILE.csv, fill in the column category, then --labels FILE.csv."
        return (*notes, f"Spurious risk is judged by reading: {how}")
    total = sum(sum(c.values()) for c in labels.counts.values())
    notes.append(
        f"Spurious risk: share of the {total} labelled tokens of {labels.file} in any of the three categories, with "
        "95 % Wilson intervals. It holds for the log's tokens when the lines are a random sample, as exported; "
        f"{labels.empty} lines had no label."
    )
    return tuple(notes)
