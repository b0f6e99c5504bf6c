"""From samples and verdicts to cell records and summary.json: pure functions, the same bytes each time.

Values are fractions, null where undefined.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stapo_eval.decoding import NEUTRAL
from stapo_eval.grading.rules import grader_version
from stapo_eval.grading.text import key, number
from stapo_eval.judge import asking
from stapo_eval.plan import EvaluationPlan, PlannedCell
from stapo_eval.samples import context_note, refused_notes
from stapo_eval.show import summary_page
from stapo_eval.verdicts import judge_note
from stapo_results import statistics, store
from stapo_results.resampling import bootstrap
from stapo_results.schema import (
    JUDGED,
    CellRecord,
    FinishReason,
    Judgement,
    ProblemResult,
    Run,
    Sample,
    Verdict,
    VerdictLengths,
)
from stapo_results.sizes import is_miniature_size

JUDGE_LETTERS = {says: letter for letter, says in JUDGED.items()}
QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def write_records(
    plan: EvaluationPlan,
    run: Run,
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    judged: Mapping[int, Judgement],
) -> dict[str, Any]:
    """Write cells/*.json, summary.md and summary.json.

    Args:
        run: the record of the run folder.
        samples, verdicts: in the order of the plan's keys.
        judged: index of a sample -> what the judge said of it.

    Returns:
        The summary.
    """
    records, cells, end = [], [], 0
    for cell in plan.cells:
        begin, end = end, end + len(cell.problems) * cell.n
        record = cell_record(plan, run, cell, samples[begin:end], verdicts[begin:end])
        store.write_json(plan.out / "cells" / f"{cell.cell.slug}.json", record)
        records.append(record)
        without = asking.unanswered(judged[i] for i in range(begin, end) if i in judged)
        summed = summarise(record, samples[begin:end], verdicts[begin:end])
        cells.append(summed | ({"judge_unanswered": without} if without else {}))
    limits = [context_note(run.context_limit)] if run.context_limit else []
    unclear = asking.judge_notes(judged.values()) if plan.judge_counts else []
    chat = plan.options.chat.recorded
    limits += [f"the prompt has more than the paper's: {json.dumps(chat, ensure_ascii=False)}"] if chat else []
    alarms = [*refused_notes(run.options_refused), *notes(records, samples), *limits, *unclear, *flip_notes(cells)]
    summary = {
        "schema_version": 1,
        "model": plan.title,
        "run_id": run.run_id,
        "cells": cells,
        "averages": averages(records),
        "judge": plan.judge_text,
        "notes": alarms,
    }
    store.write_atomic(plan.out / "summary.md", summary_page(summary))
    store.write_json(plan.out / "summary.json", summary)  # the last: a finished run has it
    return summary


def cell_record(
    plan: EvaluationPlan, run: Run, planned: PlannedCell, samples: Sequence[Sample], verdicts: Sequence[Verdict]
) -> CellRecord:
    """The record of one finished cell.

    Args:
        samples, verdicts: those of this cell, in the same order.
    """
    cell, benchmark, decoding, problems, n = planned
    most = len(benchmark.problems)
    part = f"only the first {len(problems)} of {most} problems" if len(problems) < most else ""
    limit = run.context_limit
    answered = [(s, v) for s, v in zip(samples, verdicts, strict=True) if s.finish_reason != "error"]
    lengths, (identical, by_chance) = [s.response_tokens for s, _ in answered], _identical([s for s, _ in answered])
    return CellRecord(
        cell=cell,
        n=n,
        **asdict(decoding),
        chat=plan.options.chat.recorded,
        scored_by="rule+judge" if plan.judge_counts else "rule",
        judge_note=judge_note(plan),
        grader=f"{plan.options.preset}, {grader_version()}",
        judge=plan.judge_text,
        problems=_problems(planned, samples, verdicts),
        benchmark_rows=most,
        benchmark_sha256=benchmark.golds_sha256,
        variant="; ".join(x for x in (benchmark.variant, part) if x),
        text_variants=len(benchmark.text_variants),
        finish_reasons=dict(sorted(Counter[FinishReason](s.finish_reason for s in samples).items())),
        no_answer=sum(v.reason == "no_answer" for _, v in answered),
        mean_response_tokens=round(math.fsum(lengths) / max(1, len(lengths)), 3),
        by_verdict={
            "correct": _lengths([s for s, v in answered if v.correct]),
            "incorrect": _lengths([s for s, v in answered if not v.correct]),
        },
        identical_problems=identical,
        identical_by_chance=by_chance,
        context_limit=limit if limit and benchmark.name in limit.benchmarks else None,
        options_refused=[x for x in run.options_refused if x in NEUTRAL],
        engine=", ".join(sorted({s.engine for s in samples})),
        **run.model_dump(include={"deterministic", "run_id", "code_commit", "code_dirty", "revisions"}),
        miniature=is_miniature_size(plan.labels.size),
    )


def _problems(planned: PlannedCell, samples: Sequence[Sample], verdicts: Sequence[Verdict]) -> list[ProblemResult]:
    n, asked = planned.n, any(v.judge != "not_asked" for v in verdicts)
    letters = {p.id: {"verdicts": ["-"] * n, "judged": ["."] * n, "rule": ["-"] * n} for p in planned.problems}
    for s, v in zip(samples, verdicts, strict=True):
        problem, i = letters[s.problem_id], s.sample_index
        if s.finish_reason != "error":  # an engine's failure is missing data, not a wrong answer
            problem["verdicts"][i], problem["rule"][i] = "01"[v.correct], "01"[v.rule]
        problem["judged"][i] = JUDGE_LETTERS[v.judge]
    shown = ("verdicts", "judged", "rule") if asked else ("verdicts",)
    return [ProblemResult(problem_id=k, **{x: "".join(found[x]) for x in shown}) for k, found in letters.items()]


def _identical(samples: Sequence[Sample]) -> tuple[int, float]:
    """(problems whose samples, two or more, are one text; how many of them that text's log-probability explains)."""
    of_problem: dict[str, list[Sample]] = {}
    for s in samples:
        of_problem.setdefault(s.problem_id, []).append(s)
    same = [x for x in of_problem.values() if len(x) > 1 and len({s.response for s in x}) == 1]
    known = [(len(x), s.logprob_sum) for x in same if (s := x[0]).logprob_sum is not None]
    # given the first sample, the n - 1 others are the same text with this probability
    return len(same), round(math.fsum(math.exp(min(0.0, (n - 1) * logprob)) for n, logprob in known), 3)


def _lengths(samples: Sequence[Sample]) -> VerdictLengths:
    tokens = np.quantile([s.response_tokens for s in samples], list(QUANTILES.values())) if samples else []
    return VerdictLengths(
        responses=len(samples),
        truncated=sum(s.finish_reason == "length" for s in samples),
        tokens=dict(zip(QUANTILES, map(float, tokens), strict=False)),
    )


def rounded(x: float) -> float | None:
    """To eight decimals; null for NaN."""
    return None if math.isnan(x) else round(x, 8)


def estimate_fields(estimate: statistics.Number, strata: Sequence[ArrayLike]) -> dict[str, float | None]:
    """A mean with its standard error and both intervals.

    Where all problems have one score every resample is the same, and the bootstrap has no interval to give.

    Args:
        strata: the problems' means, for the bootstrap.
    """
    low, high = bootstrap(strata)
    ends = (low, high) if low < high else (math.nan, math.nan)
    return {
        "accuracy": rounded(estimate.mean),
        "standard_error": rounded(estimate.se),
        **_intervals(estimate.low, estimate.high, *ends),
    }


def difference_fields(d: statistics.Number, strata: Sequence[ArrayLike]) -> dict[str, float | None]:
    """A paired difference and both intervals; where no problem differs they would claim certainty and are null.

    Args:
        strata: the problems' differences, for the bootstrap.
    """
    values = (d.low, d.high, *bootstrap(strata)) if d.se > 0 else (math.nan,) * 4
    return {"difference": rounded(d.mean), **_intervals(*values)}


def _intervals(*ends: float) -> dict[str, float | None]:
    return dict(zip(("low", "high", "bootstrap_low", "bootstrap_high"), map(rounded, ends), strict=True))


def summarise(record: CellRecord, samples: Sequence[Sample], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """avg@N of a cell with its 95 % intervals and what a reader needs to trust it."""
    scores = [statistics.parse_verdicts(p.verdicts) for p in record.problems]
    letters = "".join(p.verdicts for p in record.problems)
    judged = Counter("".join(p.judged for p in record.problems))
    (within, between), votes = statistics.variance_components(scores), _votes(record, verdicts)
    responses, lengths = len(letters) - letters.count("-"), record.by_verdict
    flips = [(s, v) for s, v in zip(samples, verdicts, strict=True) if v.judge == "correct" and not v.rule]
    return {
        "cell": record.cell.id,
        "benchmark": record.cell.benchmark,
        "setting": record.cell.setting,
        "n": record.n,
        "problems": len(record.problems),
        "correct": letters.count("1"),
        "samples": len(letters),
        "missing": letters.count("-"),
        **estimate_fields(statistics.clustered(scores), [statistics.problem_means(scores)]),
        "pass_at": {str(k): rounded(statistics.pass_at_k(scores, k)) for k in ks(record.n)},
        "majority_at": {str(k): rounded(statistics.majority_at_k(votes, scores, k)) for k in ks(record.n)},
        "variance_within": rounded(within),
        "variance_between": rounded(between),
        "truncated": rounded(record.finish_reasons.get("length", 0) / (responses or math.nan)),
        "no_answer": rounded(record.no_answer / (responses or math.nan)),
        "mean_response_tokens": record.mean_response_tokens,
        "identical_problems": record.identical_problems,
        "identical_by_chance": record.identical_by_chance,
        "looks_repeated": looks_repeated(record),
        "finish_reasons": {k: {"stop": x.responses - x.truncated, "length": x.truncated} for k, x in lengths.items()},
        "response_tokens": {k: {q: x.tokens.get(q) for q in QUANTILES} for k, x in lengths.items()},
        "judge": {name: judged[letter] for name, letter in JUDGE_LETTERS.items() if name != "not_asked"},
        "audit": audit(record)
        | {
            "flips_without_answer": sum(v.reason == "no_answer" for _, v in flips),
            "flips_cut_off": sum(s.finish_reason == "length" for s, _ in flips),
        },
        **record.model_dump(include={"scored_by", "judge_note", "grader", "variant", "text_variants"}),
    }


def averages(records: Sequence[CellRecord]) -> list[dict[str, Any]]:
    """The unweighted mean over benchmarks, a setting each; the bootstrap is stratified by benchmark."""
    rows = []
    for setting in dict.fromkeys(r.cell.setting for r in records):
        scores = [
            [statistics.parse_verdicts(p.verdicts) for p in r.problems] for r in records if r.cell.setting == setting
        ]
        average = statistics.average([statistics.clustered(x) for x in scores])
        means = [statistics.problem_means(x) for x in scores]
        rows.append({"setting": setting, "benchmarks": len(scores), **estimate_fields(average, means)})
    return rows


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


def flip_notes(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of which cells the judge turned responses to right that give no answer or were cut off, over a tenth of those."""
    return [
        f"{c['cell']}: of {c['audit']['flips_to_correct']} responses that the judge turned to right "
        f"{c['audit'][name]} {what}: read them (verdicts.jsonl)"
        for c in cells
        for name, what in (("flips_without_answer", "give no answer"), ("flips_cut_off", "were cut off"))
        if c["scored_by"] == "rule+judge" and 10 * c["audit"][name] > c["audit"]["flips_to_correct"]
    ]


def looks_repeated(record: CellRecord) -> bool:
    """Whether so many problems have one text for all samples that sampling does not explain it.

    One text is no fault of greedy decoding, or where the model is sure: a small trained model at t0.7 answers most
    problems so. The text's own probability p says how often that happens: the other N - 1 samples equal it with
    c = p^(N-1). What counts is the excess of such problems over the sum of their c. In a true sampler a problem adds
    at most c (1 - c) <= 1/4 to it on average, whatever the model; the alarm is at half of the problems and one more.
    An endpoint may give no log-probabilities, or those before temperature and top-p: they explain less, so that there
    it is a note. A public harness's "ten repeats" were one text each, with a standard error of 0.0.
    """
    excess = (record.identical_problems or 0) - record.identical_by_chance
    return record.temperature > 0 and excess >= len(record.problems) / 2 + 1


def ks(n: int) -> list[int]:
    """The k of pass@k and maj@k that are reported: 1, 4, 8 and N, as far as there are samples."""
    return sorted({1, 4, 8, n} & set(range(1, n + 1)))


def vote(answer: str | None) -> str | None:
    """What an answer votes for in maj@k: its value or, of no plain number, the grader's form of it."""
    if answer is None:
        return None
    value = number(form := key(answer))
    return form if value is None else str(value)


def _votes(record: CellRecord, verdicts: Sequence[Verdict]) -> list[list[str | None]]:
    """What each sample votes for (Q, N)."""
    votes: dict[str, list[str | None]] = {p.problem_id: [None] * record.n for p in record.problems}
    for v in verdicts:
        votes[v.problem_id][v.sample_index] = vote(v.extracted)
    return list(votes.values())


def audit(record: CellRecord) -> dict[str, Any]:
    """What the judge was asked in one cell, what it said, and what that moved; None values where it was not asked.

    `confusion` counts samples by the rule's verdict and the judge's; with the scope rule-negatives the rule's yeses
    are all "not_asked". A flip is a sample that judge and rule see differently; `flip_rate` is flips over samples
    asked. `difference` is the scored accuracy minus the rule's, with a t and a bootstrap interval over problems: 0
    where the judge is a stand-in, whose word does not count.
    """
    rule, judged = ("".join(getattr(p, field) for p in record.problems) for field in ("rule", "judged"))
    counts = Counter(zip(rule, judged, strict=True))  # a missing sample is in no row
    confusion = {
        name: {says: counts[digit, letter] for letter, says in JUDGED.items()}
        for digit, name in (("1", "rule_correct"), ("0", "rule_incorrect"))
    }
    asked = sum(n for row in confusion.values() for says, n in row.items() if says != "not_asked")
    to_right = confusion["rule_incorrect"]["correct"]
    to_wrong = confusion["rule_correct"]["incorrect"] + confusion["rule_correct"]["invalid"]
    report: dict[str, Any] = {
        "asked": asked,
        "confusion": confusion,
        "flips_to_correct": to_right,
        "flips_to_incorrect": to_wrong,
        "flip_rate": rounded((to_right + to_wrong) / (asked or math.nan)),
        **dict.fromkeys(("rule_accuracy", "difference", "low", "high", "bootstrap_low", "bootstrap_high")),
    }
    if not asked:
        return report
    scored, by_rule = means(record), means(record, "rule")
    moved = statistics.paired(scored, by_rule)
    rule_accuracy = rounded(math.fsum(by_rule.values()) / len(by_rule))
    return (
        report | {"rule_accuracy": rule_accuracy} | difference_fields(moved, [[scored[k] - by_rule[k] for k in scored]])
    )


def means(record: CellRecord, field: str = "verdicts") -> dict[str, float]:
    """Problem id -> mean of the samples that are there, in this field's letters."""
    means = statistics.problem_means([statistics.parse_verdicts(getattr(p, field)) for p in record.problems])
    return dict(zip((p.problem_id for p in record.problems), means.tolist(), strict=True))
