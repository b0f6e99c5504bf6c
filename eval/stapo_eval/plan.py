"""What an evaluation is: its options checked, its model, judge and benchmarks identified, before anything expensive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from stapo_eval.decoding import Chat, Decoding, card_setting, encode_chat, parse_settings
from stapo_eval.engines.base import Key, load_tokenizer
from stapo_eval.engines.options import at_least, check_options, copies_of
from stapo_eval.grading.pool import check_temporary_folder
from stapo_eval.grading.rules import Gold, Options
from stapo_eval.judge.asking import check_judge
from stapo_eval.judge.published import REVISIONS, STAND_IN, JudgePrompt, find_prompt
from stapo_eval.models import ModelFiles, check_given, endpoint_model, find_model
from stapo_eval.options import IDENTITY, MEMORY, RECORDED, Judging, RunOptions, listed, recorded
from stapo_results import provenance, runs, store
from stapo_results.benchmarks import Benchmark, Problem, find_data_dir, is_file_name, load, packaged
from stapo_results.checks import Checks
from stapo_results.errors import BadInput, message_of
from stapo_results.schema import Cell, Labels, Run
from stapo_results.sizes import is_miniature_size

SMALL_MODEL_BYTES = 64 << 20
_LEAST = {"n": 0, "limit": 0, "batch_rows": 0, "threads": 0, "max_tokens": 1}
_LATER = ("system", "template")  # what samples depend on, and earlier records do not have
MADE = ("samples.jsonl",)
"""What an evaluation makes first; a folder without it is nobody's yet."""
_OF_MODEL = ("model", "tokenizer", "configuration")
_SOURCE = "source:"  # where a benchmark came from: for the reader, its content is what counts


class PlannedCell(NamedTuple):
    """One benchmark at one setting: the problems that are asked, `n` samples of each."""

    cell: Cell
    benchmark: Benchmark
    decoding: Decoding
    problems: tuple[Problem, ...]
    n: int

    def golds(self, preset: str = "ours") -> dict[str, tuple[Gold, Options]]:
        """Answer and grading options by problem id."""
        unordered = self.benchmark.spec.unordered
        return {p.id: (p.answer, Options(unordered, p.tolerance, p.unit, preset=preset)) for p in self.problems}


@dataclass(frozen=True)
class EvaluationPlan:
    """One model over benchmarks and decoding settings.

    Attributes:
        cells: in the order of the records.
        run: the record of a run that starts now.
        prompt: what the judge is asked in.
    """

    options: RunOptions
    model: ModelFiles
    judge: ModelFiles | None
    labels: Labels
    cells: tuple[PlannedCell, ...]
    out: Path
    run: Run
    prompt: JudgePrompt | None = None

    @property
    def title(self) -> str:
        x = self.labels
        return f"{x.method}/{x.size}/s{x.train_seed}/{x.step}"

    @property
    def judge_counts(self) -> bool:
        """Whether there is a judge whose word counts: that of a model of the miniature does not."""
        return self.judge is not None and not _is_stand_in(self.judge)

    @property
    def judge_text(self) -> str:
        """Who judged, as records say it; "" without a judge."""
        if self.judge is None or self.prompt is None:
            return ""
        name, revision = self.judge.name, self.judge.revision
        who = revision if revision.startswith(name) else f"{name} {revision}"
        return f"{who}, prompt {self.prompt}, scope {self.options.judge_scope}, mode {self.options.judge_mode}"

    def keys(self) -> list[Key]:
        """Every sample's key in the order of the verdicts file."""
        return [(c.cell.id, p.id, i) for c in self.cells for p in c.problems for i in range(c.n)]


def make_plan(options: RunOptions, known: Run | None = None) -> EvaluationPlan:
    """Check everything that can be checked without loading a model.

    Args:
        known: the record of a run that is judged again; its model need not be there any more.

    Raises:
        BadInput: for all options and benchmarks that cannot be used, else for a judge or model.
    """
    checks = Checks()
    for name, least in _LEAST.items():
        checks.attempt(name, at_least, options, name, least)
    checks.attempt("engine", check_options, options.engine, options)
    checks.attempt("template", lambda: options.chat)
    checks.attempt("judge", check_judge, options.judge_scope, options.judge_mode)
    judged = options.judge not in ("", "none")
    began = options.out and (Path(options.out) / runs.RECORD).exists()
    if not judged and (known or not began):  # a run that goes on may have had them
        checks.attempt("judge's options", _check_unjudged, options)
    checks.attempt("step", _step, options.step or "base")
    if options.out:
        checks.attempt("out", runs.check_folder, options.out, "--out")
    settings = checks.attempt("settings", parse_settings, options.settings, options.max_tokens)
    benchmarks = _benchmarks(options, checks)
    named = [] if known else [("model", options.model, options.engine)]
    named += [("judge's model", options.judge, options.judge_options()[0])] if judged else []
    for name, given, engine in named:
        if engine != "openai" or Path(given).is_dir():
            checks.attempt(name, check_given, given)
    checks.attempt("TMPDIR", check_temporary_folder)
    checks.refuse()
    assert settings is not None
    # what may take a download, or a hash of all weights, comes when the rest is right
    judge, prompt = find_judge(options) if judged else (None, None)
    model, revisions = _model(options, known)
    if "card" in listed(options.settings):
        settings = parse_settings(options.settings, options.max_tokens, card_setting(model.folder))
    if options.engine != "openai" and not known:
        _check_chat(options.chat, model)
    if judge and options.judge_options()[0] != "openai":
        _check_chat(Chat(), judge)
    labels = _labels(options, model, older=bool(known or began))
    default = f"runs/eval/{labels.method}-{labels.size}-s{labels.train_seed}-{labels.step}".replace(" ", "_")
    out = Path(options.out or default)
    if runs.lacks(out, "configuration"):  # an older run goes on
        revisions.pop("configuration", None)
    revisions |= {"judge": f"{judge.name} {judge.revision}", "judge prompt": str(prompt)} if judge else {}
    revisions |= {f"data:{b.name}": b.content for b in benchmarks}
    revisions |= {f"{_SOURCE}{b.name}": b.source for b in benchmarks if not is_file_name(b.source)}
    config = {
        **asdict(options),
        "benchmarks": [b.name for b in benchmarks],
        "settings": list(settings),
        "threads": _threads(options, model),
        "dtype": _dtype(options, model, out),
        "vllm": options.vllm_arguments,
        "template": dict(options.chat.template),
        "replicas": copies_of(options.engine, options),
        **_trained(labels),
    }
    if known:
        earlier = recorded(known.config).items()
        config |= {k: v for k, v in earlier if not k.startswith("judge") and k != "key_variable"}
    run = provenance.new_run(
        "eval",
        config,
        seeds={"eval_seed": options.eval_seed},
        deterministic=False,  # known when the engine is loaded
        revisions=revisions,
        parent_run=labels.parent_run,
    )
    run = run.model_copy(update={"run_id": identity(config, revisions)})
    return EvaluationPlan(
        options, model, judge, labels, tuple(_cells(options, labels, benchmarks, settings)), out, run, prompt
    )


def _cells(
    options: RunOptions, labels: Labels, benchmarks: Sequence[Benchmark], settings: dict[str, Decoding]
) -> Iterator[PlannedCell]:
    for b in benchmarks:
        problems = b.problems[: options.limit or None]
        for setting, decoding in settings.items():
            cell = Cell(**_trained(labels), benchmark=b.name, setting=setting, eval_seed=options.eval_seed)
            n = options.n or (b.spec.samples if decoding.temperature else 1)
            yield PlannedCell(cell, b, decoding, problems, n)


def _trained(labels: Labels) -> dict[str, Any]:
    return labels.model_dump(include={"method", "size", "train_seed", "step"})


def _benchmarks(options: RunOptions, checks: Checks) -> tuple[Benchmark, ...]:
    data_dir = checks.attempt("data directory", find_data_dir, options.data_dir)
    if checks.made[-1].problem:  # the hub was not asked for
        return ()
    names = list(packaged()) if options.benchmarks.lower() == "all" else listed(options.benchmarks)
    if not names:
        raise BadInput("no benchmark was named", next_step="--benchmarks all, or names joined by commas")

    found: dict[str, Benchmark] = {}

    def loaded(name: str) -> Benchmark:
        new = load(name, data_dir, accept_variant=options.accept_variant, strict=options.strict)
        known = found.setdefault(new.name, new)
        if known.content != new.content:
            both = f"{known.source} and {new.source}"
            raise BadInput(f"two benchmarks are called {new.name}", found=both, next_step="rename one of the files")
        return known

    for name in names:
        checks.attempt(name, loaded, name)
    return tuple(found.values())


def _model(options: RunOptions, known: Run | None) -> tuple[ModelFiles, dict[str, str]]:
    """The evaluated model, and what the run's record says of it."""
    if known:
        model = ModelFiles(options.model, Path(options.model), options.size, "", "", "", None)
        return model, {k: v for k, v in known.revisions.items() if k in _OF_MODEL}
    # an endpoint's model needs no files here; a folder still gives its labels and hash
    named = options.engine == "openai" and not Path(options.model).is_dir()
    model = endpoint_model(options.model) if named else find_model(options.model, options.revision)
    hashes = (model.revision, f"sha256:{model.tokenizer_sha256}", f"sha256:{model.configuration_sha256}")
    return model, dict(zip(_OF_MODEL, hashes, strict=True))


def _check_chat(chat: Chat, model: ModelFiles) -> None:
    """Raises BadInput where the model has no chat template, or one that fails on a message with what goes with it, or
    leaves that out."""
    from jinja2 import Environment, TemplateError, meta

    tokenizer = load_tokenizer(model)
    templates = tokenizer.chat_template
    texts = templates.values() if isinstance(templates, dict) else [templates]
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        known = set[str]().union(*(meta.find_undeclared_variables(environment.parse(text)) for text in texts))
    except TemplateError:  # transformers' own tags: it is asked below
        known = set(chat.template)
    if unused := chat.template.keys() - known:
        raise BadInput(f"--template {sorted(unused)[0]}: the model's chat template does not use it",
                       expected=", ".join(sorted(known)), next_step="leave it out")  # fmt: skip
    try:
        ids, without = encode_chat(tokenizer, "1+1=", chat), encode_chat(tokenizer, "1+1=", Chat("", chat.template))
    except Exception as e:  # noqa: BLE001  a template may refuse anything, with any error
        given = " on --system or --template" if chat.recorded else ""
        raise BadInput(f"the chat template of {model.given} fails{given}", found=message_of(e),
                       next_step="correct it, or leave the option out") from None  # fmt: skip
    if chat.system and ids == without:
        raise BadInput("--system: the model's chat template leaves it out", next_step="leave --system out")


def _labels(options: RunOptions, model: ModelFiles, *, older: bool) -> Labels:
    """`older`: of a run that began when a user-defined method needed no step."""
    known = model.labels or Labels(method="external", size=model.name, train_seed=0, step="base")
    labels = Labels(
        method=options.method or known.method,
        size=options.size or known.size,
        train_seed=known.train_seed if options.train_seed < 0 else options.train_seed,
        step=_step(options.step) if options.step else known.step,
        parent_run=known.parent_run,
        weights_sha256=model.weights_sha256,
    )
    if labels.step == "base" and labels.method not in ("base", "external") and not older:
        raise BadInput("a trained model has a step", found=f"--method {labels.method}", next_step="--step NUMBER")
    bound = _trained(known) if model.labels else {}
    bound.pop("size", None)  # of two trainings that would have one label, one can so be told apart
    if other := {name: getattr(labels, name) for name, v in bound.items() if getattr(labels, name) != v}:
        raise BadInput("the model's stapo.json has other labels", found=other, expected=bound,
                       next_step="leave out --method, --train-seed and --step")  # fmt: skip
    return labels


def _step(given: str) -> Any:
    if given != "base" and not given.isdigit():
        raise BadInput("--step is a number or base", found=given)
    return given if given == "base" else int(given)


def _threads(options: RunOptions, model: ModelFiles) -> int:
    """Of the engine hf: as asked; else one for a model whose products are too small to share, and all cores for others.

    A judge beside another engine has all cores.

    Threads wait for each other at each product: the miniature's model loses to that whatever else the machine does.
    """
    if "hf" not in (options.engine, options.judge_engine):
        return 0
    return options.threads or (1 if options.engine == "hf" and _is_small(model) else provenance.usable_cores())


def _is_small(model: ModelFiles) -> bool:
    return sum(f.stat().st_size for f in model.folder.glob("*.safetensors")) < SMALL_MODEL_BYTES


def _dtype(options: RunOptions, model: ModelFiles, out: Path) -> str:
    """As asked; of `auto` bfloat16 where engine hf has no GPU and a processor that is faster at it, as in a training.

    A run that began with `auto` or bfloat16 goes on with it. A small model stays in float32, which is `auto` on a CPU.
    """
    if options.engine != "hf" or options.dtype != "auto":
        return options.dtype
    binds = runs.binds(out, MADE)
    began = store.read_json(out / runs.RECORD, Run).config.get("dtype") if binds else None
    if began in ("auto", "bfloat16"):
        return began
    fast = provenance.fast_bf16() and not provenance.nvidia_smi("name")
    return "bfloat16" if fast and not _is_small(model) else "auto"


def _check_unjudged(options: RunOptions) -> None:
    """Raises BadInput for an option of the judge: who gives one does not expect the rule's scores."""
    given = [f.name for f in fields(Judging) if f.name != "judge" and getattr(options, f.name) != f.default]
    if given:
        raise BadInput(
            "options of a judge without a judge",
            found=", ".join(f"--{name.replace('_', '-')}" for name in given),
            expected="--judge MODEL with them",
            next_step="--judge opencompass/CompassVerifier-3B, or leave them out",
        )


def find_judge(options: RunOptions) -> tuple[ModelFiles, JudgePrompt]:
    """The judge's files, or its name where only an endpoint has it; and what it is asked in.

    Raises:
        BadInput: no such model, no such prompt, or options that do not fit its engine.
    """
    kind, engine = options.judge_options()
    given = options.judge
    local = find_model(given, options.judge_revision) if Path(given).is_dir() else None
    if kind == "openai" and not engine.urls:
        raise BadInput(
            "a judge at an endpoint needs an address of its own", next_step="--judge-url http://HOST:PORT/v1"
        )
    check_options(kind, engine)
    if local is not None and _is_stand_in(local) and not options.judge_prompt:
        return local, STAND_IN
    shared = set(engine.urls) & set(options.urls) if kind == "openai" else set[str]()
    if shared and (local or given in (options.served_model, options.model)):
        raise BadInput("the judge is not told from the evaluated model, which this address serves", found=min(shared),
                       next_step="--judge with the name that the address has for the judge")  # fmt: skip
    prompt = find_prompt(options.judge_prompt, options.judge_mode, unpublished=options.judge_prompt_unpublished)
    if local is not None or kind == "openai":
        return local or endpoint_model(given), prompt
    pinned = "" if options.judge_revision else REVISIONS.get(given, "")
    try:
        return find_model(given, options.judge_revision or pinned), prompt
    except BadInput as e:
        if pinned:
            e.next_step += f"; if the hub does not have the pinned revision {pinned}: --judge-revision main"
        raise


def _is_stand_in(judge: ModelFiles) -> bool:
    return judge.labels is not None and is_miniature_size(judge.labels.size)


def identity(config: dict[str, Any], revisions: dict[str, str]) -> str:
    """The id of an evaluation: 12 hex digits of what its samples and verdicts depend on, the code left out."""
    contents = {k: v for k, v in revisions.items() if not k.startswith(_SOURCE)}
    parts = {k: v for k, v in config.items() if k in IDENTITY} | {"revisions": contents}
    given = [*_LATER, *([] if config["engine"] == "openai" else ["max_model_len"])]  # which tells what a server has
    parts |= {k: config[k] for k in given if config.get(k)}
    parts |= {f"vllm.{k}": v for k, v in config["vllm"].items() if k not in MEMORY}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def may_differ(key: str, engine: str = "openai") -> bool:
    """Whether a run of an engine may resume though this differs; `key` as `runs.differences` names it."""
    free = RECORDED - IDENTITY - {"vllm", *_LATER} | {f"vllm.{k}" for k in MEMORY} | {"batch_rows"}
    free -= set() if engine == "openai" else {"max_model_len"}
    return key in free or key.startswith(f"revision {_SOURCE}")
