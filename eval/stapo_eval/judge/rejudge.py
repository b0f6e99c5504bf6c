"""`stapo-eval judge`: judge the samples of a run folder, or judge them again, without generating any.

It ends in the files that `stapo-eval run` would have left with this judge from the start; what is on record of a judge
is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from stapo_eval.decoding import parse_settings
from stapo_eval.judge.asking import check_judge
from stapo_eval.models import ModelFiles
from stapo_eval.options import JudgeOptions, RunOptions, benchmark_files
from stapo_eval.plan import EvaluationPlan, find_judge, identity, judge_revisions
from stapo_eval.run import carry_out, set_aside_damaged
from stapo_eval.sampling import load_samples
from stapo_eval.show import print_summary
from stapo_results import provenance, runs, store
from stapo_results.benchmarks import Benchmark, find_data_dir, load
from stapo_results.errors import BadInput
from stapo_results.schema import Labels, Run


def rejudge(
    options: JudgeOptions, say: Callable[[str], None] = print, command: str = "the same command goes on"
) -> dict[str, Any]:
    """Judge a run folder's samples; the same call goes on after a kill.

    Args:
        command: what to type to go on after an interruption.

    Returns:
        The summary, as in summary.json.

    Raises:
        BadInput: no such run, samples missing from it, other benchmark files, a judge that is not there, or a record
            without the name of its key's variable.
    """
    check_judge(options.scope, options.mode)
    out = Path(options.run)
    if not (out / "run.json").exists():
        raise BadInput(f"{out} holds no run", expected="the --out of stapo-eval run", next_step="stapo-eval run ...")
    with runs.one_writer(out, "the run"):
        old = store.read_json(out / "run.json", Run)
        if old.kind != "eval":
            raise BadInput(f"{out} is no evaluation", found=f"a run of kind {old.kind}")
    plan = _plan(old, options, out)
    with runs.opened(out, plan.run, may_differ=lambda key: True) as folder:
        set_aside_damaged(out, samples=False)
        have, wanted = len(load_samples(plan)), len(plan.keys())
        if have < wanted:
            raise BadInput(
                f"{out} lacks samples",
                found=f"{have} of {wanted}",
                expected="a run that was sampled to its end",
                next_step="run the command that made it again: it goes on",
            )
        judged = {"run_id": plan.run.run_id, "config": plan.run.config, "revisions": plan.run.revisions}
        summary = carry_out(plan, folder, f"judged by {plan.judge_text or 'the rule alone'}", command, **judged)
        if folder.previous is not None and folder.finished and folder.previous.run_id == plan.run.run_id:
            folder.restore()  # the same judge again: nothing changed
    print_summary(summary, out)
    say(f"records: {out}")
    return summary


def _plan(old: Run, options: JudgeOptions, out: Path) -> EvaluationPlan:
    """The folder's plan with another judge. The evaluated model need not be there any more."""
    o = _options(old, options, out)
    if o.key_variable == provenance.REDACTED and o.judge_options()[0] == "openai":
        raise BadInput(
            f"{out / 'run.json'} does not say which variable holds the endpoint's key",
            found=f"{provenance.REDACTED}, as older versions recorded it",
            next_step="--key-variable NAME; OPENAI_API_KEY unless the run was given another",
        )
    judge, prompt = (None, None) if o.judge == "none" else find_judge(o)
    labels = Labels(**{k: old.config[k] for k in ("method", "size", "train_seed", "step")})
    model = ModelFiles(o.model, Path(o.model), labels.size, "", "", "", None)
    revisions = {k: v for k, v in old.revisions.items() if not k.startswith("judge")}
    # in the place where a run has it, so that records made either way have the same bytes
    first = {k: revisions[k] for k in ("model", "tokenizer") if k in revisions}
    revisions = {**first, **judge_revisions(judge, prompt), **revisions}
    changed = {f.name: getattr(o, f.name) for f in fields(RunOptions) if f.name.startswith("judge")}
    changed |= {"judge_url": list(o.judge_url), "key_variable": o.key_variable}  # a list, as JSON has it
    config = {**old.config, **changed}
    commit, dirty = provenance.code_version()
    run = old.model_copy(
        update={
            "run_id": identity(config, revisions),
            "config": config,
            "revisions": revisions,
            "code_commit": commit,
            "code_dirty": dirty,
        }
    )
    benchmarks = _benchmarks(o, options.benchmarks, old)
    return EvaluationPlan(o, model, judge, labels, benchmarks, parse_settings(o.settings), out, run, prompt)


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
        "judge_prompt": options.prompt,
        "judge_prompt_unpublished": options.prompt_unpublished,
        "replicas": 0,  # as many as fit here: the run may have been made on another machine
        "judge_engine": options.engine,
        "judge_url": options.url,
        "key_variable": options.key_variable or config.get("key_variable", RunOptions.key_variable),
        "step": str(config["step"]),
    }
    return RunOptions(**{f.name: config[f.name] for f in fields(RunOptions) if f.name in config})


def _benchmarks(o: RunOptions, files: str, old: Run) -> tuple[Benchmark, ...]:
    paths, data_dir = benchmark_files(files), find_data_dir(o.data_dir)
    found = []
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
        found.append(b)
    return tuple(found)
