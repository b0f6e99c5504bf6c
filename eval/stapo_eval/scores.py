"""From samples and verdicts to cell records and the summary: pure functions, the same bytes each time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from stapo_eval.judge.audit import audit
from stapo_results.answers import normalise_gold
from stapo_results.benchmarks import Benchmark
from stapo_results.schema import (
    Cell,
    CellRecord,
    JudgeVerdict,
    ProblemResult,
    Run,
    Sample,
    Verdict,
    VerdictLengths,
)
from stapo_results.statistics import (
    Estimate,
    average,
    bootstrap,
    clustered,
    majority_at_k,
    parse_verdicts,
    pass_at_k,
    problem_means,
    variance_components,
)

_JUDGE_LETTER: dict[JudgeVerdict, str] = {"correct": "c", "incorrect": "i", "invalid": "x", "not_asked": "."}


def cell_record(
    cell: Cell,
    benchmark: Benchmark,
    problem_ids: Sequence[str],
    n: int,
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    *,
    decoding: tuple[float, float, int],
    scored_by: str,
    judge_note: str,
    grader: str,
    judge: str,
    run: Run,
    engine: str,
    miniature: bool,
) -> CellRecord:
    """The record of one finished cell.

    Args:
        samples, verdicts: those of this cell, in the same order.
        decoding: temperature, top_p, max_tokens.
    """
    letters, rule = ({i: ["-"] * n for i in problem_ids} for _ in range(2))
    judged = {i: ["."] * n for i in problem_ids}
    for s, v in zip(samples, verdicts, strict=True):
        # an engine's failure is missing data, not a wrong answer
        there = s.finish_reason != "error"
        letters[s.problem_id][s.sample_index] = "01"[v.correct] if there else "-"
        rule[s.problem_id][s.sample_index] = "01"[v.rule] if there else "-"
        judged[s.problem_id][s.sample_index] = _JUDGE_LETTER[v.judge]
    asked = any(v.judge != "not_asked" for v in verdicts)
    identity = benchmark.identity
    part = "" if len(problem_ids) == len(benchmark.problems) else (
        f"only the first {len(problem_ids)} of {len(benchmark.problems)} problems"
    )  # fmt: skip
    return CellRecord(
        cell=cell,
        n=n,
        temperature=decoding[0],
        top_p=decoding[1],
        max_tokens=decoding[2],
        scored_by=scored_by,  # type: ignore[arg-type]  # pydantic checks it
        judge_note=judge_note,
        grader=grader,
        judge=judge,
        problems=[
            ProblemResult(
                problem_id=i,
                verdicts="".join(letters[i]),
                judged="".join(judged[i]) if asked else "",
                rule="".join(rule[i]) if asked else "",
            )
            for i in problem_ids
        ],
        benchmark_rows=identity.rows,
        benchmark_sha256=identity.golds_sha256,
        variant="; ".join(x for x in (identity.variant, part) if x),
        text_variants=len(identity.text_variants),
        finish_reasons=dict(sorted(Counter(s.finish_reason for s in samples).items())),
        no_answer=sum(
            v.reason == "no_answer" for s, v in zip(samples, verdicts, strict=True) if s.finish_reason != "error"
        ),
        mean_response_tokens=_mean_tokens(samples),
        by_verdict=_by_verdict(samples, verdicts),
        engine=engine,
        deterministic=run.deterministic,
        run_id=run.run_id,
        code_commit=run.code_commit,
        code_dirty=run.code_dirty,
        revisions=run.revisions,
        miniature=miniature,
    )


def _mean_tokens(samples: Sequence[Sample]) -> float:
    """Mean length of the responses; what an engine failed on is no response of length 0."""
    lengths = [s.response_tokens for s in samples if s.finish_reason != "error"]
    return round(math.fsum(lengths) / max(1, len(lengths)), 3)


def rounded(x: float) -> float | None:
    """A number as summaries hold it; null where it is undefined."""
    return None if math.isnan(x) else round(x, 8)


def estimate_fields(estimate: Estimate, ends: tuple[float, float]) -> dict[str, float | None]:
    """A mean with its standard error and both intervals.

    Where all problems have one score every resample is the same, and the bootstrap has no interval to give.
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


def ks(n: int) -> list[int]:
    """The k of pass@k and maj@k that are reported: 1, 4, 8 and N, as far as there are samples."""
    return sorted({1, 4, 8, n} & set(range(1, n + 1)))


_QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def _by_verdict(
    samples: Sequence[Sample], verdicts: Sequence[Verdict]
) -> dict[Literal["correct", "incorrect"], VerdictLengths]:
    """Counts and lengths of correct and incorrect responses; what an engine failed on is neither."""
    groups: dict[Literal["correct", "incorrect"], list[Sample]] = {"correct": [], "incorrect": []}
    for s, v in zip(samples, verdicts, strict=True):
        if s.finish_reason != "error":
            groups["correct" if v.correct else "incorrect"].append(s)
    found = {}
    for verdict, group in groups.items():
        tokens = np.quantile([s.response_tokens for s in group], list(_QUANTILES.values())) if group else []
        found[verdict] = VerdictLengths(
            responses=len(group),
            truncated=sum(s.finish_reason == "length" for s in group),
            tokens=dict(zip(_QUANTILES, map(float, tokens), strict=False)),
        )
    return found


def _responses(record: CellRecord) -> dict[str, Any]:
    """How right and wrong responses ended and how long they are; null where there is none."""
    found = record.by_verdict
    ends = {k: {"stop": g.responses - g.truncated, "length": g.truncated} for k, g in found.items()}
    return {
        "finish_reasons": ends,
        "response_tokens": {k: {q: g.tokens.get(q) for q in _QUANTILES} for k, g in found.items()},
    }


def _votes(record: CellRecord, verdicts: Sequence[Verdict]) -> list[list[str | None]]:
    """What each sample votes for (Q, N): its answer without dollars and spaces, so that typesetting splits no vote."""
    votes: dict[str, list[str | None]] = {p.problem_id: [None] * record.n for p in record.problems}
    plain = {text: normalise_gold(text) for text in {v.extracted for v in verdicts} if text is not None}
    for v in verdicts:
        if v.extracted is not None:
            votes[v.problem_id][v.sample_index] = plain[v.extracted]
    return list(votes.values())


def summarise(record: CellRecord, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """avg@N with its 95 % intervals and what a reader needs to trust it; fractions, null where undefined."""
    scores = [parse_verdicts(p.verdicts) for p in record.problems]
    letters = "".join(p.verdicts for p in record.problems)
    judged = Counter("".join(p.judged for p in record.problems))
    spread, votes = variance_components(scores), _votes(record, verdicts)
    responses = len(letters) - letters.count("-")
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
        **_responses(record),
        "judge": {name: judged[letter] for name, letter in _JUDGE_LETTER.items() if name != "not_asked"},
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
        scores = [
            [parse_verdicts(p.verdicts) for p in r.problems] for r in records if r.cell.setting == setting
        ]  # fmt: skip
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
