"""From cell records to what summary.json says of them: fractions, null where undefined; pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from stapo_eval.intervals import estimate_fields, rounded
from stapo_eval.judge.audit import audit
from stapo_results.answers import normalise_gold
from stapo_results.schema import CellRecord, JudgeVerdict, Sample, Verdict
from stapo_results.statistics import (
    average,
    bootstrap,
    clustered,
    majority_at_k,
    parse_verdicts,
    pass_at_k,
    problem_means,
    variance_components,
)

JUDGE_LETTERS: dict[JudgeVerdict, str] = {"correct": "c", "incorrect": "i", "invalid": "x", "not_asked": "."}
QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def summarise(record: CellRecord, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """avg@N of a cell with its 95 % intervals and what a reader needs to trust it."""
    scores = [parse_verdicts(p.verdicts) for p in record.problems]
    letters = "".join(p.verdicts for p in record.problems)
    judged = Counter("".join(p.judged for p in record.problems))
    spread, votes = variance_components(scores), _votes(record, verdicts)
    responses, lengths = len(letters) - letters.count("-"), record.by_verdict
    return {
        "cell": record.cell.id,
        "benchmark": record.cell.benchmark,
        "setting": record.cell.setting,
        "n": record.n,
        "problems": len(record.problems),
        "correct": letters.count("1"),
        "samples": len(letters),
        "missing": letters.count("-"),
        **estimate_fields(clustered(scores), bootstrap([problem_means(scores)])),
        "pass_at": {str(k): rounded(pass_at_k(scores, k)) for k in ks(record.n)},
        "majority_at": {str(k): rounded(majority_at_k(votes, scores, k)) for k in ks(record.n)},
        "variance_within": rounded(spread.within),
        "variance_between": rounded(spread.between),
        "truncated": round(record.finish_reasons.get("length", 0) / responses, 8) if responses else None,
        "no_answer": round(record.no_answer / responses, 8) if responses else None,
        "mean_response_tokens": record.mean_response_tokens,
        "finish_reasons": {k: {"stop": x.responses - x.truncated, "length": x.truncated} for k, x in lengths.items()},
        "response_tokens": {k: {q: x.tokens.get(q) for q in QUANTILES} for k, x in lengths.items()},
        "judge": {name: judged[letter] for name, letter in JUDGE_LETTERS.items() if name != "not_asked"},
        "audit": audit(record),
        "scored_by": record.scored_by,
        "judge_note": record.judge_note,
        "grader": record.grader,
        "variant": record.variant,
        "text_variants": record.text_variants,
    }


def averages(records: Sequence[CellRecord]) -> list[dict[str, Any]]:
    """The unweighted mean over benchmarks, a setting each; the bootstrap is stratified by benchmark."""
    found = []
    for setting in dict.fromkeys(r.cell.setting for r in records):
        scores = [[parse_verdicts(p.verdicts) for p in r.problems] for r in records if r.cell.setting == setting]
        whole = average([clustered(x) for x in scores])
        ends = bootstrap([problem_means(x) for x in scores])
        found.append({"setting": setting, "benchmarks": len(scores), **estimate_fields(whole, ends)})
    return found


def notes(records: Sequence[CellRecord], samples: Sequence[Sample]) -> list[str]:
    """What a reader must know beside the numbers, loudest first."""
    out = []
    errors = Counter(s.cell for s in samples if s.finish_reason == "error")
    for cell, count in errors.items():
        first = next(s.error for s in samples if s.cell == cell and s.finish_reason == "error")
        out.append(f"{count} samples of {cell} are MISSING because the engine failed on them: {first}")
    for r in records:
        if r.variant:
            out.append(f"{r.cell.benchmark}: {r.variant}")
        if r.text_variants:
            out.append(f"{r.cell.benchmark}: {r.text_variants} problem texts differ from the registered copy")
        if r.judge_note:
            out.append(r.judge_note)
    return list(dict.fromkeys(out))


def ks(n: int) -> list[int]:
    """The k of pass@k and maj@k that are reported: 1, 4, 8 and N, as far as there are samples."""
    return sorted({1, 4, 8, n} & set(range(1, n + 1)))


def _votes(record: CellRecord, verdicts: Sequence[Verdict]) -> list[list[str | None]]:
    """What each sample votes for (Q, N): its answer without dollars and spaces, so that typesetting splits no vote."""
    votes: dict[str, list[str | None]] = {p.problem_id: [None] * record.n for p in record.problems}
    plain = {text: normalise_gold(text) for text in {v.extracted for v in verdicts} if text is not None}
    for v in verdicts:
        if v.extracted is not None:
            votes[v.problem_id][v.sample_index] = plain[v.extracted]
    return list(votes.values())
