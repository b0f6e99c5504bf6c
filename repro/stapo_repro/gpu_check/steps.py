"""The steps of the check: the suite's own commands at the smallest sizes, and what must be true of what they leave."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stapo_repro.gpu_check.shell import Shell
from stapo_repro.run.request import console_script
from stapo_results import provenance
from stapo_results.errors import RunFailed
from stapo_results.schema import Bench, Run, StepMetrics
from stapo_results.store import read, read_json

Values = dict[str, float | str]
# without a GPU: as many processes as hardware=1gpu has by veRL's defaults; hardware=cpu-vllm has one and none
_WORKERS = ["actor_rollout_ref.rollout.agent.num_workers=8", "reward.num_workers=8"]
STEPS = 3
SAMPLES = 2000
"""Of the evaluation: 2 benchmarks x 2 settings x 50 problems x 10 samples."""
_WHAT = ("--benchmarks", "mini-add,mini-add-hard", "--settings", "both", "--limit", "50", "--n", "10")
_FP32, _BF16 = 1e-6, 0.005
"""Mean absolute difference of a token's probability between rollout and trainer that rounding explains. A
transfer that failed, or attention across a sequence's end, is far above."""
_SERVER_SECONDS = 300


@dataclass(frozen=True)
class Setting:
    """One machine's check: its folder, what runs its commands, and whether it is the form without a GPU."""

    out: Path
    shell: Shell
    cpu: bool

    @property
    def base(self) -> Path:
        return self.out / "base"

    def training(self, name: str, *more: str) -> list[str]:
        """The command of a training: the miniature on the rollout, precision and attention of a GPU run."""
        a, hardware = "actor_rollout_ref", "cpu-vllm" if self.cpu else "1gpu"
        gpu = [f"{a}.rollout.gpu_memory_utilization=0.3", f"{a}.rollout.max_model_len=256"]
        own = _WORKERS if self.cpu else gpu
        return [
            *(console_script("stapo-train"), "run", "method=stapo", "size=mini", f"hardware={hardware}"),
            *(f"run.base={self.base}", f"run.out={self.out / name}", f"run.steps={STEPS}", "trainer.save_freq=1"),
            *("trainer.val_before_train=false", "trainer.test_freq=-1"),
            # steps so large that a rollout with the weights of the step before is seen through bf16's rounding
            *(f"{a}.actor.optim.lr=0.0005", f"{a}.actor.optim.lr_warmup_steps=0", *own, *more),
        ]


@dataclass(frozen=True)
class Step:
    """One step: `needs` are names of steps that have to have passed."""

    name: str
    title: str
    paths: tuple[str, ...]
    work: Callable[[Setting], Values]
    needs: tuple[str, ...] = ()


def _require(true: bool, what: str, found: object, expected: object) -> None:
    if not true:
        raise RunFailed(what, found=found, expected=expected, next_step="read logs/ in the folder of the check")


def machine(s: Setting) -> Values:
    """Versions, card and driver."""
    packages = provenance.package_versions()
    found: Values = {
        n: packages[n] for n in ("python", "torch", "verl", "vllm", "transformers", "ray") if n in packages
    }
    if not s.cpu:
        about = s.shell.about_card("name,driver_version,memory.total")
        _require(len(about) == 3, "the chosen card is not there", s.shell.card, "one that nvidia-smi lists")
        found |= {"card": about[0], "driver": about[1], "card_gib": round(int(about[2]) / 1024, 1)}
    return found


def base(s: Setting) -> Values:
    """The miniature's base model, data and benchmarks; the training's own preflight by its dry run."""
    s.shell.run("base", console_script("stapo-train"), "base", "--out", str(s.base))
    s.shell.run("plan", *s.training("speculative"), "--dry-run")
    return {}


def scores(s: Setting) -> Values:
    """Log-probability and entropy of tokens in tiles against float64, and their cost beside veRL's functions."""
    more = ["--quick"] if s.cpu else ["--repeats", "3"]
    s.shell.run(
        "scores", console_script("stapo-train"), "bench", "--part", "tokens", "--out", str(s.out / "scores"), *more
    )
    rows = {r.name: r for r in read_json(s.out / "scores" / "bench.json", Bench).rows}
    ours = rows["ours: score_tokens"]
    off = max(ours.values["logprob_off"], ours.values["entropy_off"])
    _require(off < 1e-3, "token scores are not those of float64", off, "below 1e-3")
    verl = rows["veRL: logprobs_from_logits, entropy_from_logits"]
    return {"largest_distance": off, "seconds": ours.seconds, "seconds_of_verl": verl.seconds}


def _steps(s: Setting, name: str) -> dict[int, dict[str, float]]:
    """Values and times of a training's steps, checked."""
    run = read_json(s.out / name / "run.json", Run)
    found = {m.step: dict(m.values) for m in read(s.out / name / "metrics.jsonl", StepMetrics)}
    for m in read(s.out / name / "timings.jsonl", StepMetrics):
        found[m.step] |= m.values
    whole = list(range(1, STEPS + 1))
    _require(
        run.status == "done" and [*found] == whole, "the training is not whole", f"{run.status}, {[*found]}", whole
    )
    _require(all(v["grad_norm"] > 0 for v in found.values()), "a step has no gradient",
             [v["grad_norm"] for v in found.values()], "above 0")  # fmt: skip
    off = max(v["training/rollout_probs_diff_mean"] for v in found.values())
    largest = _FP32 if s.cpu else _BF16
    _require(off < largest, "rollout and trainer disagree about the policy", off, f"below {largest}")
    return found


def _summary(steps: dict[int, dict[str, float]]) -> Values:
    last, probs = steps[STEPS], "training/rollout_probs_diff"
    return {
        "seconds_of_the_last_step": round(last["seconds"], 2),
        "mean_probability_difference": max(v[f"{probs}_mean"] for v in steps.values()),
        "largest_probability_difference": max(v[f"{probs}_max"] for v in steps.values()),
        "silenced_share": sum(v["silenced_share"] for v in steps.values()) / STEPS,
        "redone_share": max(v.get("redone_share", 0.0) for v in steps.values()),
    }


def speculative(s: Setting) -> Values:
    """Three steps of STAPO on packed rows with vLLM's rollout, killed after the first, and the same command again."""
    first = s.out / "speculative" / "checkpoints" / "global_step_1" / "COMPLETE.json"
    s.shell.kill_when("speculative", first.exists, *s.training("speculative"))
    s.shell.run("resumed", *s.training("speculative"))
    run = read_json(s.out / "speculative" / "run.json", Run)
    _require(len(run.resumptions) == 1, "the run does not say that it was resumed", len(run.resumptions), 1)
    return _summary(_steps(s, "speculative"))


def two_pass(s: Setting) -> Values:
    """The same training with selection in two passes, for the times beside."""
    s.shell.run("two_pass", *s.training("two_pass", "actor_rollout_ref.selector.form=two_pass"))
    return _summary(_steps(s, "two_pass"))


def export(s: Setting) -> Values:
    """The last checkpoint as a model folder."""
    s.shell.run("export", console_script("stapo-train"), "export", "--checkpoint", str(s.out / "speculative"),
                "--out", str(s.out / "model"))  # fmt: skip
    return {}


def _evaluated(s: Setting, name: str, seconds: float) -> Values:
    cells = json.loads((s.out / name / "summary.json").read_text())["cells"]
    missing = sum(c["missing"] for c in cells)
    lines = (s.out / name / "samples.jsonl").read_bytes().count(b"\n")
    _require(lines == SAMPLES and missing == 0, "samples are missing", f"{lines}, {missing} missing", SAMPLES)
    return {"samples": float(lines), "samples_a_second": round(lines / seconds, 1)}


def _evaluate(s: Setting, name: str, *engine: str) -> Values:
    command = (console_script("stapo-eval"), "run", "--model", str(s.out / "model"), *_WHAT, "--max-tokens", "128",
               "--data-dir", str(s.base / "benchmarks"), "--out", str(s.out / name), *engine)  # fmt: skip
    return _evaluated(s, name, s.shell.run(name, *command))


def evaluation(s: Setting) -> Values:
    """2,000 samples at both decoding settings with vLLM in the process."""
    return _evaluate(s, "eval", "--engine", "vllm", "--replicas", "1")


@contextmanager
def _server(s: Setting, name: str, model: Path) -> Iterator[str]:
    """vLLM's own server of a model on loopback: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    how = ["--gpu-memory-utilization", "0.5"]
    if s.cpu:
        how = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--dtype", "float32"]
    command = (console_script("vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port),
               "--served-model-name", "check", "--logprobs-mode", "processed_logprobs", *how)  # fmt: skip
    deadline = time.monotonic() + _SERVER_SECONDS
    with s.shell.started(name, *command) as process:
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                s.shell.fail(name, f"no answer within {_SERVER_SECONDS} s")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def served(s: Setting) -> Values:
    """The same through vLLM's server on loopback, which then is the judge too."""
    with _server(s, "server", s.out / "model") as url:
        found = _evaluate(s, "eval-server", "--engine", "openai", "--url", url, "--served-model", "check")
        return found | _judge(s, "eval-server", "--engine", "openai", "--url", url, "--judge", str(s.out / "model"))


def judged(s: Setting) -> Values:
    """The judge's path with the base model in the judge's place: what it says is nonsense, and counted as such."""
    return _judge(s, "eval", "--engine", "vllm", "--judge", str(s.base / "model"))


def _judge(s: Setting, name: str, *how: str) -> Values:
    s.shell.run(f"judge-{name}", console_script("stapo-eval"), "judge", "--run", str(s.out / name), *how)
    lines = (s.out / name / "judgements.jsonl").read_bytes().count(b"\n")
    _require(lines > 0, "the judge was asked nothing", lines, "at least one question")
    return {"questions": float(lines)}


CHECK = (
    Step("machine", "versions, card and driver", (), machine),
    Step("base", "base model, and the training's preflight", (), base, ("machine",)),
    Step("scores", "token scores against float64", ("token-scores",), scores, ("machine",)),
    Step("speculative", "three steps, killed and resumed", ("rollout-vllm", "transfer-tied", "transfer-ipc", "mini",
         "train-bf16", "rollout-bf16", "attention-packed", "speculative", "resume"), speculative, ("base",)),
    Step("two-pass", "the same in two passes", ("rollout-vllm", "two-pass", "attention-packed"), two_pass, ("base",)),
    Step("export", "export", ("export",), export, ("speculative",)),
    Step("evaluation", "2,000 samples, vLLM in the process", ("engine-vllm",), evaluation, ("export",)),
    Step("server", "2,000 samples and a judge, vLLM's server", ("engine-server", "judge-server"), served, ("export",)),
    Step("judge", "a judge by vLLM", ("judge-vllm",), judged, ("evaluation",)),
)  # fmt: skip
GPU_ONLY = ("transfer-ipc", "train-bf16", "rollout-bf16")
"""Paths that the form without a GPU does not walk."""
