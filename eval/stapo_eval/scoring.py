"""From samples to verdicts, cell records and the summary: a pure function of the samples, made anew each time."""

from __future__ import annotations

from typing import Any

from stapo_eval import judge as judging
from stapo_eval.display import Display
from stapo_eval.engines import Engine, make_engine
from stapo_eval.grading_pool import Item, Limits, Outcome, grade
from stapo_eval.plan import Plan
from stapo_eval.rules import Options, grader_version
from stapo_eval.summary import cell_record, notes, summarise
from stapo_results import provenance, store
from stapo_results.answers import last_boxed
from stapo_results.schema import CellRecord, Sample, Timing, Verdict

STAND_IN = "the judge is a miniature stand-in: its verdicts are recorded and shown, the scores are the rule's alone"


def _judge(plan: Plan, engine: Engine | None, questions: list[judging.Question], display: Display) -> list:
    if not plan.judge or not questions:
        return ["not_asked"] * len(questions)
    same = engine is not None and plan.judge.folder.resolve() == plan.model.folder.resolve()
    judge = engine if same else make_engine(
        plan.options.engine, plan.judge, threads=plan.run.config["threads"], dtype=plan.options.dtype
    )  # fmt: skip
    assert judge is not None
    display.start("judge", 0, len(set(judging.distinct(questions))))
    try:
        return judging.ask(questions, judge, display.update)
    finally:
        if not same:
            judge.close()


def _grade(plan: Plan, samples: list[Sample], display: Display) -> list[tuple[str | None, Outcome]]:
    gold = {}
    for b in plan.benchmarks:
        for p in b.problems:
            gold[b.name, p.id] = p.answer, Options(b.spec.unordered, b.spec.tolerance, p.unit)
    of_cell = {cell.id: benchmark.name for cell, benchmark, _ in plan.cells()}
    items, answered = [], []
    for i, s in enumerate(samples):
        if s.finish_reason != "error":
            answer, options = gold[of_cell[s.cell], s.problem_id]
            items.append(Item(answer, last_boxed(s.response), options))
            answered.append(i)
    display.start("grade", 0, len(set(items)))
    limits = Limits(plan.options.grade_seconds, plan.options.grade_memory_mib)
    result: list[tuple[str | None, Outcome]] = [(None, Outcome(False, "error", 0.0))] * len(samples)
    for i, item, outcome in zip(answered, items, grade(items, limits, display.update), strict=True):
        result[i] = item.answer, outcome
    return result


def verdicts_of(plan: Plan, samples: list[Sample], engine: Engine | None, display: Display) -> list[Verdict]:
    """Verdicts in the order of `samples`: rule, then the judge where the rule said no."""
    graded = _grade(plan, samples, display)
    problems = {(c.id, p.id): p for c, b, _ in plan.cells() for p in b.problems}
    asked = [i for i, s in enumerate(samples) if s.finish_reason != "error" and not graded[i][1].rule]
    questions = []
    for i in asked:
        s, p = samples[i], problems[samples[i].cell, samples[i].problem_id]
        questions.append(judging.Question(s.problem_id, p.problem, p.answer, s.response, graded[i][0]))
    judged = dict(zip(asked, _judge(plan, engine, questions, display), strict=True))
    version, rule_only = grader_version(), plan.judge is None or plan.stand_in
    verdicts, times = [], []
    for i, (s, (extracted, outcome)) in enumerate(zip(samples, graded, strict=True)):
        said = judged.get(i, "not_asked")
        verdicts.append(
            Verdict(
                cell=s.cell,
                problem_id=s.problem_id,
                sample_index=s.sample_index,
                extracted=extracted,
                rule=outcome.rule,
                reason=outcome.reason,
                preset=plan.options.preset,
                grader_version=version,
                judge=said,
                judge_model=plan.judge.name if plan.judge else "",
                judge_revision=plan.judge.revision if plan.judge else "",
                correct=outcome.rule or (said == "correct" and not rule_only),
            )
        )
        times.append(Timing(cell=s.cell, problem_id=s.problem_id, sample_index=s.sample_index, kind="verdict",
                            created=provenance.now(), seconds=round(outcome.seconds, 6)))  # fmt: skip
    store.write_atomic(plan.out / "verdicts.jsonl", "".join(store.to_line(v) + "\n" for v in verdicts))
    store.append(plan.out / "timings.jsonl", times)
    return verdicts


def write_records(plan: Plan, samples: list[Sample], verdicts: list[Verdict]) -> dict[str, Any]:
    """Write cells/*.json and summary.json."""
    note = STAND_IN if plan.stand_in else ""
    scored_by = "rule" if plan.judge is None or plan.stand_in else "rule+judge"
    records: list[CellRecord] = []
    for cell, benchmark, decoding in plan.cells():
        mine = [(s, v) for s, v in zip(samples, verdicts, strict=True) if s.cell == cell.id]
        record = cell_record(
            cell,
            benchmark,
            [p.id for p in plan.problems(benchmark)],
            plan.samples_of(benchmark),
            [s for s, _ in mine],
            [v for _, v in mine],
            decoding=(decoding.temperature, decoding.top_p, decoding.max_tokens),
            scored_by=scored_by,
            judge_note=note,
            run=plan.run,
            engine=", ".join(sorted({s.engine for s, _ in mine})),
            miniature=plan.miniature,
        )
        store.write_json(plan.out / "cells" / f"{cell.slug}.json", record)
        records.append(record)
    summary = {
        "schema_version": 1,
        "model": plan.title,
        "run_id": plan.run.run_id,
        "cells": [summarise(r) for r in records],
        "notes": notes(records, samples),
    }
    store.write_json(plan.out / "summary.json", summary)
    return summary
