"""`stapo-eval judge`: judge the samples of a run folder, or judge them again, without generating any.

It ends in the files that `stapo-eval run` would have left with this judge from the start; what is on record of a judge
is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from stapo_eval.decoding import parse_settings
from stapo_eval.judge import check_judge
from stapo_eval.models import ModelFiles
from stapo_eval.options import JudgeOptions, RunOptions
from stapo_eval.plan import Plan, find_judge, identity
from stapo_eval.run import carry_out
from stapo_eval.sampling import load_samples
from stapo_eval.show import print_summary
from stapo_results import provenance, store, targets
from stapo_results.benchmarks import Benchmark, find_data_dir, load
from stapo_results.benchmarks.loader import name_of_file
from stapo_results.benchmarks.sources import is_file_name
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord, Judgement, Labels, Run, Timing

_COPIED = ("samples.jsonl", "timings.jsonl", "judgements.jsonl", "run.json")  # the last one makes the folder a run


def _copied(source: Path, out: Path) -> Path:
    """`out`, holding the samples and judgements of `source`; refuses a folder with other samples."""
    if out.resolve() == source.resolve():
        return out
    if (out / "run.json").exists():
        hashes = [store.sha256_file(f / "samples.jsonl") for f in (out, source)]
        if hashes[0] != hashes[1]:
            raise BadInput(f"{out} holds another run", found=hashes[0], expected=hashes[1], next_step="another --out")
        return out
    for name in _COPIED:
        if (source / name).exists():
            store.write_atomic(out / name, (source / name).read_bytes())
    return out


def _options(old: Run, options: JudgeOptions, out: Path) -> RunOptions:
    config = dict(old.config)
    config |= {k: ",".join(config[k]) for k in ("benchmarks", "settings")}
    known = str(config.get("data_dir") or "")
    config |= {
        "out": str(out),
        "data_dir": options.data_dir or (known if Path(known).is_dir() else ""),
        "judge": options.judge,
        "judge_scope": options.scope,
        "judge_mode": options.mode,
        "judge_revision": options.revision,
        "judge_engine": options.engine,
        "judge_url": options.url,
        "step": str(config["step"]),
    }
    return RunOptions(**{f.name: config[f.name] for f in fields(RunOptions) if f.name in config})


def _samples_a_problem(source: Path) -> dict[str, int]:
    """N by benchmark as the run's cells have it: a registry may say another one by now."""
    cells = [store.read_json(p, CellRecord) for p in sorted((source / "cells").glob("*.json"))]
    return {c.cell.benchmark: c.n for c in cells}


def _benchmarks(o: RunOptions, files: str, old: Run, source: Path) -> tuple[Benchmark, ...]:
    given = [x.strip() for x in files.split(",") if x.strip()]
    if wrong := [x for x in given if not is_file_name(x)]:
        raise BadInput("--benchmarks takes .jsonl and .parquet files here", found=", ".join(wrong))
    paths, data_dir = {name_of_file(Path(x)): x for x in given}, find_data_dir(o.data_dir)
    found, n_of = [], _samples_a_problem(source)
    for name in o.benchmarks.split(","):
        b = load(paths.get(name, name), data_dir, accept_variant=o.accept_variant, strict=o.strict)
        now, then = b.content, old.revisions.get(f"data:{name}")
        if now != then:
            raise BadInput(
                f"{name} is not the copy that was evaluated",
                found=now,
                expected=then,
                next_step="--data-dir with the files of the run",
            )
        n = n_of.get(name, b.spec.samples)
        found.append(replace(b, spec=b.spec.model_copy(update={"samples": n})))
    return tuple(found)


def _plan(old: Run, options: JudgeOptions, out: Path) -> Plan:
    """The folder's plan with another judge. The evaluated model need not be there any more."""
    o = _options(old, options, out)
    judge = find_judge(o)
    known = old.config
    labels = Labels(**{k: known[k] for k in ("method", "size", "train_seed", "step")})
    model = ModelFiles(o.model, Path(o.model), labels.size, "", "", "", None)
    revisions = {k: v for k, v in old.revisions.items() if k != "judge"}
    # in the place where a run has it, so that records made either way have the same bytes
    first = {k: revisions[k] for k in ("model", "tokenizer") if k in revisions}
    revisions = {**first, "judge": f"{judge.name} {judge.revision}", **revisions}
    changed = {f.name: getattr(o, f.name) for f in fields(RunOptions) if f.name.startswith("judge")}
    config = {**known, **changed, "judge_url": list(o.judge_url)}  # as JSON has it
    text = f"judged by {revisions['judge']}, scope {o.judge_scope}, mode {o.judge_mode}"
    notes = old.notes if (config, revisions) == (known, old.revisions) else [*old.notes, _with_code(text, old)]
    run = old.model_copy(
        update={
            "run_id": identity(config, revisions),
            "config": config,
            "revisions": revisions,
            "status": "running",
            "notes": notes,
        }
    )
    settings = parse_settings(o.settings)
    return Plan(o, model, judge, labels, _benchmarks(o, options.benchmarks, old, Path(options.run)), settings, out, run)


def _with_code(text: str, old: Run) -> str:
    now = provenance.code_version()
    return text if now == (old.code_commit, old.code_dirty) else f"{text}, with code {now[0][:12]} {now[1]}".rstrip()


def rejudge(options: JudgeOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Judge a run folder's samples; the same call goes on after a kill.

    Returns:
        The summary, as in summary.json.

    Raises:
        BadInput: no such run, samples missing from it, other benchmark files, or a judge that is not there.
    """
    check_judge(options.scope, options.mode)
    source = Path(options.run)
    if not (source / "run.json").exists():
        raise BadInput(f"{source} holds no run", expected="the --out of stapo-eval run", next_step="stapo-eval run ...")
    with targets.one_writer(source, "the run"):
        old = store.read_json(source / "run.json", Run)
        if old.kind != "eval":
            raise BadInput(f"{source} is no evaluation", found=f"a run of kind {old.kind}")
        out = _copied(source, Path(options.out)) if options.out else source
    with targets.one_writer(out, "--out"):
        plan = _plan(old, options, out)
        store.set_aside(out / "judgements.jsonl", Judgement)
        store.set_aside(out / "timings.jsonl", Timing)
        have, wanted = len(load_samples(plan)), len(plan.keys())
        if have < wanted:
            raise BadInput(
                f"{source} lacks samples",
                found=f"{have} of {wanted}",
                expected="a run that was sampled to its end",
                next_step="run the command that made it again: it goes on",
            )
        summary = carry_out(replace(plan, out=out), old)
    print_summary(summary, out)
    say(f"records: {out}")
    return summary
