"""What a dry run knows: the estimate of the time, and that it prints all before it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    config.trainer.n_gpus_per_node = 2
    assert dry_run.recorded(config, tmp_path) is None


@pytest.mark.slow
def test_the_formula_by_hand_and_as_the_page_has_it() -> None:
    """14B on 64 H20: 2,048 sequences of 1,920 + 150 tokens; 8 P + 2 P a token; replicas of two cards, 64 sequences."""
    seconds = []
    for size in ("1.7B", "8B", "14B"):
        config = compose([f"size=qwen3-{size.lower()}", *PAPER])
        seconds.append(dry_run.formula(config, inputs.find_shape(f"Qwen/Qwen3-{size}-Base"), "H20"))
    # 10 * 14768307200 * 2048 * 2070 / (64 * 148e12 * 0.4) = 165.25 s
    # (15360 * 2 * 14768307200 / 2 + 64 * 1920 * (150 + 960) * 163840 / 2) / (4e12 * 0.5) = 113.42 + 5.59 s
    assert seconds[2] == pytest.approx(165.25 + 113.42 + 5.59, abs=0.02)
    page = (Path(__file__).parents[1] / "docs/training.md").read_text()
    assert f"{sum(seconds) / 3 * 3000 / 86400:.1f} days" in page


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
        f"rollout: {ours}.rollout.CpuRolloutAdapter with",
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
