"""Whole trainings as processes: what the slow tests of them share."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

SCRIPT = Path(sys.executable).with_name("stapo-train")
STEPS = 4
_started: list[subprocess.Popen] = []


def command(base: Path, out: Path, *more: str) -> list[str]:
    return [str(SCRIPT), "run", "method=stapo", "size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}",
            f"run.steps={STEPS}", "trainer.save_freq=2", "trainer.test_freq=2", "data.train_batch_size=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8", "data.train_max_samples=16",
            *more]  # fmt: skip


def train(base: Path, out: Path, *more: str, expected: int = 0) -> None:
    """Run to the end."""
    code = start(base, out, *more).wait(timeout=600)
    assert code == expected, (out / "log.txt").read_text()[-4000:]


def start(base: Path, out: Path, *more: str) -> subprocess.Popen:
    out.mkdir(parents=True, exist_ok=True)
    # a file: a child that outlived its parent would hold a pipe open
    # SPT_NOENV: Ray's processes rename themselves and would overwrite the environment that `survivors` reads
    # CUDA_VISIBLE_DEVICES: as somebody hides the GPUs of a machine that has some
    environment = os.environ | {"STAPO_TEST_RUN": str(out), "SPT_NOENV": "1", "CUDA_VISIBLE_DEVICES": ""}
    with open(out / "log.txt", "w") as log:
        process = subprocess.Popen(
            command(base, out, *more), stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
    _started.append(process)
    return process


def kill_started() -> None:
    """What a failed test left: Ray's processes end when they notice that this one is gone."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(file: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 300
    while not file.exists():
        assert process.poll() is None, (file.parents[2] / "log.txt").read_text()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def complete(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"global_step_{step}" / "COMPLETE.json"


def weights(out: Path, model: Path) -> bytes:
    done = subprocess.run([str(SCRIPT), "export", "--checkpoint", str(out), "--out", str(model)],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (model / "model.safetensors").read_bytes()


def same_log(out: Path, whole: Path) -> None:
    """Metrics and token log are the uninterrupted run's, byte for byte."""
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    one, other = ({p.relative_to(f): p.read_bytes() for p in (f / "token_log").rglob("*.*")} for f in (out, whole))
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []


def survivors(out: Path, patience: float = 0) -> list[str]:
    """Processes that were started by this run (see `start`) and still live after `patience` seconds at most.

    Ray's workers end by themselves when they notice that their server is gone.
    """
    deadline = time.monotonic() + patience
    while (found := _alive(out)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def _alive(out: Path) -> list[str]:
    found = []
    for p in psutil.process_iter():
        try:
            if p.environ().get("STAPO_TEST_RUN") == str(out) and p.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(p.cmdline())[:80])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
