"""Loggers by option: what is offered, what is refused before anything starts, where they write."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stapo_results.errors import BadInput
from stapo_training.run.watch import loggers


def test_every_logger_offered_is_one_of_verls() -> None:
    from verl.utils.tracking import Tracking

    assert set(loggers._PACKAGES) <= set(Tracking.supported_backend)


def test_an_unknown_logger_is_refused() -> None:
    with pytest.raises(BadInput) as e:
        loggers.check(["console", "mlflow"])
    assert e.value.found == "mlflow"


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch, name: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(BadInput) as e:
        loggers.check([name])
    assert e.value.next_step == f"python -m pip install {name}"


def test_wandb_without_an_account_is_refused_and_offline_is_not(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: object())
    home = {"HOME": str(tmp_path)}
    with pytest.raises(BadInput, match="WANDB_MODE=offline"):
        loggers.check(["wandb"], home)
    for account in ({"WANDB_MODE": "offline"}, {"WANDB_API_KEY": "x"}):
        assert loggers.check(["wandb"], home | account) == ("wandb",)
    (tmp_path / ".netrc").touch()
    assert loggers.check(["wandb"], home) == ("wandb",)


@pytest.mark.slow
def test_verls_file_and_tensorboard_loggers_write_into_the_runs_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    code = (
        "from verl.utils.tracking import Tracking\n"
        "t = Tracking('stapo', 'stapo-mini-s0', ['file', 'tensorboard'], config={})\n"
        "t.log({'reward': 0.5}, step=1)\n"
        "t.finish()\n"
    )
    for attempt in (0, 1):
        environment = os.environ | loggers.locations(tmp_path, attempt)
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, capture_output=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "tensorboard",
        "verl-metrics-0.jsonl",  # veRL empties its file on opening: a resumed run must not lose the first one
        "verl-metrics-1.jsonl",
    ]
    assert (tmp_path / "verl-metrics-0.jsonl").read_text() == '{"step":1,"data":{"reward":0.5}}\n'
