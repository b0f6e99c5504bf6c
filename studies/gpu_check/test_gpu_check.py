"""The check of a machine: steps that pass, fail and need others, and the form that a GPU is asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from stapo_repro import paper
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_training.folder import step_metrics
from stapo_training.folder.training_folder import TrainingFolder
from studies.gpu_check import check as gpu_check
from studies.gpu_check.check import CHECK, RECORD, CheckedMachine, MachineCheck, MachineStep, check


@pytest.fixture(autouse=True)
def typed(monkeypatch):
    """A command's program is this Python: "SCRIPT ARGUMENTS"."""
    monkeypatch.setattr(gpu_check, "console_script", lambda _: sys.executable)


def says(folder: Path, code: str, limit_s: float = 60):
    """A step that runs Python code."""
    script = folder / f"{abs(hash(code))}.py"
    script.write_text(code)

    def work(m: CheckedMachine) -> gpu_check.Values:
        m.run("said", f"python {script}", limit_s)
        return {"number": 2.0, "version": "1.2"}

    return work


def test_what_fails_is_told_and_what_does_not_need_it_goes_on(tmp_path: Path, capsys) -> None:
    passes = says(tmp_path, "pass")
    steps = (
        MachineStep("a", passes),
        MachineStep("b", says(tmp_path, "import sys; print('why it failed'); sys.exit(3)"), "a"),
        MachineStep("c", passes, "b"),
        MachineStep("d", passes, "a"),
    )
    assert check(tmp_path / "out", True, steps) == 1
    record = store.read_json(tmp_path / "out" / RECORD, MachineCheck)
    assert (record.command, record.device) == ("tox -e gpu-check -- --cpu", "cpu")
    assert [(s.outcome, s.error) for s in record.walked] == [
        ("passed", ""), ("failed", "said failed: exit code 3"), ("left_out", "needs b"), ("passed", "")
    ]  # fmt: skip
    assert record.walked[0].values["number"] == 2.0
    assert str(tmp_path) not in (tmp_path / "out" / RECORD).read_text()
    assert "| why it failed" in capsys.readouterr().out  # the end of the log


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '100']).pid, flush=True); "
    child += "time.sleep(100)"
    assert check(tmp_path / "out", True, (MachineStep("a", says(tmp_path, child, limit_s=10)),)) == 1
    pid = int((tmp_path / "out" / "logs" / "said.log").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    (step,) = store.read_json(tmp_path / "out" / RECORD, MachineCheck).walked
    assert "none within 10 s" in step.error


def test_what_cannot_be_checked_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    with pytest.raises(BadInput, match="needs an NVIDIA GPU"):
        check(tmp_path / "out", False, ())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(BadInput, match="is not empty"):
        check(tmp_path / "out", True, ())
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(BadInput) as e:
        check(tmp_path / "o", cpu=True)
    assert e.value.expected == "linux"


def test_the_committed_record_has_the_steps_of_the_check() -> None:
    record = store.read_json(paper.checkout() / "results/records/gpu-check/cpu.json", MachineCheck)
    # the one training was two when it was recorded, and the judge had an engine of its own
    then = {"speculative": "training", "two-pass": None, "judge": None}
    known = (then.get(s.name, s.name) for s in record.walked)
    assert [name for name in known if name] == [s.name for s in CHECK]
    assert all(s.needs in {"", *(t.name for t in CHECK[:i])} for i, s in enumerate(CHECK))


def test_the_training_of_the_check_composes_for_a_gpu_and_fits_12_gb(tmp_path: Path) -> None:
    """What `tox -e gpu-check -- --cpu` cannot show: the form that a GPU is asked for."""
    from stapo_training.start import estimate
    from stapo_training.start.configuration import compose
    from stapo_training.start.inputs import find_shape
    from stapo_training.start.settings import check_settings

    config = compose(CheckedMachine(tmp_path, "0").train("a").replace("{out}", str(tmp_path)).split()[2:])
    assert (config.trainer.device, config.actor_rollout_ref.rollout.name) == ("cuda", "vllm")
    assert config.actor_rollout_ref.model.use_remove_padding
    assert check_settings(config).problems == []
    model = tmp_path / "model"
    model.mkdir()
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "intermediate_size": 256, "vocab_size": 128, "tie_word_embeddings": True}  # fmt: skip
    (model / "config.json").write_text(json.dumps(shape | {"model_type": "qwen3"}))
    estimate.memory(config, find_shape(str(model)), 12.0, 32.0)


# 256 sequences of 28 + 20 tokens in parts of 3, 1 and 2 s
PARTS = {"prompt_length/mean": 28.0, "response_length/mean": 20.0, "response_length/max": 48.0,
         "global_seqlen/mean": 12288.0, "timing_s/update_actor": 3.0, "timing_s/old_log_prob": 1.0,
         "timing_s/gen": 2.0}  # fmt: skip


def test_how_far_the_plan_is_off_on_a_known_card(tmp_path: Path) -> None:
    """On an H100. Decoding: 48 steps of 3.5 ms, 5,120 tokens of 20 microseconds, hardly any reading: 0.2704 s. Update:
    6 x (311,936 x 12,288 + 2 x 128 x 256 x 48^2) FLOPs in 0.048 ms, 12,288 x 128 logits in 0.088, 12 x 12,288 x 2 x
    6,016 bytes of activations in 0.815; a pass: 0.016, 0.057, 0.204 ms."""
    m = CheckedMachine(tmp_path, "0")
    rates = {"update_tokens_a_second": 4096.0, "old_pass_tokens_a_second": 12288.0, "decoding_tokens_a_second": 2560.0}
    assert gpu_check._rates(m, PARTS) == rates
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "intermediate_size": 256, "vocab_size": 128, "tie_word_embeddings": True}  # fmt: skip
    (tmp_path / "base" / "model").mkdir(parents=True)
    (tmp_path / "base" / "model" / "config.json").write_text(json.dumps(shape | {"model_type": "qwen3"}))
    m.model = "NVIDIA H100 80GB HBM3"
    found = gpu_check._rates(m, PARTS)
    assert found["decoding_seconds_of_planned"] == pytest.approx(2 / 0.2704, rel=0.01)
    assert found["update_seconds_of_planned"] == pytest.approx(3 / 0.951e-3, rel=0.01)
    assert found["old_pass_seconds_of_planned"] == pytest.approx(1 / 0.277e-3, rel=0.01)


def test_a_trainings_numbers_are_read_from_both_files_in_which_it_logs_them(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(CheckedMachine, "run", lambda *_: 0.0)  # the training has run
    folder, off = TrainingFolder(tmp_path / "training"), "training/rollout_probs_diff"
    for step in range(1, gpu_check.STEPS + 1):
        numbers = step_metrics.split(
            {"actor/grad_norm": 1.0, f"{off}_mean": step * 1e-7, f"{off}_max": step * 2e-7} | PARTS
        )
        folder.log_step(step, numbers.values, numbers.times | {"seconds": 2.0})
    found = gpu_check._trained(CheckedMachine(tmp_path, ""), "training")
    assert found["mean_probability_difference"] == gpu_check.STEPS * 1e-7
    assert (found["largest_probability_difference"], found["seconds_of_the_last_step"]) == (gpu_check.STEPS * 2e-7, 2.0)
