"""What an evaluation is, before anything expensive starts: options, checks, labels, identity, the earlier run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from stapo_eval.decoding import Decoding, parse_settings
from stapo_eval.engines import Key
from stapo_eval.engines.options import check_options
from stapo_eval.grading.pool import Limits, check_limits
from stapo_eval.grading.rules import check_preset
from stapo_eval.judge import check_judge
from stapo_eval.models import ModelFiles, endpoint_model, find_model
from stapo_eval.options import RunOptions
from stapo_results import provenance, store, targets
from stapo_results.benchmarks import Benchmark, Problem, find_data_dir, load
from stapo_results.benchmarks.sources import is_file_name
from stapo_results.errors import BadInput, short_hashes
from stapo_results.schema import Cell, Labels, Run

PAPER = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
SMALL_MODEL_BYTES = 64 << 20


# not part of what the samples and verdicts are: where they go, paths of things that are identified by their hash, and
# where and on how many machines an engine runs
_NO_IDENTITY = (
    *("out", "data_dir", "model", "judge", "revision", "judge_revision", "retry_errors"),
    *("url", "judge_url", "concurrency", "timeout", "patience", "key_variable"),
    *("replicas", "ray_address", "tensor_parallel"),
)
_SOURCE = "source:"  # where a benchmark came from: for the reader, its content is what counts


def _contents(revisions: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in revisions.items() if not k.startswith(_SOURCE)}


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

    def problems(self, benchmark: Benchmark) -> tuple[Problem, ...]:
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


def find_judge(options: RunOptions) -> ModelFiles:
    """The judge's files, or its name where only an endpoint has it.

    Raises:
        BadInput: no such model, or options that do not fit its engine.
    """
    kind, engine = options.judge_options()
    check_options(kind, engine)
    if kind == "openai" and not Path(options.judge).is_dir():
        return endpoint_model(options.judge)
    return find_model(options.judge, options.judge_revision)


def identity(config: dict[str, Any], revisions: dict[str, str]) -> str:
    """The id of an evaluation: 12 hex digits of what its samples and verdicts depend on, the code left out."""
    parts = {k: v for k, v in config.items() if k not in _NO_IDENTITY} | {"revisions": _contents(revisions)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def make_plan(options: RunOptions) -> Plan:
    """Check everything that can be checked without loading a model.

    Raises:
        BadInput: for any option, file or model that does not do.
    """
    check_preset(options.preset)
    check_judge(options.judge_scope, options.judge_mode)
    check_options(options.engine, options.engine_options())
    settings = parse_settings(options.settings)
    for name in ("n", "limit", "batch_rows", "threads"):
        if getattr(options, name) < 0:
            flag, given = f"--{name.replace('_', '-')}", getattr(options, name)
            raise BadInput(f"{flag} is negative", found=given, expected="0 or more", next_step=f"leave out {flag}")
    check_limits(Limits(options.grade_seconds, options.grade_memory_mib), "--grade-")
    if options.out:
        targets.check_folder(options.out, "--out")
    if options.max_tokens < 1:
        raise BadInput(
            "--max-tokens is too small",
            found=options.max_tokens,
            expected="at least 1",
            next_step="leave out --max-tokens",
        )
    data_dir = find_data_dir(options.data_dir)
    names = PAPER if options.benchmarks == "all" else [b.strip() for b in options.benchmarks.split(",") if b.strip()]
    benchmarks = tuple(
        load(n, data_dir, accept_variant=options.accept_variant, strict=options.strict) for n in dict.fromkeys(names)
    )
    if not benchmarks:
        raise BadInput("no benchmark was named", next_step="--benchmarks all, or names joined by commas")
    # an endpoint's model needs no files here; a folder still gives its labels and hash
    named = options.engine == "openai" and not Path(options.model).is_dir()
    model = endpoint_model(options.model) if named else find_model(options.model, options.revision)
    judge = None if options.judge in ("", "none") else find_judge(options)
    labels = _labels(options, model)
    revisions = {"model": model.revision, "tokenizer": f"sha256:{model.tokenizer_sha256}"}
    if judge:
        revisions["judge"] = f"{judge.name} {judge.revision}"
    for b in benchmarks:
        revisions[f"data:{b.name}"] = b.content
    revisions |= {f"{_SOURCE}{b.name}": b.source for b in benchmarks if not is_file_name(b.source)}
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
    run = run.model_copy(update={"run_id": identity(config, revisions)})
    default = Path("runs") / "eval" / "-".join((labels.method, labels.size, f"s{labels.train_seed}", str(labels.step)))
    out = Path(options.out) if options.out else Path(str(default).replace(" ", "_"))
    return Plan(options, model, judge, labels, benchmarks, settings, out, run)


def settle(plan: Plan) -> tuple[Plan, Run | None]:
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
    # a record from before an option existed was made with its default
    then = {f.name: f.default for f in fields(RunOptions) if f.default is not MISSING} | old.config
    differing = [
        f"{k}: {then.get(k)!r} there, {new.config.get(k)!r} now"
        for k in sorted({*then, *new.config} - set(_NO_IDENTITY))
        if then.get(k) != new.config.get(k)
    ] + [
        f"{k}: {old.revisions.get(k)!r} there, {new.revisions.get(k)!r} now"
        for k in sorted(_contents({**old.revisions, **new.revisions}))
        if old.revisions.get(k) != new.revisions.get(k)
    ]
    if old.kind != "eval" or differing:
        raise BadInput(
            f"{plan.out} holds another run",
            found=short_hashes("; ".join(differing)) or f"a run of kind {old.kind}",
            expected="the same parameters, to go on with it",
            next_step=f"stapo-eval judge --run {plan.out} --judge {plan.options.judge}   judges what is there"
            if plan.judge
            and old.kind == "eval"
            and old.status == "done"
            and all(d.startswith("judge") for d in differing)
            else "give another --out, or the parameters of that run",
        )
    kept = old
    if old.status != "done" or plan.options.retry_errors:
        more = ["resumed after an interruption" if old.status != "done" else "samples that had failed are made again"]
        if (old.code_commit, old.code_dirty) != (new.code_commit, new.code_dirty):
            more.append(f"resumed with code {new.code_commit[:12]} {new.code_dirty}".strip())
        kept = old.model_copy(update={"status": "running", "notes": [*old.notes, *more]})
    return replace(plan, run=kept), old
