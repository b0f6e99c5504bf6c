"""`stapo-eval run`: one model over benchmarks and decoding settings, resumable at any moment.

Samples are appended as they come (`sampling`). Everything else (verdicts, cell records, summary) is made from them at
the end (`scoring`), as a pure function, so a run that was killed anywhere and started again ends in the same files.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stapo_eval.display import Display
from stapo_eval.engines import Engine, Key, make_engine
from stapo_eval.integrity import lacking, set_aside_damaged
from stapo_eval.options import RunOptions
from stapo_eval.plan import Plan, make_plan, settle
from stapo_eval.sampling import context_note, drop_errors, generate, load_samples, put_in_order, requests_of
from stapo_eval.scoring import verdicts_of, write_records
from stapo_eval.show import print_summary
from stapo_results import provenance, store, targets
from stapo_results.errors import RunFailed
from stapo_results.schema import Run, Sample

# how long the engine worked is a note of each attempt: a record from before it was measured has none
_BUSY = "engine busy {:.3f} s of {:.3f} s of generating"


def busy_seconds(record: Run) -> float:
    """Seconds in which a run's engine worked, over all its attempts."""
    pattern = re.compile(r"engine busy ([\d.]+) s of")
    return sum(float(m[1]) for m in map(pattern.match, record.notes) if m)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def run(options: RunOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Evaluate, or go on where an earlier call with the same options stopped.

    Returns:
        The summary, as in summary.json.

    Raises:
        BadInput: before any work. RunFailed: the work could not be finished; the same call goes on.
    """
    plan = make_plan(options)
    with targets.one_writer(plan.out, "--out"):
        plan, old = settle(plan)
        set_aside_damaged(plan)
        again = plan.options.retry_errors and drop_errors(plan)
        if old and old.status == "done" and not again:
            if not (absent := lacking(plan, load_samples(plan))):
                summary = json.loads((plan.out / "summary.json").read_text(encoding="utf-8"))
                print_summary(summary, plan.out)
                say(f"{plan.out} is finished; nothing was done")
                return summary
            shown = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more files" if len(absent) > 5 else "")
            say(f"{plan.out} was finished, but lacks {shown}: made again")
            notes = [*plan.run.notes, f"made again after the run was finished: {shown}"]
            plan = replace(plan, run=plan.run.model_copy(update={"status": "running", "notes": notes}))
        summary = carry_out(plan, old)
    print_summary(summary, plan.out)
    say(f"records: {plan.out}")
    return summary


def carry_out(plan: Plan, old: Run | None) -> dict[str, Any]:
    """Do what the folder lacks, with its run record kept true to the end; call it under `targets.one_writer`.

    Args:
        old: the folder's earlier run record, whose wall time is added to.
    """
    began = time.perf_counter()
    path = plan.out / "run.json"
    spent = (old.wall_seconds or 0.0) if old else 0.0
    store.sweep(plan.out)
    store.write_json(path, plan.run)
    before = signal.signal(signal.SIGTERM, _interrupt)
    status = "failed"
    try:
        summary = _work(plan, path)
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise KeyboardInterrupt(f"nothing finished is lost; this goes on:\n  {_again()}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
        latest = store.read_json(path, Run)
        provenance.close_run(latest, path, status, spent + time.perf_counter() - began)
    return summary


def _again() -> str:
    """The command that this process was started with, without secrets."""
    return shlex.join(provenance.redact_command([Path(sys.argv[0]).name, *sys.argv[1:]]))


def _idle_gpus(plan: Plan) -> str:
    """What to say where a machine has more GPUs than the run uses."""
    have, used = len(plan.run.hardware["gpus"]), plan.options.tensor_parallel * max(1, plan.options.replicas)
    if plan.options.engine == "openai" or plan.options.ray_address or have <= used:
        return ""
    return f"{have - used} of {have} GPUs stand idle: --replicas {have // plan.options.tensor_parallel} uses them"


def _generate(plan: Plan, path: Path, samples: dict[Key, Sample], display: Display) -> tuple[Plan, Engine]:
    """The missing samples, and the engine that made them, still loaded."""
    options = plan.options
    if idle := _idle_gpus(plan):
        print(idle, file=sys.stderr, flush=True)
    engine = make_engine(
        options.engine,
        plan.model,
        threads=plan.run.config["threads"],
        dtype=options.dtype,
        rows=options.batch_rows,
        options=options.engine_options(),
    )
    run = plan.run.model_copy(update={"deterministic": engine.deterministic})
    if samples and not engine.deterministic:
        anew = "samples made after the interruption may differ in text from those that a whole run would have"
        run = run.model_copy(update={"notes": [*run.notes, anew]})
    requests = requests_of(plan, engine)
    if (cut := context_note(requests, engine.context)) and cut not in run.notes:
        run = run.model_copy(update={"notes": [*run.notes, cut]})
        print(f"note: {cut}", file=sys.stderr, flush=True)
    store.write_json(path, run)
    began = time.perf_counter()
    try:
        generate(plan, engine, requests, samples, display)
    except BaseException as e:
        engine.close()
        if isinstance(e, RunFailed):
            state = f"{e.next_step}\n            " if e.next_step else ""
            e.next_step = f"{state}{_again()}   goes on: {len(samples)} of {len(plan.keys())} samples are on record"
        raise
    finally:
        busy = _BUSY.format(engine.busy, time.perf_counter() - began)
        run = run.model_copy(update={"notes": [*run.notes, *engine.notes, busy]})
        store.write_json(path, run)
    return replace(plan, run=run), engine


def _work(plan: Plan, path: Path) -> dict[str, Any]:
    samples = load_samples(plan)
    keys = plan.keys()
    engine: Engine | None = None
    with Display(plan.title) as display:
        if len(samples) < len(keys):
            plan, engine = _generate(plan, path, samples, display)
        if plan.run.deterministic:
            put_in_order(plan, samples)
        ordered = [samples[k] for k in keys]
        if engine is not None and plan.judge and plan.judge.folder.resolve() != plan.model.folder.resolve():
            engine.close()
            engine = None
        verdicts, judged = verdicts_of(plan, ordered, engine, display)
        summary = write_records(plan, ordered, verdicts, judged)
    if engine is not None:
        engine.close()
    return summary
