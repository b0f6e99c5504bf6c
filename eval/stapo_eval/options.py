"""Options of an evaluation: `What` decides its numbers, `Where` does not, of the engine's a few (`plan.identity`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from stapo_eval.decoding import Chat
from stapo_eval.engines.options import EngineOptions, key_values
from stapo_results.benchmarks import is_file_name, name_of_file
from stapo_results.errors import BadInput
from stapo_results.schema import MAX_TOKENS, JudgeMode, Preset

_TEMPLATE = {"conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize",
             "continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict",
             "return_assistant_tokens_mask", "tokenizer_kwargs"}  # fmt: skip
"""Parameters of transformers' `apply_chat_template` that are not the template's."""


@dataclass(frozen=True)
class Judging:
    """Options of the judge, those of `stapo-eval judge` too; its model and prompt count by their hashes."""

    judge: str = ""
    """none, or a verifier model (folder or hub id, such as opencompass/CompassVerifier-3B). If empty, none; stapo-eval
    judge wants it said."""
    judge_scope: Literal["rule-negatives", "all"] = "rule-negatives"
    """Samples that the judge is asked about; for these its verdict is the score."""
    judge_mode: JudgeMode = "compass"
    """justrl-exact: JustRL's script with its empty question, the whole response, "A" alone accepted."""
    judge_revision: str = ""
    """The hub judge's revision; if empty, for CompassVerifier-3B the one that is pinned."""
    judge_prompt: str = ""
    """The judge's published prompt: a text file or FILE.py[:VARIABLE]; if empty, $STAPO_JUDGE_PROMPT, else it is
    fetched at its commit."""
    judge_prompt_unpublished: bool = False
    """Use a prompt that is not published; every record says so."""
    judge_engine: Literal["", "hf", "vllm", "openai"] = ""
    """Engine of the judge; if empty, that of the run, or openai with --judge-url, which openai needs."""
    judge_url: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Address of an OpenAI-compatible endpoint that serves the judge; several share the work."""
    judge_max_model_len: int = 0
    """The same as --max-model-len, of the judge; if 0, all that it has."""


@dataclass(frozen=True)
class Where:
    """Options that change no number: places, and files that count by their hashes, whatever their paths are."""

    model: str
    """Folder with config.json and safetensors weights, or a hub id."""
    revision: str = ""
    """The hub model's revision."""
    data_dir: str = ""
    """Directory with the benchmarks' JSONL files and a registry.yaml; if empty, $STAPO_DATA_DIR, else the hub."""
    out: str = ""
    """Run folder; if empty, runs/eval/<model's labels>."""
    retry_errors: bool = False
    """Repeat the samples on which the engine failed; the failed records go to samples.failed.jsonl."""


@dataclass(frozen=True)
class What:
    """Options that samples, verdicts or scores depend on: in one run folder each but `batch_rows` has one value."""

    benchmarks: str = "all"
    """Names or .jsonl files joined by commas; `all` is the paper's six."""
    settings: str = "both"
    """both, t1.0 (temperature 1.0, top-p 1.0) or t0.7 (0.7, 0.9); t0 is greedy; card is what the
    model's generation_config.json recommends; any other as t0.8-p0.9, with -k20 for top-k and -m0.1 for min-p."""
    engine: Literal["hf", "vllm", "openai"] = "hf"
    """hf: transformers, deterministic on a CPU. vllm: needs its own environment. openai: endpoints, see --url."""
    n: int = 0
    """Samples a problem; if 0, the benchmark's own N, and one at t0."""
    limit: int = 0
    """Number of problems of each benchmark, from the first; if 0, all. Records say so."""
    system: str = ""
    """System message before each problem; the paper has none. Every record says so."""
    template: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """KEY=VALUE, an argument of the model's chat template such as enable_thinking=false (JSON or text; repeat it)."""
    max_tokens: int = MAX_TOKENS
    """Longest response in tokens; the model's positions may allow less."""
    eval_seed: int = 0
    """Seed of this evaluation; every sample's own seed derives from it."""
    preset: Preset = "ours"
    """Rule grader (docs/evaluation.md says what each does)."""
    accept_variant: bool = False
    """Run a copy of a benchmark with other rows or golds; every record says so."""
    strict: bool = False
    """Refuse a copy whose problem texts differ."""
    method: str = ""
    """Label of the method; if empty, the model's stapo.json, else external."""
    size: str = ""
    """Label of the size; if empty, stapo.json, else the model's name."""
    train_seed: int = -1
    """Label of the training seed; if -1, stapo.json, else 0."""
    step: str = ""
    """Label of the training step, or base; if empty, stapo.json, else base."""
    threads: int = 0
    """CPU threads of engine hf; samples repeat only with the same number. If 0, one for a tiny model's, else all."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights' type (auto: bfloat16 on a GPU, and with hf on a processor that is fast at it; else float32)."""
    batch_rows: int = 0
    """Responses that the engine hf works on at a time; if 0, 64 on a CPU, 512 on a GPU, fewer as memory demands."""


@dataclass(frozen=True)
class RunOptions(EngineOptions, What, Judging, Where):
    """Options of `stapo-eval run`, all of them recorded; only `model` is required."""

    @property
    def chat(self) -> Chat:
        return Chat(self.system, key_values("template", self.template, _TEMPLATE))

    def judge_options(self) -> tuple[str, EngineOptions]:
        """(engine of the judge, its options): those of the run, with the judge's own address."""
        kind = self.judge_engine or ("openai" if self.judge_url else self.engine)
        options: EngineOptions = replace(self, served_model="", max_model_len=self.judge_max_model_len)
        options = options if kind == "vllm" else replace(options, vllm=())
        if kind == "openai":
            options = replace(options, replicas=0, tensor_parallel=1)
        return kind, replace(options, url=self.judge_url)  # at the run's address the model would judge itself


MEMORY = {"gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs", "max_num_batched_tokens", "cpu_offload_gb"}
"""Arguments of vLLM that no sample depends on."""
IDENTITY = {
    *({f.name for f in fields(What)} - {"system", "template"}),
    "served_model",
    "judge_scope",
    "judge_mode",
    "judge_engine",
}
RECORDED = {f.name for f in fields(RunOptions)}
_DEFAULTS = {f.name: f.default for f in fields(RunOptions) if f.default is not MISSING} | {"vllm": {}, "template": {}}


def recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """A record's configuration with what was so before a record could say it.

    An option that did not exist had its default. Threads were once counted for engines that they say nothing of.
    """
    known = {**_DEFAULTS, **config}
    return known if "hf" in (known["engine"], known["judge_engine"]) else known | {"threads": 0}


def listed(text: str) -> list[str]:
    """The names in a text that joins them by commas."""
    return [x.strip() for x in text.split(",") if x.strip()]


def data_dir_of(config: dict[str, Any], given: str = "") -> str:
    """Where a recorded run's benchmarks are: as given, else where the run found them, else "" (not on this machine)."""
    known = str(config.get("data_dir") or "")
    return given or (known if Path(known).is_dir() else "")


def benchmark_files(files: str) -> dict[str, str]:
    """Files of benchmarks, joined by commas, by the name that a run gives each.

    Raises:
        BadInput: for what is no such file.
    """
    given = listed(files)
    if wrong := [x for x in given if not is_file_name(x)]:
        raise BadInput("--benchmarks takes .jsonl and .parquet files here", found=", ".join(wrong))
    files_of = {name_of_file(Path(x)): x for x in given}
    if len(files_of) < len(set(given)):
        raise BadInput("two files of --benchmarks have one name", found=files, next_step="rename one of them")
    return files_of
