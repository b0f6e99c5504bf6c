"""From samples to verdicts, cell records and the summary: pure functions of samples and judgements, made anew each
time. The judge is asked for what its records lack, and each reply is on record before the next is waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stapo_eval.cost import cost
from stapo_eval.display import Display
from stapo_eval.engines import Engine, Finished, make_engine
from stapo_eval.grading.pool import Item, Limits, Outcome, grade
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Options, grader_version
from stapo_eval.judge import asking, audit, page
from stapo_eval.judge.prompt import Question
from stapo_eval.judge.scope import asked_about, said, scored, second_grader
from stapo_eval.plan import Plan
from stapo_eval.sampling import context_notes
from stapo_eval.scores import averages, cell_record, notes, summarise
from stapo_results import provenance, store
from stapo_results.schema import CellRecord, Judgement, Sample, Timing, Verdict

STAND_IN = "the judge is a miniature stand-in: its verdicts are recorded and shown, the scores are the rule's alone"
Graded = tuple[str | None, Outcome]


def _grade(plan: Plan, samples: Sequence[Sample], preset: str, display: Display) -> list[Graded]:
    gold = {}
    for b in plan.benchmarks:
        for p in b.problems:
            gold[b.name, p.id] = p.answer, Options(b.spec.unordered, p.tolerance, p.unit, preset=preset)
    of_cell = {cell.id: benchmark.name for cell, benchmark, _ in plan.cells()}
    items, answered = [], []
    for i, s in enumerate(samples):
        if s.finish_reason != "error":
            answer, options = gold[of_cell[s.cell], s.problem_id]
            items.append(Item(answer, extract(s.response, answer, preset), options))
            answered.append(i)
    display.start(f"grade ({preset})", 0, len(set(items)))
    limits = Limits(plan.options.grade_seconds, plan.options.grade_memory_mib)
    result: list[Graded] = [(None, Outcome(False, "error", 0.0))] * len(samples)
    for i, outcome in zip(answered, grade(items, limits, display.update), strict=True):
        result[i] = outcome.extracted, outcome
    return result


def _questions(
    plan: Plan, samples: Sequence[Sample], graded: Sequence[Graded], display: Display
) -> list[tuple[int, Question]]:
    """(index of the sample, question) of everything that the scope asks about; the engine's failures are left out."""
    problems = {(c.id, p.id): (b.name, p) for c, b, _ in plan.cells() for p in b.problems}
    answered = [i for i, s in enumerate(samples) if s.finish_reason != "error"]
    second = None
    if plan.options.judge_scope == "disagreements":
        other = _grade(plan, samples, second_grader(plan.options.preset), display)
        second = [other[i][1].rule for i in answered]
    wanted = asked_about(plan.options.judge_scope, [graded[i][1].rule for i in answered], second)
    questions = []
    for i, yes in zip(answered, wanted, strict=True):
        if yes:
            benchmark, p = problems[samples[i].cell, samples[i].problem_id]
            question = Question(benchmark, p.id, p.problem, p.answer, samples[i].response, graded[i][0])
            questions.append((i, question))
    return questions


def _open_judge(plan: Plan, engine: Engine | None) -> tuple[Engine, bool]:
    """(the judge's engine, whether it is a new one): a model that judges itself is not loaded twice."""
    assert plan.judge is not None
    same = plan.judge.folder.resolve() == plan.model.folder.resolve()
    if engine is not None and same and not (plan.options.judge_engine or plan.options.judge_url):
        return engine, False
    kind, options = plan.options.judge_options()
    threads, dtype = plan.run.config["threads"], plan.options.dtype
    return make_engine(kind, plan.judge, threads=threads, dtype=dtype, options=options), True


def _judge(
    plan: Plan, samples: Sequence[Sample], graded: Sequence[Graded], engine: Engine | None, display: Display
) -> dict[int, Judgement]:
    """Index of a sample -> what the judge said of it. Asks for what is not on record."""
    if plan.judge is None:
        return {}
    judge = asking.Judge(plan.judge.name, plan.judge.revision, plan.options.judge_mode)  # type: ignore[arg-type]
    questions = _questions(plan, samples, graded, display)
    keys, first = asking.distinct([(samples[i], q) for i, q in questions], judge.mode)
    path = plan.out / "judgements.jsonl"
    known = asking.recorded(path, judge)
    have = sum(key in known for key in first)
    display.start("judge", have, len(first))
    if have < len(first):
        speaker, new = _open_judge(plan, engine)
        last = time.perf_counter()

        def record(judgements: list[Judgement], finished: list[Finished]) -> None:
            nonlocal last, have
            store.append(path, judgements)
            now = time.perf_counter()
            share, last, created = round((now - last) / len(judgements), 6), now, provenance.now()
            seconds = {f.request.problem_id: round(f.seconds, 6) for f in finished}
            store.append(plan.out / "timings.jsonl", (
                Timing(cell=j.cell, problem_id=j.problem_id, sample_index=j.sample_index, kind="judge",
                       created=created, seconds=seconds.get(j.key, 0.0), elapsed=share)
                for j in judgements if j.status != "too_long"  # which is no reply
            ))  # fmt: skip
            have += len(judgements)
            display.update(have, len(first))

        try:
            asking.ask(first, judge, speaker, known, record)
        finally:
            if new:
                speaker.close()
    return {i: known[key] for (i, _), key in zip(questions, keys, strict=True)}


def verdicts_of(
    plan: Plan, samples: list[Sample], engine: Engine | None, display: Display
) -> tuple[list[Verdict], dict[int, Judgement]]:
    """(verdicts in the order of `samples`: the rule everywhere, the judge where its scope asks it; index of a sample
    -> what the judge said of it).

    Leaves verdicts.jsonl and, with a judge, judgements.jsonl and flips.html.
    """
    graded = _grade(plan, samples, plan.options.preset, display)
    judged = _judge(plan, samples, graded, engine, display)
    version, rule_only = grader_version(), plan.judge is None or plan.stand_in
    verdicts, times, created = [], [], provenance.now()
    for i, (s, (extracted, outcome)) in enumerate(zip(samples, graded, strict=True)):
        judge = said(judged.get(i))
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
                judge=judge,
                judge_model=plan.judge.name if plan.judge else "",
                judge_revision=plan.judge.revision if plan.judge else "",
                correct=outcome.rule if rule_only else scored(outcome.rule, judge),
            )
        )
        times.append(Timing(cell=s.cell, problem_id=s.problem_id, sample_index=s.sample_index, kind="verdict",
                            created=created, seconds=round(outcome.seconds, 6)))  # fmt: skip
    store.write_atomic(plan.out / "verdicts.jsonl", "".join(store.to_line(v) + "\n" for v in verdicts))
    store.append(plan.out / "timings.jsonl", times)
    if plan.judge is not None:
        _write_page(plan, samples, verdicts, judged)
    return verdicts, judged


def _write_page(
    plan: Plan, samples: Sequence[Sample], verdicts: Sequence[Verdict], judged: dict[int, Judgement]
) -> None:
    problems = {(b.name, p.id): p for b in plan.benchmarks for p in b.problems}
    benchmark_of = {cell.id: benchmark.name for cell, benchmark, _ in plan.cells()}
    found = audit.flips(samples, verdicts, judged)
    html = page.render(found, problems, benchmark_of, title=plan.title, judge=judge_text(plan),
                       note="; ".join(filter(None, [_note(plan), *_judge_notes(plan, judged)])))  # fmt: skip
    store.write_atomic(plan.out / "flips.html", html)


def judge_text(plan: Plan) -> str:
    """Who judged, as records say it; "" without a judge."""
    if plan.judge is None:
        return ""
    o, revision = plan.options, plan.judge.revision
    who = revision if revision.startswith(plan.judge.name) else f"{plan.judge.name} {revision}"
    return f"{who}, scope {o.judge_scope}, mode {o.judge_mode}"


def _note(plan: Plan) -> str:
    return STAND_IN if plan.stand_in else ""


def _judge_notes(plan: Plan, judged: Mapping[int, Judgement]) -> list[str]:
    return audit.judge_notes(judged.values()) if plan.judge is not None and not plan.stand_in else []


def write_records(
    plan: Plan, samples: list[Sample], verdicts: list[Verdict], judged: Mapping[int, Judgement]
) -> dict[str, Any]:
    """Write cells/*.json and summary.json; apart from them, since times are no function of the samples, cost.json."""
    scored_by = "rule" if plan.judge is None or plan.stand_in else "rule+judge"
    of_cell: dict[str, list[tuple[Sample, Verdict]]] = {cell.id: [] for cell, _, _ in plan.cells()}
    for pair in zip(samples, verdicts, strict=True):
        of_cell[pair[0].cell].append(pair)
    records: list[CellRecord] = []
    cells = []
    for cell, benchmark, decoding in plan.cells():
        mine = [s for s, _ in of_cell[cell.id]]
        theirs = [v for _, v in of_cell[cell.id]]
        record = cell_record(
            cell,
            benchmark,
            [p.id for p in plan.problems(benchmark)],
            plan.samples_of(benchmark),
            mine,
            theirs,
            decoding=(decoding.temperature, decoding.top_p, decoding.max_tokens),
            scored_by=scored_by,
            judge_note=_note(plan),
            grader=f"{plan.options.preset}, {grader_version()}",
            judge=judge_text(plan),
            run=plan.run,
            engine=", ".join(sorted({s.engine for s in mine})),
            miniature=plan.miniature,
        )
        store.write_json(plan.out / "cells" / f"{cell.slug}.json", record)
        records.append(record)
        without = audit.unanswered(j for i, j in judged.items() if samples[i].cell == cell.id)
        cells.append(summarise(record, theirs) | ({"judge_unanswered": without} if without else {}))
    summary = {
        "schema_version": 1,
        "model": plan.title,
        "run_id": plan.run.run_id,
        "cells": cells,
        "averages": averages(records),
        "judge": judge_text(plan),
        "notes": [*notes(records, samples), *context_notes(plan.run), *_judge_notes(plan, judged)],
    }
    store.write_json(plan.out / "cost.json", cost(samples, store.read(plan.out / "timings.jsonl", Timing), plan.run))
    store.write_json(plan.out / "summary.json", summary)
    return summary
