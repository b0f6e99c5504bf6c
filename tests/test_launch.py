"""What a run's folder accepts when the command is given again, and the command that it prints."""

import os
import shlex
from pathlib import Path

import pytest

from stapo_results import provenance
from stapo_results.errors import BadInput
from stapo_results.schema import Run
from stapo_training.run import launch

OUT = Path("run")


def record(**alarms: object) -> Run:
    config = {
        "run": {"seed": 0},
        "alarms": {"stop": ["not_finite"], "window": 5} | alarms,
        "trainer": {"logger": ["console"], "save_freq": 100},
    }
    return provenance.new_run("train", config, seeds={"run": 0}, deterministic=True, revisions={"train.parquet": "ab"})


def changed(run: Run, part: str, **values: object) -> Run:
    return run.model_copy(update={"config": run.config | {part: run.config[part] | values}})


def test_alarms_and_loggers_may_change_when_a_run_goes_on() -> None:
    new = changed(record(stop=[], window=9), "trainer", logger=["console", "wandb"])
    new = changed(new, "run", silenced_share_reference=1e-5)
    launch._refuse_other(record(), new, OUT)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (changed(record(), "run", seed=1), r"run\.seed: 0 / 1"),
        (changed(record(), "trainer", save_freq=10), r"trainer\.save_freq: 100 / 10"),
        (record().model_copy(update={"revisions": {"train.parquet": "cd"}}), r"train\.parquet: ab / cd"),
    ],
)
def test_what_decides_numbers_may_not(new: Run, said: str) -> None:
    with pytest.raises(BadInput, match=rf"(?s)holds a run of another configuration.*{said}"):
        launch._refuse_other(record(), new, OUT)


def test_the_resume_command_works_from_any_folder_and_holds_no_secret() -> None:
    command = launch.resume_command(
        ["method=stapo", "run.out=runs/my run", "trainer.logger=[console,file]", "trainer.wandb_api_key=abc"]
    )
    assert shlex.split(command) == [
        "stapo-train",
        "run",
        "method=stapo",
        f"run.out={os.getcwd()}/runs/my run",
        "trainer.logger=[console,file]",
        "trainer.wandb_api_key=(redacted)",
    ]
