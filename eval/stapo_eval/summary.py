"""From cell records to what summary.json says of them: fractions, null where undefined; pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from stapo_results.answers import normalise_gold
from stapo_results.schema import CellRecord, JudgeVerdict, Sample, Verdict
from stapo_results.schema import confusion as confusion_of
from stapo_results.statistics import (
    Estimate,
    Paired,
    average,
    bootstrap,
    clustered,
    majority_at_k,
    paired,
    parse_verdicts,
    pass_at_k,
    problem_means,
    variance_components,
)

JUDGE_LETTERS: dict[JudgeVerdict, str] = {"correct": "c", "incorrect": "i", "invalid": "x", "not_asked": "."}
QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def rounded(x: float) -> float | None:
    """To eight decimals; null for NaN."""
    return None if math.isnan(x) else round(x, 8)


def estimate_fields(estimate: Estimate, ends: tuple[float, float]) -> dict[str, float | None]:
    """A mean with its standard error and both intervals.

    Where all problems have one score every resample is the same, and the bootstrap has no interval to give.

    Args:
        ends: of the bootstrap interval.
    """
    low, high = ends if ends[0] < ends[1] else (math.nan, math.nan)
    return {
        "accuracy": rounded(estimate.mean),
        "standard_error": rounded(estimate.se),
        "low": rounded(estimate.low),
        "high": rounded(estimate.high),
        "bootstrap_low": rounded(low),
        "bootstrap_high": rounded(high),
    }


def difference_fields(d: Paired, ends: tuple[float, float]) -> dict[str, float | None]:
    """A paired difference and both intervals; where no problem differs they would claim certainty and are null."""
    low, high, bootstrap_low, bootstrap_high = (d.low, d.high, *ends) if d.se > 0 else (math.nan,) * 4
    return {
        "difference": rounded(d.mean),
        "low": rounded(low),
        "high": rounded(high),
        "bootstrap_low": rounded(bootstrap_low),
        "bootstrap_high": rounded(bootstrap_high),
    }


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
        "identical_problems": record.identical_problems,
        "identical_by_chance": record.identical_by_chance,
        "looks_repeated": looks_repeated(record),
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
        if looks_repeated(r):
            same = f"{r.identical_problems} of {len(r.problems)} problems of {r.cell.id} have one text for all samples"
            explained = f"{same}; their log-probabilities explain {r.identical_by_chance:g}"
            if r.engine.startswith("openai"):
                out.append(f"{explained}, if they are those of the sampler (vLLM: --logprobs-mode processed_logprobs)")
            else:
                out.insert(0, f"ALARM: {explained}")
        if r.variant:
            out.append(f"{r.cell.benchmark}: {r.variant}")
        if r.text_variants:
            out.append(f"{r.cell.benchmark}: {r.text_variants} problem texts differ from the registered copy")
        if r.judge_note:
            out.append(r.judge_note)
    return list(dict.fromkeys(out))


def looks_repeated(record: CellRecord) -> bool:
    """Whether so many problems have one text for all samples that sampling does not explain it.

    One text is no fault where the model is sure: a small trained model at t0.7 answers most problems so. The text's own
    probability p says how often that happens: the other N - 1 samples equal it with c = p^(N-1). What counts is the
    excess of such problems over the sum of their c. In a true sampler a problem adds at most c (1 - c) <= 1/4 to it on
    average, whatever the model; the alarm is at half of the problems and one more. An endpoint may give no
    log-probabilities, or those before temperature and top-p: they explain less, so that there it is a note. A public
    harness's "ten repeats" were one text each, with a standard error of 0.0.
    """
    excess = (record.identical_problems or 0) - record.identical_by_chance
    return excess >= len(record.problems) / 2 + 1


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


def audit(record: CellRecord) -> dict[str, Any]:
    """What the judge was asked in one cell, what it said, and what that moved; None values where it was not asked.

    `confusion` counts samples by the rule's verdict and the judge's; with the scope rule-negatives the rule's yeses
    are all "not_asked". A flip is a sample that judge and rule see differently; `flip_rate` is flips over samples
    asked. `difference` is the scored accuracy minus the rule's, with a t and a bootstrap interval over problems: 0
    where the judge is a stand-in, whose word does not count.
    """
    confusion = confusion_of(record)
    asked = sum(n for row in confusion.values() for says, n in row.items() if says != "not_asked")
    to_right = confusion["rule_incorrect"]["correct"]
    to_wrong = confusion["rule_correct"]["incorrect"] + confusion["rule_correct"]["invalid"]
    found: dict[str, Any] = {
        "asked": asked,
        "confusion": confusion,
        "flips_to_correct": to_right,
        "flips_to_incorrect": to_wrong,
        "flip_rate": round((to_right + to_wrong) / asked, 8) if asked else None,
        **dict.fromkeys(("rule_accuracy", "difference", "low", "high", "bootstrap_low", "bootstrap_high")),
    }
    return found | _difference(record) if asked else found


def _difference(record: CellRecord) -> dict[str, float | None]:
    ids = [p.problem_id for p in record.problems]
    scored_means, rule_means = (
        problem_means([parse_verdicts(text) for text in texts])
        for texts in ([p.verdicts for p in record.problems], [p.rule for p in record.problems])
    )
    d = paired(dict(zip(ids, scored_means.tolist(), strict=True)), dict(zip(ids, rule_means.tolist(), strict=True)))
    return {
        "rule_accuracy": rounded(math.fsum(rule_means) / len(ids)),
        **difference_fields(d, bootstrap([scored_means - rule_means])),
    }
