"""Loggers by option: what is offered, what is refused before anything starts, where they write."""

import importlib.util
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
