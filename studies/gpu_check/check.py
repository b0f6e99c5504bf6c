"""`tox -e gpu-check`: the suite's own commands on this machine's GPU, small, and a record of what came of them."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from stapo_repro.collect import without_paths
from stapo_repro.run import processes
from stapo_repro.run.checks import check_system
from stapo_repro.run.request import console_script
from stapo_repro.run.stages import CHILD_ENVIRONMENT, interrupt_once
from stapo_results import provenance, runs, store, throughput
from stapo_results.errors import BadInput, RunFailed, StapoError
from stapo_results.schema import Record, Run, StepMetrics
from stapo_results.shapes import shape_from

RECORD = "check.json"
STEPS, SAMPLES = 3, 2000  # of a training; of an evaluation: 2 benchmarks x 2 settings x 50 problems x 10 samples
ROUNDING = {"cpu": 1e-6, "gpu": 0.005}
"""Mean absolute difference of a token's probability between rollout and trainer that fp32 and bf16 explain. A transfer
that failed, or attention across a sequence's end, is far above."""
HARDWARE = {
    # as many processes as hardware=1gpu has by veRL's defaults; hardware=cpu-vllm has one and none
    "cpu": "hardware=cpu-vllm actor_rollout_ref.rollout.agent.num_workers=8 reward.num_workers=8",
    "gpu": "hardware=1gpu actor_rollout_ref.rollout.gpu_memory_utilization=0.3 "
    "actor_rollout_ref.rollout.max_model_len=256",
}
# steps so large that a rollout with the weights of the step before is seen through bf16's rounding
TRAIN = (
    f"stapo-train run method=stapo size=mini run.base={{out}}/base run.steps={STEPS} trainer.save_freq=1 "
    "trainer.val_before_train=false trainer.test_freq=-1 actor_rollout_ref.actor.optim.lr=0.0005 "
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0 "
)
EVALUATE = (
    "stapo-eval run --model {out}/model --benchmarks mini-add,mini-add-hard --settings both --limit 50 --n 10 "
    "--max-tokens 128 --data-dir {out}/base/benchmarks "
)
SERVE = {
    "cpu": "--no-enable-chunked-prefill --max-num-batched-tokens 8192 --dtype float32",
    "gpu": "--gpu-memory-utilization 0.5",
}
Values = Mapping[str, float | str]


class CheckedStep(BaseModel):
    """One step of `tox -e gpu-check`.

    Attributes:
        paths, level: of records from before 2026-11-24, which named what a step covers.
        values: what was measured, by name with its unit.
        error: the first line of what went wrong, and of a step that was left out, why.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    paths: list[str] = []
    level: Literal["ran"] = "ran"
    outcome: Literal["passed", "failed", "left_out"]
    seconds: float
    values: dict[str, float | str] = {}
    error: str = ""


class MachineCheck(Record):
    """What `tox -e gpu-check` found on one machine, with which code."""

    command: str
    device: Literal["cpu", "gpu"]
    at: str
    code_commit: str
    code_dirty: str
    packages: dict[str, str]
    hardware: dict[str, Any]
    walked: list[CheckedStep]


class CheckedMachine:
    """One check: its folder, its card as CUDA_VISIBLE_DEVICES names it ("" hides all), and its commands.

    `model` is the card's name, which the first step finds.
    """

    def __init__(self, out: Path, card: str):
        self.out, self.card, self.mark, self.model = out, card, processes.new_mark(out), ""
        self.device: Literal["cpu", "gpu"] = "gpu" if card else "cpu"

    @contextmanager
    def running(self, name: str, command: str, limit_s: float, there: Callable[[], bool] | None = None) -> Iterator:
        """A command as it is typed, {out} for the folder of the check and {here} for this study's, with a log, once
        `there()`, by default its end; at the end of the block all that it started is gone.

        Raises:
            RunFailed: it ended before that, or the limit has passed; with the end of its log.
        """
        program, *arguments = command.split()
        here, out = str(Path(__file__).parent), str(self.out)
        words = [console_script(program), *(a.replace("{out}", out).replace("{here}", here) for a in arguments)]
        log, mark = self.out / "logs" / f"{name}.log", f"{self.mark}.{name}."
        environment = CHILD_ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": self.card}
        if not self.card:
            environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
        process = processes.start(words, log, mark, environment)
        until = time.monotonic() + limit_s
        try:
            while not (there() if there else process.poll() == 0):
                if process.poll() is not None or time.monotonic() > until:
                    tail = [f"\n    | {line[:300]}" for line in log.read_text(errors="replace").splitlines()[-15:]]
                    code = process.returncode
                    found = f"none within {limit_s:.0f} s" if code is None else f"exit code {code}"
                    raise RunFailed(f"{name} failed", found=found + "".join(tail), next_step=f"the whole log: {log}")
                time.sleep(0.02)
            yield process
        finally:
            processes.Family(mark).end(process, grace=10)

    def run(self, name: str, command: str, limit_s: float = 600) -> float:
        """Run a command to its end; returns its seconds. Raises as `running`."""
        began = time.perf_counter()
        with self.running(name, command, limit_s):
            return time.perf_counter() - began

    def train(self, name: str, more: str = "") -> str:
        """The command of a training: the miniature on the rollout, precision and attention of a GPU run."""
        return f"{TRAIN}{HARDWARE[self.device]} run.out={{out}}/{name} {more}"


def _require(true: bool, what: str, found: object, expected: object) -> None:
    if not true:
        raise RunFailed(what, found=found, expected=expected, next_step="read logs/ in the folder of the check")


def _machine(m: CheckedMachine) -> Values:
    rows = [line.split(", ") for line in provenance.nvidia_smi("index,uuid,name,driver_version").splitlines()]
    about = next((r[2:] for r in rows if m.card and (r[0] == m.card or r[1].startswith(m.card))), [])
    _require(bool(about or not m.card), "the chosen card is not there", m.card, "one that nvidia-smi lists")
    m.model = about[0] if about else ""
    return dict(zip(("card", "driver"), about, strict=False))


def _base(m: CheckedMachine) -> Values:
    m.run("base", "stapo-train base --out {out}/base")
    return {}


def _scores(m: CheckedMachine) -> Values:
    m.run("scores", "python {here}/scores.py {out}/scores.json")
    found = json.loads((m.out / "scores.json").read_text())
    worked = found["bfloat16" if m.card else "float32"]
    reads = {f"reads_{name}": worked["reads"][name] for name in ("forward", "backward")}
    return {"largest_distance": max(worked["logprob_off"], worked["entropy_off"]), **reads}


def _trained(m: CheckedMachine, name: str) -> Values:
    """Run a training to its end; values and times of its steps, checked."""
    m.run(name, m.train(name))
    found = {s.step: dict(s.values) for s in store.read(m.out / name / "metrics.jsonl", StepMetrics)}
    _require([*found] == [*range(1, STEPS + 1)], "the training is not whole", [*found], f"steps 1 to {STEPS}")
    for s in store.read(m.out / name / "timings.jsonl", StepMetrics):  # differences of rounding are there too
        found.get(s.step, {}).update(s.values)
    values, probs = list(found.values()), "training/rollout_probs_diff"
    norms = [v["grad_norm"] for v in values]
    _require(min(norms) > 0, "a step has no gradient", norms, "above 0")
    off, most = max(v[f"{probs}_mean"] for v in values), ROUNDING[m.device]
    _require(off < most, "rollout and trainer disagree about the policy", off, f"below {most}")
    return {
        "seconds_of_the_last_step": round(found[STEPS]["seconds"], 2),
        "mean_probability_difference": off,
        "largest_probability_difference": max(v[f"{probs}_max"] for v in values),
        "silenced_share": sum(v["silenced_share"] for v in values) / STEPS,
        **_rates(m, found[STEPS]),
    }


def _rates(m: CheckedMachine, step: Mapping[str, float]) -> Values:
    """Tokens a second in the parts of the plan, and for a known card what the plan says of them. The plan has no
    launches but decoding's, which decide at the miniature's size: an update there is slower than planned."""
    prompt, response = step["prompt_length/mean"], step["response_length/mean"]
    whole, tokens = prompt + response, step["global_seqlen/mean"]
    sequences = round(tokens / whole)
    seconds = {"update": step["timing_s/update_actor"], "old_pass": step["timing_s/old_log_prob"]}
    seconds["decoding"] = step["timing_s/gen"]
    counted = {"update": tokens, "old_pass": tokens, "decoding": sequences * response}
    found: dict[str, float | str] = {f"{k}_tokens_a_second": round(n / seconds[k], 1) for k, n in counted.items()}
    if name := throughput.card_named(m.model):
        model, card = m.out / "base" / "model" / "config.json", throughput.CARDS[name]
        lengths = throughput.Lengths(response, round(step["response_length/max"]), 0.0)
        shape = shape_from(json.loads(model.read_text()), str(model))
        plan = throughput.Step(shape, sequences, lengths, checkpointing=False, logits="eager")
        passes = {"update": True, "old_pass": False}
        planned = {k: plan.on_one(card, tokens, sequences * whole**2, gradient=g) for k, g in passes.items()}
        planned["decoding"] = plan.sampling(card, 1)
        found |= {f"{k}_seconds_of_planned": round(seconds[k] / planned[k], 3) for k in planned}
    return found


def _training(m: CheckedMachine) -> Values:
    folder = m.out / "training"
    first = folder / "checkpoints" / "global_step_1" / "COMPLETE.json"
    with m.running("killed", m.train("training"), 600, first.exists) as process:
        process.kill()
    found, run = _trained(m, "training"), store.read_json(folder / "run.json", Run)
    _require(len(run.resumptions) == 1, "the run does not say that it was resumed", len(run.resumptions), 1)
    return found


def _export(m: CheckedMachine) -> Values:
    m.run("export", "stapo-train export --checkpoint {out}/training --out {out}/model")
    return {}


def _evaluate(m: CheckedMachine, name: str, engine: str) -> Values:
    seconds = m.run(name, f"{EVALUATE} --out {{out}}/{name} {engine}")
    missing = sum(c["missing"] for c in json.loads((m.out / name / "summary.json").read_text())["cells"])
    lines = (m.out / name / "samples.jsonl").read_bytes().count(b"\n")
    _require(lines == SAMPLES and missing == 0, "samples are missing", f"{lines}, {missing} missing", SAMPLES)
    return {"samples": float(lines), "samples_a_second": round(lines / seconds, 1)}


def _judge(m: CheckedMachine, name: str, how: str) -> Values:
    m.run(f"judge-{name}", f"stapo-eval judge --run {{out}}/{name} {how}")
    lines = (m.out / name / "judgements.jsonl").read_bytes().count(b"\n")
    _require(lines > 0, "the judge was asked nothing", lines, "at least one question")
    return {"questions": float(lines)}


def _server(m: CheckedMachine) -> Values:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def answers() -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return True
        return False

    named = "--served-model-name check --logprobs-mode processed_logprobs"
    serve = f"vllm serve {{out}}/model --host 127.0.0.1 --port {port} {named} {SERVE[m.device]}"
    with m.running("server", serve, 300, answers):
        engine = f"--engine openai --url http://127.0.0.1:{port}/v1"
        found = _evaluate(m, "eval-server", f"{engine} --served-model check")
        return {**found, **_judge(m, "eval-server", f"--judge-url http://127.0.0.1:{port}/v1 --judge {{out}}/model")}


class MachineStep(NamedTuple):
    """One step; `needs` is the step that has to have passed before it; `minutes` are expected, on an H100: from the
    190 s that a start of a training took there, and 85 s of vLLM alone."""

    name: str
    work: Callable[[CheckedMachine], Values]
    needs: str = ""
    minutes: float = 0.0


CHECK = (
    MachineStep("machine", _machine),
    MachineStep("base", _base, "machine", 0.5),
    MachineStep("scores", _scores, "machine", 0.5),
    MachineStep("training", _training, "base", 5.5),
    MachineStep("export", _export, "training", 0.5),
    MachineStep("evaluation", lambda m: _evaluate(m, "eval", "--engine vllm --replicas 1"), "export", 1.5),
    # the model in the judge's place too: what it says is nonsense, and counted as such
    MachineStep("server", _server, "export", 1.5),
)


def check(out: Path, cpu: bool, steps: Sequence[MachineStep] = CHECK) -> int:
    """Run the steps one after the other, whatever comes of them; returns 0 when every one passed, else 1.

    Raises:
        BadInput: another system than Linux, no GPU is here, or the folder holds something.
    """
    check_system()
    if not cpu and not provenance.nvidia_smi("name"):
        raise BadInput("this needs an NVIDIA GPU", found="nvidia-smi lists none", next_step="tox -e gpu-check -- --cpu")
    if out.is_dir() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty", next_step=f"--out {out}-2, or remove it: each check is made anew")
    out, done = out.resolve(), dict[str, CheckedStep]()
    m = CheckedMachine(out, "" if cpu else os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0")
    code, dirty = provenance.code_version()
    anew = f"each check is made anew: --out {out}-2, or remove it"
    with runs.one_writer(out, "--out"), interrupt_once(anew), processes.watched(m.mark):
        for s in steps:
            if s.needs and done[s.needs].outcome != "passed":
                found = CheckedStep(name=s.name, outcome="left_out", seconds=0.0, error=f"needs {s.needs}")
            else:
                print(f"{s.name}, about {s.minutes:g} min ...", flush=True)
                found = _made(s, m)
            done[s.name] = found
            said = [f"{k} {v}" for k, v in found.values.items()] + ([found.error] if found.error else [])
            print(f"{s.name}: {found.outcome}, {found.seconds:.0f} s; {'; '.join(said)}", flush=True)
            record = MachineCheck(
                command="tox -e gpu-check" + (" -- --cpu" if cpu else ""), device=m.device,
                at=provenance.now(), code_commit=code, code_dirty=dirty, packages=provenance.package_versions(),
                hardware=provenance.hardware(), walked=list(done.values()),
            )  # fmt: skip
            store.write_json(out / RECORD, record)  # after each step: what ends the check ends the rest of it only
    print(f"record: {out / RECORD}")
    return 0 if all(s.outcome == "passed" for s in done.values()) else 1


def _made(step: MachineStep, m: CheckedMachine) -> CheckedStep:
    """The step, done; one that fails or breaks does not stop the others."""
    began, error, values = time.perf_counter(), "", {}
    try:
        values = step.work(m)
    except StapoError as e:
        print(e, flush=True)  # with the end of the log, which has this machine's folders and stays here
        error = without_paths(": ".join([e.what, *str(e.found or "").splitlines()[:1]]))
    except Exception as e:  # noqa: BLE001
        traceback.print_exc()
        error = type(e).__name__
    seconds, outcome = round(time.perf_counter() - began, 1), "failed" if error else "passed"
    return CheckedStep(name=step.name, outcome=outcome, seconds=seconds, values={**values}, error=error)
