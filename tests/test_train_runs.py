"""Whole trainings on real veRL: the same bytes twice, after kill -9, on two ranks. Minutes each, so all are slow."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stapo_results import store
from stapo_results.schema import Run, StepMetrics

pytestmark = pytest.mark.slow

SCRIPT = Path(sys.executable).with_name("stapo-train")
STEPS = 4


def command(base: Path, out: Path, *more: str) -> list[str]:
    return [str(SCRIPT), "run", "method=stapo", "size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}",
            f"run.steps={STEPS}", "trainer.save_freq=2", "trainer.test_freq=2", "data.train_batch_size=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8", *more]  # fmt: skip


def train(base: Path, out: Path, *more: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    # a file, not a pipe: a child that outlived its parent would hold a pipe open and hang the test
    with open(out / "log.txt", "w") as log:
        code = subprocess.call(command(base, out, *more), stdout=log, stderr=subprocess.STDOUT, timeout=600)
    assert code == 0, (out / "log.txt").read_text()[-4000:]


def weights(out: Path, model: Path) -> bytes:
    done = subprocess.run([str(SCRIPT), "export", "--checkpoint", str(out), "--out", str(model)],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (model / "model.safetensors").read_bytes()


def survivors(marker: str) -> list[str]:
    """Processes whose command line or environment names this run's folder."""
    found = []
    for p in psutil.process_iter(["cmdline"]):
        line = " ".join(p.info["cmdline"] or [])
        if marker in line or "ray::" in line or "raylet" in line or "gcs_server" in line:
            found.append(line[:80])
    return found


@pytest.fixture(scope="module")
def whole(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """One uninterrupted run, and its exported weights."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny_base, out)
    return out, weights(out, out.parent / "model")


def test_a_run_leaves_its_record_and_no_process(whole: tuple[Path, bytes]) -> None:
    out, _ = whole
    run = store.read_json(out / "run.json", Run)
    assert (run.status, run.deterministic) == ("done", True)
    metrics = list(store.read(out / "metrics.jsonl", StepMetrics))
    assert [m.step for m in metrics] == [0, 1, 2, 3, 4]
    assert {"reward", "entropy", "silenced_share", "candidate_share", "response_tokens", "grad_norm"} <= set(
        metrics[1].values
    )
    assert [m.step for m in metrics if "accuracy" in m.values] == [0, 2, 4]
    assert survivors(str(out)) == []


def test_the_same_command_twice_gives_the_same_bytes(tiny_base: Path, whole, tmp_path: Path) -> None:
    out, expected = whole
    train(tiny_base, tmp_path / "again")
    assert weights(tmp_path / "again", tmp_path / "model") == expected
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (out / "metrics.jsonl").read_bytes()


def test_a_finished_run_returns_at_once_and_another_configuration_is_refused(tiny_base: Path, whole) -> None:
    out, _ = whole
    before = (out / "run.json").read_bytes()
    began = time.monotonic()
    train(tiny_base, out)
    assert time.monotonic() - began < 20
    assert (out / "run.json").read_bytes() == before
    other = subprocess.run(command(tiny_base, out, "run.seed=1"), capture_output=True, text=True)
    assert other.returncode == 2
    assert "run.seed: 0 / 1" in other.stderr


@pytest.mark.parametrize("step", [1, 3])
def test_kill_9_and_the_same_command_end_in_the_same_bytes(tiny_base: Path, whole, tmp_path: Path, step: int) -> None:
    """Killed after `step`: before the first checkpoint (starts again) and after it (goes on)."""
    out, expected = whole
    killed = tmp_path / "killed"
    process = subprocess.Popen(command(tiny_base, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)  # fmt: skip
    metrics, deadline = killed / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > step):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    for c in children:
        try:
            c.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    assert store.read_json(killed / "run.json", Run).status == "running"
    train(tiny_base, killed)
    assert weights(killed, tmp_path / "model") == expected
    assert metrics.read_bytes() == (out / "metrics.jsonl").read_bytes()
    assert any("resumed" in n for n in store.read_json(killed / "run.json", Run).notes)


def test_ctrl_c_ends_every_process_and_says_how_to_go_on(tiny_base: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log.txt"
    with open(log, "w") as f:
        process = subprocess.Popen(command(tiny_base, out), stdout=f, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (out / "metrics.jsonl").exists():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert "the same command goes on" in log.read_text()
    assert store.read_json(out / "run.json", Run).status == "interrupted"
    time.sleep(2)
    assert survivors(str(out)) == []


def test_two_ranks_train_twice_to_the_same_bytes_and_close_to_one_rank(tiny_base: Path, whole, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tiny_base, tmp_path / name, "cpu.ranks=2", "cpu.train_threads=1")
    assert weights(tmp_path / "a", tmp_path / "ma") == weights(tmp_path / "b", tmp_path / "mb")
    one = list(store.read(whole[0] / "metrics.jsonl", StepMetrics))
    two = list(store.read(tmp_path / "a" / "metrics.jsonl", StepMetrics))
    # the first rollout comes from the same weights and seeds, so its reward is the same number
    assert two[1].values["reward"] == one[1].values["reward"]
    assert two[1].values["entropy"] == pytest.approx(one[1].values["entropy"], rel=1e-5)


@pytest.mark.parametrize("method", ["grpo", "entropy20", "justrl"])
def test_every_method_trains(tiny_base: Path, tmp_path: Path, method: str) -> None:
    train(tiny_base, tmp_path / "run", f"method={method}")
    last = list(store.read(tmp_path / "run" / "metrics.jsonl", StepMetrics))[-1].values
    if method == "entropy20":
        # a fifth of the tokens of every micro-batch, rounded up
        assert 0.75 < last["silenced_share"] <= 0.8
    else:
        assert last["silenced_share"] == 0.0
    assert ("actor/kl_loss" in last) == (method == "grpo")
