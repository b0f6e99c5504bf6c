"""From samples and verdicts to cell records: pure functions, the same bytes each time; and all files of scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from stapo_eval.cost import cost
from stapo_eval.grading.rules import grader_version
from stapo_eval.judge import asking
from stapo_eval.plan import EvaluationPlan, PlannedCell
from stapo_eval.sampling import context_note, refused_notes
from stapo_eval.summary import JUDGE_LETTERS, QUANTILES, averages, notes, summarise
from stapo_eval.verdicts import judge_note, judge_notes
from stapo_results import store
from stapo_results.schema import CellRecord, Judgement, ProblemResult, Run, Sample, Timing, Verdict, VerdictLengths


def write_records(
    plan: EvaluationPlan,
    run: Run,
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    judged: Mapping[int, Judgement],
) -> dict[str, Any]:
    """Write cells/*.json, summary.json and, apart from them, since times are no function of the samples, cost.json.

    Args:
        run: the record of the run folder.
        judged: index of a sample -> what the judge said of it.

    Returns:
        The summary.
    """
    of_cell: dict[str, list[int]] = {cell.id: [] for cell, _, _ in plan.cells()}
    for i, s in enumerate(samples):
        of_cell[s.cell].append(i)
    records, cells = [], []
    for where in plan.cells():
        mine = of_cell[where.cell.id]
        its_verdicts = [verdicts[i] for i in mine]
        record = cell_record(plan, run, where, [samples[i] for i in mine], its_verdicts)
        store.write_json(plan.out / "cells" / f"{where.cell.slug}.json", record)
        records.append(record)
        without = asking.unanswered(judged[i] for i in mine if i in judged)
        cells.append(summarise(record, its_verdicts) | ({"judge_unanswered": without} if without else {}))
    limits = [context_note(run.context_limit)] if run.context_limit else []
    summary = {
        "schema_version": 1,
        "model": plan.title,
        "run_id": run.run_id,
        "cells": cells,
        "averages": averages(records),
        "judge": plan.judge_text,
        "notes": [*refused_notes(run.options_refused), *notes(records, samples), *limits, *judge_notes(plan, judged)],
    }
    store.write_json(plan.out / "cost.json", cost(samples, store.read(plan.out / "timings.jsonl", Timing), run))
    store.write_json(plan.out / "summary.json", summary)
    return summary


def cell_record(
    plan: EvaluationPlan, run: Run, where: PlannedCell, samples: Sequence[Sample], verdicts: Sequence[Verdict]
) -> CellRecord:
    """The record of one finished cell.

    Args:
        samples, verdicts: those of this cell, in the same order.
    """
    cell, benchmark, decoding = where
    identity, asked = benchmark.identity, len(plan.problems(benchmark))
    part = f"only the first {asked} of {len(benchmark.problems)} problems" if asked < len(benchmark.problems) else ""
    there = [(s, v) for s, v in zip(samples, verdicts, strict=True) if s.finish_reason != "error"]
    lengths, (identical, by_chance) = [s.response_tokens for s, _ in there], _identical([s for s, _ in there])
    return CellRecord(
        cell=cell,
        n=plan.samples_of(benchmark),
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        max_tokens=decoding.max_tokens,
        scored_by="rule" if plan.judge is None or plan.stand_in else "rule+judge",
        judge_note=judge_note(plan),
        grader=f"{plan.options.preset}, {grader_version()}",
        judge=plan.judge_text,
        problems=_problems(plan, where, samples, verdicts),
        benchmark_rows=identity.rows,
        benchmark_sha256=identity.golds_sha256,
        variant="; ".join(x for x in (identity.variant, part) if x),
        text_variants=len(identity.text_variants),
        finish_reasons=dict(sorted(Counter(s.finish_reason for s in samples).items())),
        no_answer=sum(v.reason == "no_answer" for _, v in there),
        mean_response_tokens=round(math.fsum(lengths) / max(1, len(lengths)), 3),
        by_verdict=_by_verdict(there),
        identical_problems=identical,
        identical_by_chance=by_chance,
        engine=", ".join(sorted({s.engine for s in samples})),
        deterministic=run.deterministic,
        run_id=run.run_id,
        code_commit=run.code_commit,
        code_dirty=run.code_dirty,
        revisions=run.revisions,
        miniature=plan.miniature,
    )


def _problems(
    plan: EvaluationPlan, where: PlannedCell, samples: Sequence[Sample], verdicts: Sequence[Verdict]
) -> list[ProblemResult]:
    n, ids = plan.samples_of(where.benchmark), [p.id for p in plan.problems(where.benchmark)]
    scored, rule = ({i: ["-"] * n for i in ids} for _ in range(2))
    judged = {i: ["."] * n for i in ids}
    for s, v in zip(samples, verdicts, strict=True):
        if s.finish_reason != "error":  # an engine's failure is missing data, not a wrong answer
            scored[s.problem_id][s.sample_index] = "01"[v.correct]
            rule[s.problem_id][s.sample_index] = "01"[v.rule]
        judged[s.problem_id][s.sample_index] = JUDGE_LETTERS[v.judge]
    asked = any(v.judge != "not_asked" for v in verdicts)
    return [
        ProblemResult(
            problem_id=i,
            verdicts="".join(scored[i]),
            judged="".join(judged[i]) if asked else "",
            rule="".join(rule[i]) if asked else "",
        )
        for i in ids
    ]


def _identical(samples: Sequence[Sample]) -> tuple[int, float]:
    """(problems whose samples, two or more, are one text; how many of them that text's log-probability explains)."""
    of_problem: dict[str, list[Sample]] = {}
    for s in samples:
        of_problem.setdefault(s.problem_id, []).append(s)
    same = [x for x in of_problem.values() if len(x) > 1 and len({s.response for s in x}) == 1]
    known = [(len(x), s.logprob_sum) for x in same if (s := x[0]).logprob_sum is not None]
    # given the first sample, the n - 1 others are the same text with this probability
    return len(same), round(math.fsum(math.exp(min(0.0, (n - 1) * logprob)) for n, logprob in known), 3)


def _by_verdict(there: Sequence[tuple[Sample, Verdict]]) -> dict[Literal["correct", "incorrect"], VerdictLengths]:
    """Counts and lengths of correct and incorrect responses."""
    groups: dict[Literal["correct", "incorrect"], list[Sample]] = {"correct": [], "incorrect": []}
    for s, v in there:
        groups["correct" if v.correct else "incorrect"].append(s)
    found = {}
    for verdict, group in groups.items():
        tokens = np.quantile([s.response_tokens for s in group], list(QUANTILES.values())) if group else []
        found[verdict] = VerdictLengths(
            responses=len(group),
            truncated=sum(s.finish_reason == "length" for s in group),
            tokens=dict(zip(QUANTILES, map(float, tokens), strict=False)),
        )
    return found
