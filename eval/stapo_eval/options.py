"""What the commands are told: each dataclass is the flags of a command line, and what its run record holds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import tyro

from stapo_eval.engines.options import EngineOptions
from stapo_results.benchmarks.loader import name_of_file
from stapo_results.benchmarks.sources import is_file_name
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class _Evaluation:
    model: str
    """Folder with config.json and safetensors weights, or a hub id."""
    benchmarks: str = "all"
    """Names joined by commas; `all` is the paper's six."""
    settings: str = "both"
    """both, t1.0 (temperature 1.0, top-p 1.0) or t0.7 (0.7, 0.9); any other as t0.8-p0.9."""
    data_dir: str = ""
    """Directory with the benchmarks' JSONL files and a registry.yaml; if empty, $STAPO_DATA_DIR, else the hub."""
    out: str = ""
    """Run folder; if empty, runs/eval/<model's labels>."""
    engine: Literal["hf", "vllm", "openai"] = "hf"
    """hf: transformers, deterministic on a CPU. vllm: an environment of its own. openai: endpoints, see --url."""
    n: int = 0
    """Samples a problem; if 0, the benchmark's own N."""
    limit: int = 0
    """Only the first so many problems of each benchmark; records say so."""
    max_tokens: int = 20_480
    """Longest response in tokens; the model's positions may allow less."""
    eval_seed: int = 0
    """Seed of this evaluation; every sample's own seed derives from it."""
    judge: str = "none"
    """none, or a verifier model (folder or hub id, such as opencompass/CompassVerifier-3B)."""
    judge_scope: Literal["rule-negatives", "all"] = "rule-negatives"
    """Which samples the judge is asked about; its word counts where it is asked."""
    judge_mode: Literal["compass", "justrl-exact"] = "compass"
    """justrl-exact: JustRL's script with its empty question, the whole response, "A" alone accepted."""
    judge_revision: str = ""
    """The hub judge's revision; if empty, for CompassVerifier-3B the one that is pinned."""
    judge_prompt: str = ""
    """The judge's published prompt: a text file or FILE.py[:VARIABLE]; if empty, $STAPO_JUDGE_PROMPT, else it is
    fetched at its commit."""
    judge_prompt_unpublished: bool = False
    """Ask in a prompt that is no published one; every record says so."""
    judge_engine: Literal["", "hf", "vllm", "openai"] = ""
    """Engine of the judge; if empty, that of the run, or openai with --judge-url."""
    judge_url: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Address of an endpoint that serves the judge; several share the work."""
    preset: Literal["ours", "math-verify", "justrl", "strict"] = "ours"
    """Rule grader (docs/evaluation.md says what each does)."""
    accept_variant: bool = False
    """Run a copy of a benchmark with other rows or golds; every record says so."""
    strict: bool = False
    """Refuse a copy whose problem texts differ."""
    revision: str = ""
    """The hub model's revision."""
    method: str = ""
    """Label of the method; if empty, the model's stapo.json, else external."""
    size: str = ""
    """Label of the size; if empty, stapo.json, else the model's name."""
    train_seed: int = -1
    """Label of the training seed; if -1, stapo.json, else 0."""
    step: str = ""
    """Label of the training step, or base; if empty, stapo.json, else base."""
    threads: int = 0
    """CPU threads of the engine, part of what makes it repeatable; if 0, one for a tiny model, else all cores."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights' type (auto: float32 on a CPU, bfloat16 on a GPU)."""
    batch_rows: int = 0
    """Rows of a batch of the engine hf; if 0, 64 on a CPU, 512 on a GPU, fewer as memory demands."""
    retry_errors: bool = False
    """Make samples again on which the engine failed; the failed records go to samples.failed.jsonl."""


@dataclass(frozen=True)
class RunOptions(EngineOptions, _Evaluation):
    """Everything that `stapo-eval run` is told of one evaluation; but for `model` all has a default."""

    def engine_options(self) -> EngineOptions:
        return EngineOptions(**{f.name: getattr(self, f.name) for f in fields(EngineOptions)})

    def judge_options(self) -> tuple[str, EngineOptions]:
        """(engine of the judge, its options): those of the run, but for what the judge has of its own."""
        kind = self.judge_engine or ("openai" if self.judge_url else self.engine)
        options = replace(self.engine_options(), served_model="")
        if kind == "openai":
            return kind, replace(options, url=self.judge_url or options.url, replicas=0, tensor_parallel=1)
        return kind, replace(options, url=self.judge_url)


@dataclass(frozen=True)
class JudgeOptions:
    """What `stapo-eval judge` is told."""

    run: str
    """Run folder, the --out of stapo-eval run."""
    judge: str
    """Verifier model: folder or hub id, such as opencompass/CompassVerifier-3B; none: the rule scores alone."""
    scope: Literal["rule-negatives", "all"] = "rule-negatives"
    """Which samples the judge is asked about; its word counts where it is asked."""
    mode: Literal["compass", "justrl-exact"] = "compass"
    """justrl-exact: JustRL's script with its empty question, the whole response, "A" alone accepted."""
    revision: str = ""
    """The hub judge's revision; if empty, for CompassVerifier-3B the one that is pinned."""
    prompt: str = ""
    """The judge's published prompt: a text file or FILE.py[:VARIABLE]; if empty, $STAPO_JUDGE_PROMPT, else it is
    fetched at its commit."""
    prompt_unpublished: bool = False
    """Ask in a prompt that is no published one; every record says so."""
    engine: Literal["", "hf", "vllm", "openai"] = ""
    """Engine of the judge; if empty, that of the run, or openai with --url."""
    url: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Address of an OpenAI-compatible endpoint that serves the judge; several share the work."""
    key_variable: str = ""
    """Environment variable with the endpoint's key; if empty, that of the run."""
    data_dir: str = ""
    """Directory with the benchmarks' files; if empty, that of the run."""
    benchmarks: str = ""
    """Files of benchmarks that the run was given by path, joined by commas."""


def benchmark_files(files: str) -> dict[str, str]:
    """Files of benchmarks, joined by commas, by the name that a run gives each.

    Raises:
        BadInput: for what is no such file.
    """
    given = [x.strip() for x in files.split(",") if x.strip()]
    if wrong := [x for x in given if not is_file_name(x)]:
        raise BadInput("--benchmarks takes .jsonl and .parquet files here", found=", ".join(wrong))
    return {name_of_file(Path(x)): x for x in given}
