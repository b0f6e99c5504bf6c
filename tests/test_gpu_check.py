"""The check of a machine: what its runner makes of steps that pass, fail and need others; and docs/verified.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stapo_repro.gpu_check.run import PAGE, RECORD, check
from stapo_repro.gpu_check.shell import Shell
from stapo_repro.gpu_check.steps import CHECK, GPU_ONLY, Setting, Step
from stapo_repro.pages import verified
from stapo_results import store
from stapo_results.errors import BadInput, RecordError
from stapo_results.walks import Walked, Walks, new_walks


def says(code: str):
    """A step that runs Python."""

    def work(s: Setting) -> dict:
        s.shell.run("said", sys.executable, "-c", code)
        return {"number": 2.0, "version": "1.2"}

    return work


def test_what_fails_is_told_and_what_does_not_need_it_goes_on(tmp_path: Path, capsys) -> None:
    steps = (
        Step("a", "first", ("engine-hf", *GPU_ONLY), says("pass")),
        Step("b", "second", ("export",), says("import sys; print('why it failed'); sys.exit(3)"), ("a",)),
        Step("c", "third", ("judge-hf",), says("pass"), ("b",)),
        Step("d", "fourth", (), says("pass"), ("a",)),
    )
    assert check(tmp_path / "out", True, steps) == 1
    record = store.read_json(tmp_path / "out" / RECORD, Walks)
    assert (record.command, record.device) == ("tox -e gpu-check -- --cpu", "cpu")
    assert [w.outcome for w in record.walked] == ["passed", "failed", "left_out", "passed"]
    assert record.walked[0].paths == ["engine-hf"]  # not what only a GPU can walk
    assert record.walked[0].values["number"] == 2.0
    assert record.walked[1].error == "said failed: exit code 3"
    assert record.walked[2].error == "needs b"
    page = (tmp_path / "out" / PAGE).read_text()
    assert page.startswith("# The suite on this machine: 2 steps passed, 1 failed, 1 left out")
    assert "| second | FAILED |" in page
    assert str(tmp_path) not in page + (tmp_path / "out" / RECORD).read_text()
    said = capsys.readouterr().out
    assert "| why it failed" in said  # the end of the log


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '100']).pid, flush=True); time.sleep(100)"

    def work(s: Setting) -> dict:
        s.shell.run("hangs", sys.executable, "-c", child, limit_s=2)
        return {}

    assert check(tmp_path / "out", True, (Step("a", "first", (), work),)) == 1
    pid = int((tmp_path / "out" / "logs" / "hangs.log").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert "none within 2 s" in (tmp_path / "out" / RECORD).read_text()


def test_a_machine_without_a_gpu_and_a_folder_in_use_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    with pytest.raises(BadInput, match="needs an NVIDIA GPU"):
        check(tmp_path / "out", False, ())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(BadInput, match="is not empty"):
        check(tmp_path / "out", True, ())


def test_every_path_of_the_check_is_named() -> None:
    known = {name for group in verified.paths().values() for name in group}
    assert {p for step in CHECK for p in step.paths} | set(GPU_ONLY) <= known
    names = [s.name for s in CHECK]
    assert all(set(s.needs) <= set(names[:i]) for i, s in enumerate(CHECK))


def walks(folder: Path, name: str, device: str, at: str, *walked: Walked) -> None:
    folder.mkdir(exist_ok=True)
    record = new_walks(f"tox -e {name}", device, list(walked))  # type: ignore[arg-type]
    store.write_json(folder / f"{name}.json", record.model_copy(update={"at": at}))


def entry(*paths: str, outcome: str = "passed", level: str = "ran", error: str = "") -> Walked:
    return Walked(name="t", paths=list(paths), outcome=outcome, level=level, seconds=1, error=error)  # type: ignore[arg-type]


def rows(folder: Path) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in verified.page_block(folder).splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in lines}


def test_the_farthest_walk_of_a_path_is_shown_and_a_failure_stays_visible(tmp_path: Path) -> None:
    titles = {n: t for group in verified.paths().values() for n, t in group.items()}
    assert set(titles.values()) <= set(rows(tmp_path))
    assert all(r[0] == "not yet" for n, r in rows(tmp_path).items() if n in titles.values())
    walks(tmp_path, "composed", "cpu", "2026-01-03T00:00:00+00:00", entry("mini", level="composed"))
    walks(tmp_path, "old", "cpu", "2026-01-01T00:00:00+00:00", entry("mini", "fp32"))
    walks(tmp_path, "new", "cpu", "2026-01-02T00:00:00+00:00", entry("mini"), entry("export", outcome="failed"))
    walks(tmp_path, "check", "gpu", "2026-01-01T00:00:00+00:00", entry("fp32"), entry("judge-hf", outcome="left_out"))
    found = rows(tmp_path)
    assert found[titles["mini"]][:2] == ["ran on a CPU", "`tox -e new`<br><sub>t</sub>"]
    assert found[titles["fp32"]][:2] == ["ran on a GPU", "`tox -e check`<br><sub>t</sub>"]
    assert found[titles["export"]][0] == "FAILED: t"
    assert found[titles["judge-hf"]][0] == "not yet"
    walks(tmp_path, "wrong", "cpu", "2026-01-03T00:00:00+00:00", entry("no-such-path"))
    with pytest.raises(RecordError, match="unknown paths"):
        verified.page_block(tmp_path)


TESTS = """
import pytest
@pytest.fixture
def broken(): raise ValueError
@pytest.mark.path("mini", "fp32")
def test_passes(): pass
@pytest.mark.path("mini")
def test_fails(): assert False
@pytest.mark.path("mini")
def test_skips(): pytest.skip("here")
@pytest.mark.path("mini")
@pytest.mark.skipif(True, reason="here")
def test_is_skipped(): pass
@pytest.mark.path("mini")
@pytest.mark.xfail
def test_is_known_to_fail(): assert False
@pytest.mark.path("export", level="composed")
def test_cannot_begin(broken): pass
def test_walks_nothing(): pass
"""


def test_a_test_that_did_not_run_has_walked_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = path: of docs/verified.md\n")
    environment = os.environ | {
        "STAPO_WALKS": str(tmp_path / "walks.json"), "TOX_ENV_NAME": "mine",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-p", "walking", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    subprocess.run(command, env=environment, capture_output=True, cwd=tmp_path)
    record = store.read_json(tmp_path / "walks.json", Walks)
    found = {w.name.partition("::")[2]: (w.outcome, w.level, w.paths, w.error) for w in record.walked}
    assert found == {
        "test_passes": ("passed", "ran", ["mini", "fp32"], ""),
        "test_fails": ("failed", "ran", ["mini"], "AssertionError"),
        "test_cannot_begin": ("failed", "composed", ["export"], "ValueError"),
    }
    assert record.command == "tox -e mine"


@pytest.mark.parametrize("more", [(), ("actor_rollout_ref.selector.form=two_pass",)])
def test_the_training_of_the_check_composes_for_a_gpu_and_fits_12_gb(tmp_path: Path, more) -> None:
    """What `tox -e gpu-check -- --cpu` cannot show: the form that a GPU is asked for."""
    from stapo_training.run.configuration import compose
    from stapo_training.run.preflight import memory
    from stapo_training.run.preflight.checks import check_settings
    from stapo_training.run.preflight.inputs import find_shape

    setting = Setting(tmp_path, Shell(tmp_path, "0"), False)
    config = compose(setting.training("a", *more)[2:])
    assert (config.trainer.device, config.actor_rollout_ref.rollout.name) == ("cuda", "vllm")
    assert config.actor_rollout_ref.model.use_remove_padding
    assert check_settings(config).problems == []
    model = tmp_path / "model"
    model.mkdir()
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "intermediate_size": 256, "vocab_size": 128, "tie_word_embeddings": True}  # fmt: skip
    (model / "config.json").write_text(json.dumps(shape | {"model_type": "qwen3"}))
    memory.check(config, find_shape(str(model)), 12.0, 32.0)


def test_another_system_than_linux_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(BadInput) as e:
        check(tmp_path / "o", cpu=True)
    assert e.value.expected == "linux"
