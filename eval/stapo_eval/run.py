"""`stapo-eval run` and `judge`: one model over benchmarks and decoding settings, resumable at any moment.

Samples are appended as they come (`samples`). Everything else (verdicts, cell records, summary) is made from them at
the end (`verdicts`, `scores`), as a pure function, so a run that was killed anywhere and started again ends in the same
files. Judging again is the same with the samples fixed.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from stapo_eval.engines import Engine, Key, key_of, make_engine
from stapo_eval.options import RECORDED, Judging, RunOptions, benchmark_files, data_dir_of, recorded
from stapo_eval.plan import MADE, EvaluationPlan, make_plan, may_differ
from stapo_eval.samples import (
    check_refused,
    context_limit,
    context_note,
    drop_errors,
    load_samples,
    longest,
    refused_notes,
    requests_of,
    rewrite,
    sample_of,
)
from stapo_eval.scores import write_records
from stapo_eval.show import StageDisplay, Tally, print_plan, print_summary
from stapo_eval.verdicts import meet_judge, verdicts_of
from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput, RecordError, RunFailed
from stapo_results.schema import CellRecord, Run, Sample, Verdict

_JUDGE = ("judge", "revision judge")  # how differences begin that are the judge's
_SAVE_SECONDS = 30.0  # between two records of the time spent: a kill loses at most so much


def run(options: RunOptions) -> dict[str, Any]:
    """Evaluate, or resume an earlier call with the same options.

    Returns:
        The summary, as in summary.json.

    Raises:
        BadInput: before any work. RunFailed: the work could not be finished; the same call resumes it.
    """
    plan = make_plan(options)
    with runs.opened(plan.out, plan.run, **_rules(plan)) as folder:
        samples = load_samples(plan)
        failed = drop_errors(plan, samples) if options.retry_errors else 0
        start = f"{failed} samples that had failed are made again" if failed else ""
        if folder.finished and not failed:
            start = missing(plan, samples)
            if not start:
                summary = json.loads((plan.out / "summary.json").read_text(encoding="utf-8"))
                print_summary(summary, plan.out)
                lost = any(s.finish_reason == "error" for s in samples.values())
                more = "; --retry-errors repeats the samples that are missing" if lost else ""
                print(f"{plan.out} is finished; nothing was done{more}")
                return summary
            print(f"{plan.out} was finished, but lacks {start}; making it again")
        summary = _finish(plan, folder, samples, start or f"{len(samples)} of {len(plan.keys())} samples")
    print_summary(summary, plan.out)
    return summary


def preview(options: RunOptions) -> None:
    """Print what `run` would do, after all its checks; starts nothing and leaves no file. Raises: BadInput as `run`."""
    plan = make_plan(options)
    previous = runs.previous_of(plan.out, plan.run, "--out", **_rules(plan))
    state = previous.status if previous else "new"
    print_plan(plan, state if state in ("new", "done") else f"{state}, the same command resumes it")


def _rules(plan: EvaluationPlan) -> dict[str, Any]:
    """Of `runs.previous_of`: what the folder may hold."""

    def advice(previous: Run, differing: list[str]) -> str:
        again = f"stapo-eval judge --run {plan.out}, with the options of the judge, judges its samples again"
        return again if all(x.startswith(_JUDGE) for x in differing) else ""

    same = partial(may_differ, engine=plan.options.engine)
    return {"may_differ": same, "older": recorded, "foreign": MADE, "advice": advice}


def judge_again(
    out: Path, judging: Judging, key_variable: str = "", data_dir: str = "", benchmarks: str = ""
) -> dict[str, Any]:
    """Judge the samples of a run folder with another judge, scope or mode; what is on record is not asked again.

    It ends in the files that `run` would have left with this judge from the start.

    Args:
        key_variable, data_dir: where they are other than the run's.
        benchmarks: files of benchmarks that the run was given by path, joined by commas.

    Returns:
        The summary, as in summary.json.

    Raises:
        BadInput: no such run, samples missing from it, other benchmark files, no judge, or one that is not there.
    """
    if not judging.judge:
        raise BadInput("which judge is not said", expected="--judge MODEL, or --judge none for the rule's scores alone",
                       next_step="--judge opencompass/CompassVerifier-3B")  # fmt: skip
    if not (out / runs.RECORD).exists():
        raise BadInput(f"{out} holds no run", expected="the --out of stapo-eval run", next_step="stapo-eval run ...")
    known, files = store.read_json(out / runs.RECORD, Run), benchmark_files(benchmarks)
    if known.kind != "eval":
        raise BadInput(f"{out} is no evaluation", found=f"a run of kind {known.kind}")
    config = {k: v for k, v in recorded(known.config).items() if k in RECORDED} | asdict(judging)
    names: list[str] = config["benchmarks"]
    config |= {
        "out": str(out),
        "benchmarks": ",".join(files.get(name, name) for name in names),
        "settings": ",".join(config["settings"]),
        "data_dir": data_dir_of(config, data_dir),
        "step": str(config["step"]),
        **{name: tuple(f"{k}={json.dumps(v)}" for k, v in config[name].items()) for name in ("vllm", "template")},
        "replicas": 0,  # as many as fit here: the run may have been made on another machine
        "key_variable": key_variable or config["key_variable"],
    }
    plan = make_plan(RunOptions(**config), known)
    with runs.opened(
        out,
        plan.run,
        may_differ=lambda key: may_differ(key, plan.options.engine) or key.startswith(_JUDGE),
        older=recorded,
        advice=lambda previous, differing: "--data-dir with the benchmarks of the run, or --benchmarks with its files",
    ) as folder:
        samples, wanted = load_samples(plan, fixed=True), len(plan.keys())
        if len(samples) < wanted:
            raise BadInput(
                f"{out} lacks samples",
                found=f"{len(samples)} of {wanted}",
                expected="a run that was sampled to its end",
                next_step="run the command that made it again: it resumes",
            )
        judge = {"run_id": plan.run.run_id, "config": plan.run.config, "revisions": plan.run.revisions}
        start = f"judged by {plan.judge_text or 'the rule alone'}"
        graded = [out / "verdicts.jsonl", *(out / f"cells/{c.cell.slug}.json" for c in plan.cells)]
        before = [f.read_bytes() for f in graded if f.exists()]
        summary = _finish(plan, folder, samples, start, **judge)
        if folder.finished and known.run_id == plan.run.run_id and before == [f.read_bytes() for f in graded]:
            folder.restore()  # the same judge again: nothing changed
    print_summary(summary, out)
    return summary


def missing(plan: EvaluationPlan, samples: Collection[Key]) -> str:
    """What a run that its record calls done does not have any more, or not whole, in words; "" for nothing."""
    keys = plan.keys()
    if len(samples) < len(keys):
        return f"{len(keys) - len(samples)} of {len(keys)} samples"
    name = "verdicts.jsonl"
    try:
        if sum(1 for _ in store.read(plan.out / name, Verdict)) < len(keys):
            return name
        for name in (f"cells/{c.cell.slug}.json" for c in plan.cells):
            store.read_json(plan.out / name, CellRecord)
        json.loads((plan.out / (name := "summary.json")).read_text(encoding="utf-8"))
    except (RecordError, OSError, ValueError):
        return name
    return ""


def _finish(
    plan: EvaluationPlan, folder: runs.OpenRun, samples: dict[Key, Sample], start: str, **fields: Any
) -> dict[str, Any]:
    """Make what the folder lacks, with its run record kept true to the end; returns the summary.

    Args:
        samples: those on record.
        start: what is on record as the work starts, for the run's record.
        fields: of the run's record, changed as the work begins.
    """
    keys, display = plan.keys(), StageDisplay(plan.title)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with folder.working(start, f"nothing finished is lost; this resumes it:\n  {_command()}", **fields), display:
            if len(samples) < len(keys):
                meet_judge(plan)
                with closing(_engine(plan)) as engine:  # its memory is the judge's afterwards
                    _generate(engine, plan, folder, samples, display)
            if all(s.finish_reason == "error" for s in samples.values()):
                again = _command() + " --retry-errors" * ("--retry-errors" not in provenance.command_line())
                raise RunFailed("every sample failed", found=next(iter(samples.values())).error,
                                next_step=f"with its cause mended: {again}")  # fmt: skip
            ordered = [samples[k] for k in keys]
            if folder.record.deterministic and list(samples) != keys:
                # a kill and replicas change the order in which samples come, and must not change the file
                rewrite(plan, ordered)
            verdicts, judged = verdicts_of(plan, ordered, display, folder)
            return write_records(plan, folder.record, ordered, verdicts, judged)
    finally:
        signal.signal(signal.SIGTERM, before)


def _command() -> str:
    return shlex.join(provenance.command_line())


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _engine(plan: EvaluationPlan) -> Engine:
    o, how = plan.options, {name: plan.run.config[name] for name in ("threads", "dtype")}
    if o.engine != "openai" and not o.max_model_len:
        o = replace(o, max_model_len=longest(plan))
    return make_engine(o.engine, plan.model, rows=o.batch_rows, options=o, chat=o.chat, **how)


def _generate(
    engine: Engine, plan: EvaluationPlan, folder: runs.OpenRun, samples: dict[Key, Sample], display: StageDisplay
) -> None:
    """Add the missing samples to `samples` and to the record; what was special about the engine goes into the run's."""
    check_refused(plan, engine.refused)
    requests = requests_of(plan, engine)
    prompts = {r.key: len(r.prompt) for r in requests if engine.counts_tokens}
    counted = {k: s.prompt_tokens for k, s in samples.items() if s.finish_reason != "error"}  # by an endpoint
    if prompts and (shortest := min(prompts.values())) >= engine.context:
        raise BadInput("no prompt fits into the model's positions", found=engine.context,
                       expected=f"more than {shortest}", next_step="leave out --max-model-len")  # fmt: skip
    before, limit = folder.record.context_limit, context_limit(plan, prompts or counted, engine.context)
    # a kill may have left a limit on record without the responses that it is of
    if counted and (before.context != engine.context if before else limit):
        kept = f"--max-model-len {before.context}, or " if before and engine.context > before.context else ""
        raise BadInput("the model's positions left other room to the responses on record", found=engine.context,
                       expected=before.context if before else "as many as then, which cut none",
                       next_step=f"{kept}another --out")  # fmt: skip
    for note in (*refused_notes(engine.refused), *([context_note(limit)] if limit else [])):
        print(f"note: {note}", file=sys.stderr, flush=True)
    record, began, tally = folder.record, time.monotonic(), Tally(plan, samples.values())
    notes = record.notes
    if samples and not engine.deterministic:
        notes = [*notes, "samples made after the interruption may differ in text from those of a whole run"]
    refused = sorted({*record.options_refused, *engine.refused})
    config = record.config | {"replicas": engine.copies or record.config["replicas"]}  # counted where it was loaded
    folder.save(deterministic=engine.deterministic, context_limit=limit, options_refused=refused, config=config)

    def save() -> None:
        folder.save(
            notes=list(dict.fromkeys([*notes, *engine.notes])),
            engine_seconds=round((record.engine_seconds or 0.0) + engine.busy, 3),
            generating_seconds=round((record.generating_seconds or 0.0) + time.monotonic() - began, 3),
        )

    try:
        display.start("generate", len(samples), len(requests))
        lengths, saved = {key: s.response_tokens for key, s in samples.items()}, began
        with store.Journal(plan.out / "samples.jsonl") as journal:
            for piece in engine.stream(requests, lengths):
                fresh = [sample_of(f, engine) for f in piece]
                more = {key_of(s): s.prompt_tokens for s in fresh if s.finish_reason != "error"}
                new = {k[:2] for k in more} - {k[:2] for k in counted} if not engine.counts_tokens else set()
                counted |= more
                if new and context_limit(plan, more, engine.context):
                    # before they are on record: a run that has all samples asks no endpoint
                    folder.save(context_limit=context_limit(plan, counted, engine.context))
                journal.append(fresh)
                samples.update({key_of(s): s for s in fresh})
                tally.add(fresh)
                display.update(len(samples), len(requests), tally, engine.under_way)
                if time.monotonic() - saved >= _SAVE_SECONDS:
                    saved = time.monotonic()
                    save()
        if len(samples) < len(requests):
            raise RunFailed("the engine left requests unanswered")
    except RunFailed as e:
        advice = f"{e.next_step}\n            " if e.next_step else ""
        e.next_step = f"{advice}{_command()}   resumes: {len(samples)} of {len(requests)} samples done"
        raise
    finally:
        save()
