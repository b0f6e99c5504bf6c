"""What a dry run knows: the estimate of the time, and that it prints all before it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from stapo_results import throughput
from stapo_results.errors import BadInput
from stapo_results.store import write_json
from stapo_training.run import launch
from stapo_training.run.configuration import compose
from stapo_training.run.preflight import dry_run, inputs

PAPER = ["hardware=64gpu", "method=stapo", "run.data=/data", "run.out=/out"]


def test_seconds_a_step_from_records(tmp_path: Path) -> None:
    """30 steps each: of STAPO in 150, 180 and 300 s, of JustRL in 60 s."""
    config = compose(["size=mini", "hardware=cpu", "run.base=/base", "run.out=/out"])
    record = json.loads((dry_run.RECORDS / "miniature" / "train" / "stapo-s0" / "run.json").read_text())
    for method, seconds in (("stapo", 150.0), ("stapo", 300.0), ("stapo", 180.0), ("justrl", 60.0)):
        record["wall_seconds"], record["config"]["run"]["method"] = seconds, method
        write_json(tmp_path / f"{method}{seconds}" / "run.json", record)
    record["config"]["run"] |= {"method": "stapo", "steps": 5}  # mostly its start
    write_json(tmp_path / "short" / "run.json", record | {"wall_seconds": 60.0})

    assert dry_run.recorded(config, tmp_path) == 6.0
    config.run.method = "gspo"  # none of its own: all four, 2, 5, 6 and 10 s a step
    assert dry_run.recorded(config, tmp_path) == 5.5
    for key, value in (
        ("trainer.n_gpus_per_node", 2),
        ("trainer.test_freq", 5),
        ("run.validation_settings", ["t1.0", "t0.7"]),
        ("actor_rollout_ref.selector.form", "two_pass"),
    ):
        other = OmegaConf.merge(config)
        OmegaConf.update(other, key, value)
        assert dry_run.recorded(other, tmp_path) is None


@pytest.mark.slow
def test_the_planned_days_are_those_of_the_page() -> None:
    seconds = []
    for size in ("1.7B", "8B", "14B"):
        config = compose([f"size=qwen3-{size.lower()}", *PAPER])
        shape = inputs.find_shape(f"Qwen/Qwen3-{size}-Base")
        seconds.append(dry_run.planned_step(config, shape, 960).seconds(throughput.CARDS["H20"], 64))
    page = (Path(__file__).parents[1] / "docs/training.md").read_text()
    assert f"{sum(seconds) / 3 * 3000 / 86400:.1f} days" in page


@pytest.mark.parametrize(
    ("method", "hardware", "passes"),
    [
        *(("stapo", "8gpu", 10), ("stapo", "64gpu", 12), ("justrl", "64gpu", 10)),
        *(("entropy20", "8gpu", 12), ("grpo", "64gpu", 12)),  # the one has a second pass, the other a reference model
    ],
)
def test_passes_of_a_planned_step(method: str, hardware: str, passes: int) -> None:
    config = compose(["size=qwen3-8b", *PAPER, f"hardware={hardware}", f"method={method}"])
    step = dry_run.planned_step(config, inputs.find_shape("Qwen/Qwen3-8B-Base"), 960)
    assert (step.update.passes, step.every) == (passes, 5)


@pytest.mark.parametrize(
    ("name", "card"), [("NVIDIA H20", "H20"), ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("T4", None)]
)
def test_the_card_in_a_name(name: str, card: str | None) -> None:
    assert throughput.card_named(name) == card


@pytest.mark.slow
def test_a_dry_run_passes_prints_and_writes_nothing(tiny_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["size=mini", "hardware=cpu", f"run.base={tiny_base}", f"run.out={out}", "run.seed=3"]
    done = subprocess.run(
        [sys.executable, "-m", "stapo_training.cli", "run", *words, "--dry-run"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ours = "stapo_training.verl_ext"
    for printed in (
        "stapo on mini, seed 3, 30 steps",
        "32 prompts x 8 responses a step, 4 update(s), 64 prompts (2.0 steps an epoch)",
        "every 10 steps: 3 made, 3 kept",
        # what a fresh process has registered
        f"platform: {ours}.platform.CpuPlatform",
        f"worker and engine: {ours}.worker.",
        "attention: sdpa",
        f"rollout: {ours}.rollout.LocalRollout",
        f"trainer mode: {ours}.trainer.StapoTrainer",
        f"agent loop: {ours}.agent_loop.SeededAgentLoopManager",
        "{'verifier': 'strict_box'}: +1 and -1",
        "selector: silence_spurious",
        launch.resume_command(words),
    ):
        assert printed in done.stdout
    assert not out.exists()


def test_a_dry_run_that_cannot_start_prints_all_it_knows_before_it_refuses(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(launch, "validate", lambda config, ask_worker: {})  # seconds
    words = ["size=qwen3-8b", "hardware=8gpu", "method=grpo", "run.card=H20", "run.data=/nowhere"]
    with pytest.raises(BadInput) as e:
        launch.run([*words, f"run.out={tmp_path / 'out'}"], dry_run=True)
    assert "data.train_files" in str(e.value)
    assert "no GPU found" in str(e.value)
    printed = capfd.readouterr().out
    for part in ("grpo on qwen3-8b", "GiB on H20", " a step, ", "formula"):
        assert part in printed
    assert not (tmp_path / "out").exists()
