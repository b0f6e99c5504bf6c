"""What a dry run prints: the estimate of the time, the differences, the panel."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from stapo_results import throughput
from stapo_results.errors import BadInput
from stapo_results.schema import StepMetrics
from stapo_results.store import append, write_json
from stapo_training.run import launch
from stapo_training.run.configuration import compose
from stapo_training.run.preflight import checks as preflight
from stapo_training.run.preflight import dry_run, fit, panel, shapes, steptime
from stapo_training.run.preflight.differences import ABSENT, Change, method_changes, typed_changes
from stapo_training.run.preflight.machine import Gpu

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 79.6, 0.5)
PAPER = ["hardware=64gpu", "method=stapo", "run.data=/data", "run.out=/out"]


def mini(base: Path, out: Path, *more: str):
    return compose(["size=mini", "hardware=cpu", f"run.base={base}", f"run.out={out}", *more])


# time


def test_seconds_a_step_from_the_runs_own_timings(tmp_path: Path) -> None:
    assert steptime.own_steps(tmp_path) is None
    # the first step is slow and leaves the window of 20
    seconds = [90.0] + [4.0, 5.0, 6.0, 7.0] * 5
    append(tmp_path / "timings.jsonl", [StepMetrics(step=i, values={"seconds": s}) for i, s in enumerate(seconds, 1)])
    assert steptime.own_steps(tmp_path) == steptime.Estimate(5.5, ("measured: median of this run's last 20 steps",))


def test_seconds_a_step_from_records(tiny_base: Path, tmp_path: Path) -> None:
    """40 steps each: of STAPO in 200, 240 and 400 s, of JustRL in 80 s."""
    config = mini(tiny_base, Path("/out"))
    record = json.loads((dry_run.RECORDS / "miniature" / "train" / "stapo-s0" / "run.json").read_text())
    for method, seconds in (("stapo", 200.0), ("stapo", 400.0), ("stapo", 240.0), ("justrl", 80.0)):
        record["wall_seconds"], record["config"]["run"]["method"] = seconds, method
        write_json(tmp_path / f"{method}{seconds}" / "run.json", record)
    found = steptime.recorded(config, tmp_path)
    assert found is not None
    assert found.seconds == 6.0
    assert found.basis[0] == "measured: median of 3 recorded runs (stapo), 5.0 to 10.0 s a step"
    config.run.method = "gspo"  # none of its own: all four, 2, 5, 6 and 10 s a step
    other = steptime.recorded(config, tmp_path)
    assert other is not None
    assert other.seconds == 5.5
    config.trainer.n_gpus_per_node = 2
    assert steptime.recorded(config, tmp_path) is None


def test_the_formula_by_hand() -> None:
    """14B on 64 H20: 2,048 sequences of 1,920 + 150 tokens; 8 P + 2 P a token; replicas of two cards, 64 sequences."""
    config = compose(["size=qwen3-14b", *PAPER])
    plan = fit.plan_from(config, shapes.find_shape("Qwen/Qwen3-14B-Base"))
    # 10 * 14768307200 * 2048 * 2070 / (64 * 148e12 * 0.4) = 165.25 s
    # (15360 * 2 * 14768307200 / 2 + 64 * 1920 * (150 + 960) * 163840 / 2) / (4e12 * 0.5) = 113.42 + 5.59 s
    found = steptime.formula(config, plan, "H20")
    assert found.seconds == pytest.approx(165.25 + 113.42 + 5.59, abs=0.02)


def test_the_numbers_beside_the_papers_statement_are_the_formulas() -> None:
    seconds = []
    for size in ("1.7B", "8B", "14B"):
        config = compose([f"size=qwen3-{size.lower()}", *PAPER])
        plan = fit.plan_from(config, shapes.find_shape(f"Qwen/Qwen3-{size}-Base"))
        seconds.append(steptime.formula(config, plan, "H20").seconds)
    days = sum(s or 0 for s in seconds) / 3 * 3000 / 86400
    assert "{:.0f}, {:.0f} and {:.0f} s there".format(*seconds) in steptime.PAPER
    assert f"{days:.1f} days" in steptime.PAPER


@pytest.mark.parametrize(
    ("name", "card"),
    [("NVIDIA H20", "H20"), ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("Tesla T4", None)],
)
def test_the_card_in_a_name(name: str, card: str | None) -> None:
    assert throughput.card_named(name) == card


# what is printed


def test_what_was_typed_and_what_the_method_sets() -> None:
    typed = ["size=qwen3-8b", *PAPER, "actor_rollout_ref.actor.optim.lr=2e-6", "+data.note=x"]
    config = compose(typed)
    assert typed_changes(typed, config, compose) == [
        Change("actor_rollout_ref.actor.optim.lr", 2e-6, 1e-6, 1e-6),
        Change("data.note", "x", ABSENT, ABSENT),
    ]
    changes = method_changes(["size=qwen3-8b", "method=grpo", *PAPER[:1], *PAPER[2:]], compose)
    assert Change("actor_rollout_ref.actor.clip_ratio_high", 0.2, 0.28, 0.2) in changes
    assert Change("actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-mean", "token-mean", "token-mean") in changes


def test_the_panel_is_plain_text_of_80_columns(tiny_base: Path, tmp_path: Path) -> None:
    config = mini(tiny_base, tmp_path / "out")
    report = preflight.examine(config)
    report.command = "stapo-train run size=mini"
    out = io.StringIO()
    panel.show(
        Console(file=out, width=80, highlight=False),
        config,
        report,
        typed=[Change("actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking", True, False, ABSENT)],
        method=[],
        registered={"platform": "x"},
        time=steptime.Estimate(7.4, ("measured",)),
        step=20,
    )
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for said in (
        "stapo on mini, seed 0, 40 steps",
        "32 prompts x 8 responses a step, 4 update(s), 64 prompts (2.0 steps an epoch)",
        "one every 10 steps: 4 made, 4 kept",
        "about 7 s a step, 5 minutes for 40 steps",
        "To go on after step 20\n  stapo-train run size=mini\n",
    ):
        assert said in text
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_dry_run_passes_prints_and_writes_nothing(tiny_base: Path, tmp_path: Path) -> None:
    words = ["size=mini", "hardware=cpu", f"run.base={tiny_base}", f"run.out={tmp_path / 'out'}", "run.seed=3"]
    done = subprocess.run(
        [sys.executable, "-m", "stapo_training.cli", "run", *words, "--dry-run"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "All checks passed; nothing was started (--dry-run)." in done.stdout
    assert "  run.seed\n      3   (otherwise 0, no such key in veRL)\n" in done.stdout
    ours = "stapo_training.verl_ext"
    for said in (  # what a fresh process has registered
        f"platform: {ours}.platform.CpuPlatform",
        f"worker and engine: {ours}.worker.",
        f"rollout: {ours}.rollout.CpuRolloutAdapter with",
        f"trainer mode: {ours}.trainer.StapoTrainer",
        f"agent loop: {ours}.agent_loop.SeededAgentLoopManager",
        "{'verifier': 'fallback'}: +1 and -1",
        "selector: silence_spurious",
    ):
        assert said in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_dry_run_that_cannot_start_prints_the_panel_before_it_refuses(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = ["size=qwen3-8b", "hardware=8gpu", "method=grpo", "run.card=H20", "run.data=/nowhere"]
    with pytest.raises(BadInput, match=r"(?s)stand in the way.*data\.train_files.*no GPU found") as e:
        launch.run([*words, f"run.out={tmp_path / 'out'}"], dry_run=True)
    assert e.value.exit_code == 2
    printed = capfd.readouterr().out
    for said in (
        "grpo on qwen3-8b",
        "tightest: saving a checkpoint",
        "0.2   (otherwise 0.28, veRL 0.2)",
        "formula, not measured",
        "To start it",
    ):
        assert said in printed
    assert not (tmp_path / "out").exists()
