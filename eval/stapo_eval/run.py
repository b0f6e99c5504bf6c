"""`stapo-eval run`: one model over benchmarks and decoding settings, resumable at any moment.

Samples are appended as they come (`sampling`). Everything else (verdicts, cell records, summary) is made from them at
the end (`verdicts`, `scores`), as a pure function, so a run that was killed anywhere and started again ends in the same
files.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stapo_eval.display import StageDisplay
from stapo_eval.engines import Engine, make_engine
from stapo_eval.engines.requests import Key, key_of
from stapo_eval.options import RunOptions
from stapo_eval.plan import DEFAULTS, EvaluationPlan, make_plan, may_differ
from stapo_eval.sampling import (
    context_limit,
    context_note,
    drop_errors,
    generate,
    load_samples,
    put_in_order,
    refused_notes,
    requests_of,
)
from stapo_eval.scores import write_records
from stapo_eval.show import print_summary
from stapo_eval.verdicts import verdicts_of
from stapo_results import runs, store
from stapo_results.errors import BadInput, RecordError, RunFailed
from stapo_results.schema import CellRecord, Judgement, Sample, Timing, Verdict


def run(
    options: RunOptions,
    say: Callable[[str], None] = print,
    command: str = "the same command goes on",
    resume: bool = True,
) -> dict[str, Any]:
    """Evaluate, or go on where an earlier call with the same options stopped.

    Args:
        command: what to type to go on after an interruption.
        resume: False refuses a folder that holds a run.

    Returns:
        The summary, as in summary.json.

    Raises:
        BadInput: before any work. RunFailed: the work could not be finished; the same call goes on.
    """
    plan = make_plan(options)
    if not resume and (plan.out / runs.RECORD).exists():
        raise BadInput(f"{plan.out} already holds a run", next_step="leave out --no-resume, or give another --out")

    with runs.opened(
        plan.out,
        plan.run,
        may_differ=may_differ,
        older=lambda c: {**DEFAULTS, **c},
        foreign=lambda name: name == "samples.jsonl",
    ) as folder:
        set_aside_damaged(plan.out)
        failed = drop_errors(plan) if options.retry_errors else 0
        start = f"{failed} samples that had failed are made again" if failed else ""
        if folder.finished and not failed:
            start = lacking(plan, load_samples(plan))
            if not start:
                summary = json.loads((plan.out / "summary.json").read_text(encoding="utf-8"))
                print_summary(summary, plan.out)
                say(f"{plan.out} is finished; nothing was done")
                return summary
            say(f"{plan.out} was finished, but lacks {start}: it is made again")
        summary = carry_out(plan, folder, start, command)
    print_summary(summary, plan.out)
    say(f"records: {plan.out}")
    return summary


def carry_out(plan: EvaluationPlan, folder: runs.OpenRun, start: str, command: str, **fields: Any) -> dict[str, Any]:
    """Make what the folder lacks, with its run record kept true to the end.

    Args:
        start: where a run goes on from, for its record; "": after the samples that are there.
        command: what to type to go on after an interruption.
        fields: of the run's record, changed as the work begins.
    """
    samples, keys = load_samples(plan), plan.keys()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with (
            folder.working(
                start or f"{len(samples)} of {len(keys)} samples",
                f"nothing finished is lost; this goes on:\n  {command}",
                **fields,
            ),
            StageDisplay(plan.title) as display,
            ExitStack() as loaded,
        ):
            engine: Engine | None = None
            if len(samples) < len(keys):
                engine = _engine(plan, loaded)
                _generate(plan, folder, engine, samples, display, command)
                if not plan.judges_itself:
                    loaded.close()  # its memory is the judge's now
                    engine = None
            if folder.record.deterministic:
                put_in_order(plan, samples)
            ordered = [samples[k] for k in keys]
            verdicts, judged = verdicts_of(plan, ordered, engine, display)
            return write_records(plan, folder.record, ordered, verdicts, judged)
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _engine(plan: EvaluationPlan, loaded: ExitStack) -> Engine:
    """The evaluated model, closed with `loaded`."""
    engine = make_engine(
        plan.options.engine,
        plan.model,
        threads=plan.run.config["threads"],
        dtype=plan.options.dtype,
        rows=plan.options.batch_rows,
        options=plan.options.engine_options(),
    )
    loaded.callback(engine.close)
    return engine


def _generate(
    plan: EvaluationPlan,
    folder: runs.OpenRun,
    engine: Engine,
    samples: dict[Key, Sample],
    display: StageDisplay,
    command: str,
) -> None:
    """Add the missing samples to `samples` and to the record; what was special about the engine goes into the run's."""
    requests = requests_of(plan, engine)
    prompts = {r.key: len(r.prompt) for r in requests if engine.counts_tokens}
    limit = context_limit(prompts, plan.options.max_tokens, engine.context)
    for note in (*refused_notes(engine.refused), *([context_note(limit)] if limit else [])):
        print(f"note: {note}", file=sys.stderr, flush=True)
    notes = folder.record.notes
    if samples and not engine.deterministic:
        notes = [*notes, "samples made after the interruption may differ in text from those of a whole run"]
    folder.save(
        deterministic=engine.deterministic,
        context_limit=limit,
        options_refused=sorted({*folder.record.options_refused, *engine.refused}),
        notes=list(dict.fromkeys(notes)),
    )
    began = time.perf_counter()
    try:
        generate(plan, engine, requests, samples, display)
        if not engine.counts_tokens:  # the endpoint has counted by now
            counted = {k: s.prompt_tokens for k, s in samples.items() if s.finish_reason != "error"}
            folder.save(context_limit=context_limit(counted, plan.options.max_tokens, engine.context))
    except RunFailed as e:
        advice = f"{e.next_step}\n            " if e.next_step else ""
        e.next_step = f"{advice}{command}   goes on: {len(samples)} of {len(requests)} samples are on record"
        raise
    finally:
        folder.save(
            notes=list(dict.fromkeys([*folder.record.notes, *engine.notes])),
            engine_seconds=round((folder.record.engine_seconds or 0.0) + engine.busy, 3),
            generating_seconds=round((folder.record.generating_seconds or 0.0) + time.perf_counter() - began, 3),
        )


def set_aside_damaged(folder: Path, *, samples: bool = True) -> int:
    """Take lines that are no record out of the journals, say so on stderr, and return how many there were.

    samples: False leaves them alone, where they could not be made again.
    """
    records = (
        *([("samples.jsonl", Sample)] if samples else []),
        ("judgements.jsonl", Judgement),
        ("timings.jsonl", Timing),
    )
    return sum(store.set_aside(folder / name, model) for name, model in records)


def lacking(plan: EvaluationPlan, samples: Collection[Key]) -> str:
    """What is not there, or not whole, of a run that its record calls done, in words; "" for nothing.

    Args:
        samples: keys of those on record.
    """
    keys = plan.keys()
    if len(samples) < len(keys):
        return f"{len(keys) - len(samples)} of {len(keys)} samples"
    name = "verdicts.jsonl"
    try:
        if [key_of(v) for v in store.read(plan.out / name, Verdict)] != keys:
            return name
        for cell, _, _ in plan.cells():
            name = f"cells/{cell.slug}.json"
            if store.read_json(plan.out / name, CellRecord).cell != cell:
                return name
        for name in ("summary.json", "cost.json"):
            json.loads((plan.out / name).read_bytes())
    except (OSError, ValueError, RecordError):
        return name
    return ""
