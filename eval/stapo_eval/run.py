"""`stapo-eval run`: one model over benchmarks and decoding settings, resumable at any moment.

Samples are appended as they come. Everything else (verdicts, cell records, summary) is made from them at the end, as a
pure function, so a run that was killed anywhere and started again ends in the same files.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from stapo_eval import judge as judging
from stapo_eval.decoding import prompt
from stapo_eval.display import Display
from stapo_eval.engines import Engine, Key, Request, make_engine
from stapo_eval.grading_pool import Item, Limits, Outcome, grade
from stapo_eval.plan import Plan, RunOptions, make_plan, settle
from stapo_eval.rules import Options, grader_version
from stapo_eval.summary import cell_record, notes, print_summary, summarise
from stapo_results import provenance, store
from stapo_results.answers import last_boxed
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import CellRecord, Run, Sample, Timing, Verdict
from stapo_results.seeds import derive_seed

STAND_IN = "the judge is a miniature stand-in: its verdicts are recorded and shown, the scores are the rule's alone"


def _requests(plan: Plan, engine: Engine) -> list[Request]:
    requests = []
    for benchmark in plan.benchmarks:
        prompts = {p.id: tuple(engine.encode(prompt(p.problem))) for p in plan.problems(benchmark)}
        for cell, _, decoding in (c for c in plan.cells() if c[1] is benchmark):
            for p in plan.problems(benchmark):
                for i in range(plan.samples_of(benchmark)):
                    seed = derive_seed(plan.options.eval_seed, benchmark.name, p.id, cell.setting, i)
                    requests.append(Request(cell.id, p.id, i, seed, prompts[p.id], decoding))
    return requests


def _check_disk(plan: Plan, missing: int, context: int) -> None:
    """Refuse a run whose samples might not fit: 4 bytes a token and 600 a record, at their longest."""
    need = missing * (600 + 4 * min(plan.options.max_tokens, context))
    free = shutil.disk_usage(plan.out).free
    if need > free:
        raise RunFailed(
            f"{plan.out} may not have room for the samples",
            found=f"{free / 2**30:.2f} GiB free",
            expected=f"{need / 2**30:.2f} GiB for {missing} responses at their longest",
            next_step="give an --out on another disk, or a lower --max-tokens",
        )


def _load_samples(plan: Plan) -> dict[Key, Sample]:
    path = plan.out / "samples.jsonl"
    store.repair(path)
    wanted, samples = set(plan.keys()), {}
    for s in store.read(path, Sample) if path.exists() else ():
        key = (s.cell, s.problem_id, s.sample_index)
        if key in samples or key not in wanted:
            raise BadInput(
                f"{path}: a sample {'stands twice' if key in samples else 'does not belong to this run'}",
                found=f"{s.cell} {s.problem_id} sample {s.sample_index}",
                next_step="give another --out",
            )
        samples[key] = s
    return samples


def _generate(plan: Plan, engine: Engine, samples: dict[Key, Sample], display: Display) -> None:
    requests = _requests(plan, engine)
    total, tokens, began = len(requests), 0, time.perf_counter()
    _check_disk(plan, total - len(samples), engine.context)
    display.start("generate", len(samples), total)
    done = frozenset(samples)
    for piece in engine.stream(requests, done):
        fresh = [
            Sample(
                cell=f.request.cell,
                problem_id=f.request.problem_id,
                sample_index=f.request.sample_index,
                seed=f.request.seed,
                response=f.text,
                finish_reason=f.finish_reason,
                prompt_tokens=len(f.request.prompt),
                response_tokens=f.response_tokens,
                logprob_sum=f.logprob_sum,
                engine=engine.name,
                error=f.error,
            )
            for f in piece
        ]
        store.append(plan.out / "samples.jsonl", fresh)
        created = provenance.now()
        store.append(plan.out / "timings.jsonl", (
            Timing(cell=f.request.cell, problem_id=f.request.problem_id, sample_index=f.request.sample_index,
                   kind="sample", created=created, seconds=round(f.seconds, 6)) for f in piece
        ))  # fmt: skip
        samples.update({(s.cell, s.problem_id, s.sample_index): s for s in fresh})
        tokens += sum(f.response_tokens for f in piece)
        display.update(len(samples), total, tokens_per_second=tokens / (time.perf_counter() - began))
    if len(samples) != total:
        raise RunFailed("the engine left requests unanswered", found=f"{len(samples)} of {total} samples")


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


def _verdicts(plan: Plan, samples: list[Sample], engine: Engine | None, display: Display) -> list[Verdict]:
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


def _records(plan: Plan, samples: list[Sample], verdicts: list[Verdict]) -> dict[str, Any]:
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


@contextmanager
def _one_writer(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInput(
            f"another command is writing to {out}", next_step="wait until it ends, or give another --out"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def run(options: RunOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Evaluate, or go on where an earlier call with the same options stopped.

    Returns:
        The summary, as in summary.json.

    Raises:
        BadInput: before any work. RunFailed: the work could not be finished; the same call goes on.
    """
    began = time.perf_counter()
    plan = make_plan(options)
    with _one_writer(plan.out):
        plan, old = settle(plan)
        if old and old.status == "done" and (plan.out / "summary.json").exists():
            summary = json.loads((plan.out / "summary.json").read_text(encoding="utf-8"))
            print_summary(summary)
            say(f"{plan.out} is finished; nothing was done")
            return summary
        path = plan.out / "run.json"
        spent = (old.wall_seconds or 0.0) if old else 0.0
        store.write_json(path, plan.run)
        before = signal.signal(signal.SIGTERM, _interrupt)
        status = "failed"
        try:
            summary = _work(plan, path)
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            latest = store.read_json(path, Run)
            provenance.close_run(latest, path, status, spent + time.perf_counter() - began)
    print_summary(summary)
    say(f"records: {plan.out}")
    return summary


def _work(plan: Plan, path: Path) -> dict[str, Any]:
    for name in ("timings.jsonl", "verdicts.jsonl"):
        store.repair(plan.out / name)
    samples = _load_samples(plan)
    keys = plan.keys()
    engine = None
    with Display(plan.title) as display:
        if len(samples) < len(keys):
            engine = make_engine(
                plan.options.engine,
                plan.model,
                threads=plan.run.config["threads"],
                dtype=plan.options.dtype,
                rows=plan.options.batch_rows,
            )
            run = plan.run.model_copy(update={"deterministic": engine.deterministic})
            if samples and not engine.deterministic:
                anew = "samples made after the interruption may differ in text from those that a whole run would have"
                run = run.model_copy(update={"notes": [*run.notes, anew]})
            plan = replace(plan, run=run)
            store.write_json(path, run)
            _generate(plan, engine, samples, display)
        ordered = [samples[k] for k in keys]
        if engine is not None and plan.judge and plan.judge.folder.resolve() != plan.model.folder.resolve():
            engine.close()
            engine = None
        verdicts = _verdicts(plan, ordered, engine, display)
        summary = _records(plan, ordered, verdicts)
    if engine is not None:
        engine.close()
    return summary
