"""What an evaluation is: its options checked, its model, judge and benchmarks identified, before anything expensive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from stapo_eval.decoding import Decoding, parse_settings
from stapo_eval.engines.options import check_options, copies_of
from stapo_eval.engines.requests import Key
from stapo_eval.grading.rules import Gold, Options, check_preset
from stapo_eval.judge.asking import check_judge
from stapo_eval.judge.published import REVISIONS, STAND_IN, Prompt, find_prompt
from stapo_eval.models import ModelFiles, endpoint_model, find_model
from stapo_eval.options import RunOptions
from stapo_results import provenance, runs
from stapo_results.benchmarks import Benchmark, Problem, find_data_dir, load
from stapo_results.benchmarks.sources import is_file_name
from stapo_results.errors import BadInput
from stapo_results.schema import Cell, Labels, Run
from stapo_results.sizes import is_miniature_size

PAPER = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
SMALL_MODEL_BYTES = 64 << 20

# no part of what the samples and verdicts are: where they go, paths of things that are identified by their hash, and
# where and on how many machines an engine runs
_NO_IDENTITY = (
    *("out", "data_dir", "model", "judge", "revision", "judge_revision", "retry_errors"),
    *("judge_prompt", "judge_prompt_unpublished"),
    *("url", "judge_url", "concurrency", "timeout", "patience", "key_variable"),
    *("replicas", "ray_address", "tensor_parallel"),
)
_SOURCE = "source:"  # where a benchmark came from: for the reader, its content is what counts
# a record from before an option existed was made with the option's default
DEFAULTS = {f.name: f.default for f in fields(RunOptions) if f.default is not MISSING}


class PlannedCell(NamedTuple):
    cell: Cell
    benchmark: Benchmark
    decoding: Decoding


@dataclass(frozen=True)
class EvaluationPlan:
    """One model over benchmarks and decoding settings; `run` is the record of a run that starts now."""

    options: RunOptions
    model: ModelFiles
    judge: ModelFiles | None
    labels: Labels
    benchmarks: tuple[Benchmark, ...]
    settings: dict[str, tuple[float, float]]
    out: Path
    run: Run
    prompt: Prompt | None = None  # the judge's

    @property
    def title(self) -> str:
        x = self.labels
        return f"{x.method}/{x.size}/s{x.train_seed}/{x.step}"

    @property
    def miniature(self) -> bool:
        return is_miniature_size(self.labels.size)

    @property
    def stand_in(self) -> bool:
        """Whether the judge is a model of the miniature, whose word does not count."""
        return self.judge is not None and _stands_in(self.judge)

    @property
    def judges_itself(self) -> bool:
        return bool(self.judge) and self.judge.folder.resolve() == self.model.folder.resolve()

    @property
    def judge_text(self) -> str:
        """Who judged, as records say it; "" without a judge."""
        if self.judge is None or self.prompt is None:
            return ""
        name, revision = self.judge.name, self.judge.revision
        who = revision if revision.startswith(name) else f"{name} {revision}"
        how = f"scope {self.options.judge_scope}, mode {self.options.judge_mode}"
        return f"{who}, prompt {self.prompt}, {how}"

    def samples_of(self, benchmark: Benchmark) -> int:
        return self.options.n or benchmark.spec.samples

    def problems(self, benchmark: Benchmark) -> tuple[Problem, ...]:
        return benchmark.problems[: self.options.limit or None]

    def golds(self, benchmark: Benchmark, preset: str = "ours") -> dict[str, tuple[Gold, Options]]:
        """Answer and grading options by problem id."""
        unordered = benchmark.spec.unordered
        return {
            p.id: (p.answer, Options(unordered, p.tolerance, p.unit, preset=preset)) for p in self.problems(benchmark)
        }

    def cells(self) -> Iterator[PlannedCell]:
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
                yield PlannedCell(cell, benchmark, Decoding(temperature, top_p, self.options.max_tokens))

    def benchmark_of(self) -> dict[str, Benchmark]:
        """Benchmark by cell id."""
        return {cell.id: benchmark for cell, benchmark, _ in self.cells()}

    def keys(self) -> list[Key]:
        """Every sample's key in the order of the verdicts file."""
        return [
            (cell.id, p.id, i)
            for cell, benchmark, _ in self.cells()
            for p in self.problems(benchmark)
            for i in range(self.samples_of(benchmark))
        ]


def make_plan(options: RunOptions) -> EvaluationPlan:
    """Check everything that can be checked without loading a model.

    Raises:
        BadInput: for any option, file or model that cannot be used.
    """
    _check(options)
    settings, benchmarks = parse_settings(options.settings), _benchmarks(options)
    judge, prompt = (None, None) if options.judge in ("", "none") else find_judge(options)
    # an endpoint's model needs no files here; a folder still gives its labels and hash
    named = options.engine == "openai" and not Path(options.model).is_dir()
    model = endpoint_model(options.model) if named else find_model(options.model, options.revision)
    labels = _labels(options, model)
    revisions = _revisions(model, judge_revisions(judge, prompt), benchmarks)
    config = {
        **asdict(options),
        "benchmarks": [b.name for b in benchmarks],
        "settings": list(settings),
        "threads": _threads(options.threads, model),
        "replicas": copies_of(options.engine, options.engine_options()),
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
    default = f"runs/eval/{labels.method}-{labels.size}-s{labels.train_seed}-{labels.step}".replace(" ", "_")
    out = Path(options.out or default)
    return EvaluationPlan(options, model, judge, labels, benchmarks, settings, out, run, prompt)


def _check(options: RunOptions) -> None:
    check_preset(options.preset)
    check_judge(options.judge_scope, options.judge_mode)
    check_options(options.engine, options.engine_options())
    for name, least in (("n", 0), ("limit", 0), ("batch_rows", 0), ("threads", 0), ("max_tokens", 1)):
        if (given := getattr(options, name)) < least:
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{flag} is too small", found=given, expected=f"{least} or more", next_step=f"leave out {flag}"
            )
    if options.out:
        runs.check_folder(options.out, "--out")


def _benchmarks(options: RunOptions) -> tuple[Benchmark, ...]:
    data_dir = find_data_dir(options.data_dir)
    given = [b.strip() for b in options.benchmarks.split(",") if b.strip()]
    names = PAPER if options.benchmarks.lower() == "all" else given
    if not names:
        raise BadInput("no benchmark was named", next_step="--benchmarks all, or names joined by commas")
    found = [load(n, data_dir, accept_variant=options.accept_variant, strict=options.strict) for n in names]
    return tuple({b.name: b for b in found}.values())


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


def judge_revisions(judge: ModelFiles | None, prompt: Prompt | None) -> dict[str, str]:
    """What the run's record says of the judge; empty without one."""
    return {"judge": f"{judge.name} {judge.revision}", "judge prompt": str(prompt)} if judge else {}


def _revisions(model: ModelFiles, judge: dict[str, str], benchmarks: tuple[Benchmark, ...]) -> dict[str, str]:
    found = {"model": model.revision, "tokenizer": f"sha256:{model.tokenizer_sha256}", **judge}
    found |= {f"data:{b.name}": b.content for b in benchmarks}
    return found | {f"{_SOURCE}{b.name}": b.source for b in benchmarks if not is_file_name(b.source)}


def _threads(asked: int, model: ModelFiles) -> int:
    """As asked; else one for a model whose products are too small to share, and all cores for others.

    Threads wait for each other at each product: the miniature's model loses to that whatever else the machine does.
    """
    if asked:
        return asked
    if sum(f.stat().st_size for f in model.folder.glob("*.safetensors")) < SMALL_MODEL_BYTES:
        return 1
    return provenance.usable_cores()


def find_judge(options: RunOptions) -> tuple[ModelFiles, Prompt]:
    """The judge's files, or its name where only an endpoint has it; and what it is asked in.

    Raises:
        BadInput: no such model, no such prompt, or options that do not fit its engine.
    """
    kind, engine = options.judge_options()
    check_options(kind, engine)
    given = options.judge
    local, prompt = judge_prompt(options)
    if local is not None or kind == "openai":
        return local or endpoint_model(given), prompt
    pinned = "" if options.judge_revision else REVISIONS.get(given, "")
    try:
        return find_model(given, options.judge_revision or pinned), prompt
    except BadInput as e:
        if pinned:
            e.next_step += (
                f"; if the hub does not have the pinned revision {pinned}: "
                "--judge-revision main (stapo-eval judge: --revision)"
            )
        raise


def judge_prompt(options: RunOptions) -> tuple[ModelFiles | None, Prompt]:
    """The judge's files where it is a folder, and what it is asked in; nothing of a hub's model is fetched.

    Raises:
        BadInput: a folder without a model, or no such prompt.
    """
    local = find_model(options.judge) if Path(options.judge).is_dir() else None
    if local is not None and _stands_in(local) and not options.judge_prompt:
        return local, STAND_IN
    unpublished = options.judge_prompt_unpublished
    return local, find_prompt(options.judge_prompt, options.judge_mode, unpublished=unpublished)


def _stands_in(judge: ModelFiles) -> bool:
    return judge.labels is not None and is_miniature_size(judge.labels.size)


def identity(config: dict[str, Any], revisions: dict[str, str]) -> str:
    """The id of an evaluation: 12 hex digits of what its samples and verdicts depend on, the code left out."""
    contents = {k: v for k, v in revisions.items() if not k.startswith(_SOURCE)}
    parts = {k: v for k, v in config.items() if k not in _NO_IDENTITY} | {"revisions": contents}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def may_differ(key: str) -> bool:
    """Whether a run may go on though this differs; `key` as `runs.differences` names it."""
    return key in _NO_IDENTITY or key.startswith(f"revision {_SOURCE}")
