"""`stapo-eval run`: one model over benchmarks and decoding settings, resumable at any moment.

Samples are appended as they come. Everything else (verdicts, cell records, summary) is made from them at the end, as a
pure function, so a run that was killed anywhere and started again ends in the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from stapo_eval import judge as judging
from stapo_eval.decoding import MAX_TOKENS, Decoding, parse_settings, prompt
from stapo_eval.display import Display
from stapo_eval.engines import Engine, Key, Request, make_engine
from stapo_eval.grading_pool import Item, Limits, Outcome, grade
from stapo_eval.models import ModelFiles, find_model
from stapo_eval.rules import PRESET, Options, check_preset, grader_version
from stapo_eval.summary import cell_record, notes, print_summary, summarise
from stapo_results import provenance, store
from stapo_results.answers import last_boxed
from stapo_results.benchmarks import Benchmark, find_data_dir, load
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Cell, CellRecord, Labels, Run, Sample, Timing, Verdict
from stapo_results.seeds import derive_seed

PAPER = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
SMALL_MODEL_BYTES = 64 << 20
STAND_IN = "the judge is a miniature stand-in: its verdicts are recorded and shown, the scores are the rule's alone"


@dataclass(frozen=True)
class RunOptions:
    """Everything that one evaluation depends on; the command line's flags are these (see `cli`)."""

    model: str
    benchmarks: str = "all"
    settings: str = "both"
    data_dir: str = ""
    out: str = ""
    engine: str = "hf"
    n: int = 0
    limit: int = 0
    max_tokens: int = MAX_TOKENS
    eval_seed: int = 0
    judge: str = "none"
    judge_scope: str = "rule-negatives"
    preset: str = PRESET
    accept_variant: bool = False
    strict: bool = False
    revision: str = ""
    method: str = ""
    size: str = ""
    train_seed: int = -1
    step: str = ""
    threads: int = 0
    dtype: str = "auto"
    batch_rows: int = 0
    grade_seconds: float = 5.0
    grade_memory_mib: int = 1024


# not part of what the samples and verdicts are: where they go, and paths of things that are identified by their hash
_NO_IDENTITY = ("out", "data_dir", "model", "judge", "revision")


@dataclass(frozen=True)
class Plan:
    """What is to be done, before anything expensive starts."""

    options: RunOptions
    model: ModelFiles
    judge: ModelFiles | None
    labels: Labels
    benchmarks: tuple[Benchmark, ...]
    settings: dict[str, tuple[float, float]]
    out: Path
    run: Run

    @property
    def title(self) -> str:
        x = self.labels
        return f"{x.method}/{x.size}/s{x.train_seed}/{x.step}"

    @property
    def miniature(self) -> bool:
        return self.labels.size == "mini"

    @property
    def stand_in(self) -> bool:
        return bool(self.judge and self.judge.labels and self.judge.labels.size == "mini")

    def samples_of(self, benchmark: Benchmark) -> int:
        return self.options.n or benchmark.spec.samples

    def problems(self, benchmark: Benchmark):
        return benchmark.problems[: self.options.limit or None]

    def cells(self) -> Iterator[tuple[Cell, Benchmark, Decoding]]:
        for benchmark in self.benchmarks:
            for setting, (temperature, top_p) in self.settings.items():
                cell = Cell(
                    method=self.labels.method,
                    size=self.labels.size,
                    train_seed=self.labels.train_seed,
                    step=self.labels.step,
                    benchmark=benchmark.name,
                    setting=setting,
                    eval_seed=self.options.eval_seed,
                )
                yield cell, benchmark, Decoding(temperature, top_p, self.options.max_tokens)

    def keys(self) -> list[Key]:
        """Every sample's key in the order of the verdicts file."""
        return [
            (cell.id, p.id, i)
            for cell, benchmark, _ in self.cells()
            for p in self.problems(benchmark)
            for i in range(self.samples_of(benchmark))
        ]


def _labels(options: RunOptions, model: ModelFiles) -> Labels:
    known = model.labels or Labels(method="external", size=model.name, train_seed=0, step="base")
    step = options.step or known.step
    if step != "base" and not str(step).isdigit():
        raise BadInput("--step is a number or base", found=step)
    return Labels(
        method=options.method or known.method,
        size=options.size or known.size,
        train_seed=known.train_seed if options.train_seed < 0 else options.train_seed,
        step="base" if step == "base" else int(step),
        parent_run=known.parent_run,
        weights_sha256=model.weights_sha256,
    )


def _threads(asked: int, model: ModelFiles) -> int:
    """As asked; else one for a model whose products are too small to share, and all cores for others.

    Threads wait for each other at each product: the miniature's model loses to that whatever else the machine does.
    """
    if asked:
        return asked
    if sum(f.stat().st_size for f in model.folder.glob("*.safetensors")) < SMALL_MODEL_BYTES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_plan(options: RunOptions) -> Plan:
    """Check everything that can be checked without loading a model.

    Raises:
        BadInput: for any option, file or model that does not do.
    """
    check_preset(options.preset)
    judging.check_scope(options.judge_scope)
    settings = parse_settings(options.settings)
    for name in ("n", "limit", "batch_rows", "threads"):
        if getattr(options, name) < 0:
            raise BadInput(f"--{name.replace('_', '-')} is not negative", found=getattr(options, name))
    if options.max_tokens < 1:
        raise BadInput("--max-tokens is at least 1", found=options.max_tokens)
    data_dir = find_data_dir(options.data_dir)
    names = PAPER if options.benchmarks == "all" else [b.strip() for b in options.benchmarks.split(",") if b.strip()]
    benchmarks = tuple(
        load(n, data_dir, accept_variant=options.accept_variant, strict=options.strict) for n in dict.fromkeys(names)
    )
    if not benchmarks:
        raise BadInput("no benchmark was named", next_step="--benchmarks all, or names joined by commas")
    model = find_model(options.model, options.revision)
    judge = None if options.judge in ("", "none") else find_model(options.judge)
    labels = _labels(options, model)
    revisions = {"model": model.revision, "tokenizer": f"sha256:{model.tokenizer_sha256}"}
    if judge:
        revisions["judge"] = f"{judge.name} {judge.revision}"
    for b in benchmarks:
        revisions[f"data:{b.name}"] = f"{b.identity.rows} rows, golds sha256:{b.identity.golds_sha256}"
    config = {
        **asdict(options),
        "benchmarks": [b.name for b in benchmarks],
        "settings": list(settings),
        "threads": _threads(options.threads, model),
        **{k: getattr(labels, k) for k in ("method", "size", "train_seed", "step")},
    }
    run = provenance.new_run(
        "eval",
        config,
        seeds={"eval_seed": options.eval_seed},
        deterministic=False,  # known when the engine is loaded
        revisions=revisions,
        parent_run=labels.parent_run,
    )
    identity = {k: v for k, v in config.items() if k not in _NO_IDENTITY} | {"revisions": revisions}
    run_id = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    run = run.model_copy(update={"run_id": run_id})
    default = Path("runs") / "eval" / "-".join((labels.method, labels.size, f"s{labels.train_seed}", str(labels.step)))
    out = Path(options.out) if options.out else Path(str(default).replace(" ", "_"))
    return Plan(options, model, judge, labels, benchmarks, settings, out, run)


def _settle(plan: Plan) -> tuple[Plan, Run | None]:
    """The plan with the run record of its folder, and that earlier record.

    Raises:
        BadInput: the folder holds a run with other parameters.
    """
    path = plan.out / "run.json"
    if not path.exists():
        if (plan.out / "samples.jsonl").exists():
            raise BadInput(f"{plan.out} holds samples without a run record", next_step="give another --out")
        return plan, None
    old = store.read_json(path, Run)
    new = plan.run
    differing = [
        f"{k}: {old.config.get(k)!r} there, {new.config.get(k)!r} now"
        for k in sorted({*old.config, *new.config} - set(_NO_IDENTITY))
        if old.config.get(k) != new.config.get(k)
    ] + [
        f"{k}: {old.revisions.get(k)!r} there, {new.revisions.get(k)!r} now"
        for k in sorted({*old.revisions, *new.revisions})
        if old.revisions.get(k) != new.revisions.get(k)
    ]
    if old.kind != "eval" or differing:
        raise BadInput(
            f"{plan.out} holds another run",
            found="; ".join(differing) or f"a run of kind {old.kind}",
            expected="the same parameters, to go on with it",
            next_step="give another --out, or the parameters of that run",
        )
    kept = old
    if old.status != "done":
        more = ["resumed after an interruption"]
        if (old.code_commit, old.code_dirty) != (new.code_commit, new.code_dirty):
            more.append(f"resumed with code {new.code_commit[:12]} {new.code_dirty}".strip())
        kept = old.model_copy(update={"status": "running", "notes": [*old.notes, *more]})
    return Plan(**{**vars(plan), "run": kept}), old


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
        plan, old = _settle(plan)
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
            plan = Plan(**{**vars(plan), "run": run})
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
