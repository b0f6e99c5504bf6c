"""`stapo-eval run`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import tyro

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class RunCommand:
    """Sample, grade and judge: avg@N of one model over benchmarks and decoding settings.

    The same command again goes on where it was stopped, or returns at once if it had finished.
    """

    model: str
    """Folder with config.json and safetensors weights, or a hub id."""
    benchmarks: str = "all"
    """Names joined by commas; `all` is the paper's six."""
    settings: str = "both"
    """both, t1.0 (temperature 1.0, top-p 1.0) or t0.7 (0.7, 0.9)."""
    data_dir: str = ""
    """Directory with the benchmarks' JSONL files and a registry.yaml (default: $STAPO_DATA_DIR, else the hub)."""
    out: str = ""
    """Run folder (default: runs/eval/<model's labels>)."""
    engine: Literal["hf", "vllm", "openai"] = "hf"
    """hf: transformers, deterministic on a CPU. vllm: an environment of its own. openai: endpoints, see --url."""
    url: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Address of an OpenAI-compatible endpoint, http://HOST:PORT/v1. Several share the work (repeat it, or commas)."""
    served_model: str = ""
    """How the endpoint calls the model (default: --model, or the only one there if --model is a folder)."""
    concurrency: int = 64
    """Requests in flight at each address."""
    timeout: float = 3600.0
    """Seconds that an endpoint may take for one response."""
    patience: float = 300.0
    """Seconds without an answer from any address after which the run ends."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the endpoint's key; the key stands in no record."""
    replicas: int = 0
    """Copies of the engine, one a GPU, as actors on Ray; they share one queue (default: one engine, without Ray)."""
    ray_address: str = ""
    """Ray cluster, HOST:PORT or auto (default: $RAY_ADDRESS, else one of its own on this machine)."""
    tensor_parallel: int = 1
    """GPUs that share one copy of the model (vllm)."""
    n: int = 0
    """Samples a problem (default: the benchmark's own N)."""
    limit: int = 0
    """Only the first so many problems of each benchmark; records say so."""
    max_tokens: int = 20_480
    """Longest response in tokens; the model's positions may allow less."""
    eval_seed: int = 0
    """Seed of this evaluation; every sample's own seed derives from it."""
    judge: str = "none"
    """none, or a verifier model (folder or hub id, such as opencompass/CompassVerifier-3B)."""
    judge_scope: Literal["rule-negatives", "disagreements", "all"] = "rule-negatives"
    """Which samples the judge is asked about; its word counts where it is asked."""
    judge_mode: Literal["compass", "justrl-exact"] = "compass"
    """justrl-exact: JustRL's script with its empty question, the whole response, exactly "A" accepted."""
    judge_revision: str = ""
    """The hub judge's revision."""
    judge_engine: Literal["", "hf", "vllm", "openai"] = ""
    """Engine of the judge (default: that of the run, or openai with --judge-url)."""
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
    """Label of the method (default: the model's stapo.json, else external)."""
    size: str = ""
    """Label of the size (default: stapo.json, else the model's name)."""
    train_seed: int = -1
    """Label of the training seed (default: stapo.json, else 0)."""
    step: str = ""
    """Label of the training step, or base (default: stapo.json, else base)."""
    threads: int = 0
    """CPU threads of the engine (default: all cores; 1 for a tiny model). Part of what makes a run repeatable."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights' type (auto: float32 on a CPU, bfloat16 on a GPU)."""
    batch_rows: int = 0
    """Rows of a batch of the engine hf (default: 64 on a CPU, 512 on a GPU, fewer as memory demands)."""
    grade_seconds: float = 5.0
    """Wall time that grading one answer may take."""
    grade_memory_mib: int = 1024
    """Memory that grading one answer may take."""
    retry_errors: bool = False
    """Make samples again on which the engine failed; the failed records go to samples.failed.jsonl."""
    resume: bool = True
    """Go on with an unfinished run folder; --no-resume refuses one."""

    def __call__(self) -> int:
        from stapo_eval.run import RunOptions, run

        if not self.resume and self.out and (Path(self.out) / "run.json").exists():
            raise BadInput(f"{self.out} already holds a run", next_step="leave out --no-resume, or give another --out")
        run(RunOptions(**{f.name: getattr(self, f.name) for f in fields(RunOptions)}))
        return 0
