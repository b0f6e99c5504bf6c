"""STATUS.md: what it says of a running, a failed and a finished training."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stapo_training.folder import status
from stapo_training.folder.alarms import Alarm
from stapo_training.folder.training_folder import TrainingFolder

RUN = {
    "method": "stapo",
    "size": "qwen3-1.7b",
    "seed": 0,
    "steps": 3000,
    "command": "stapo-train run run.out=/data/run",
}
NOW = datetime(2026, 2, 3, 14, 5, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> TrainingFolder:
    """Three steps, of which the second is saved."""
    folder = TrainingFolder(tmp_path)
    for step, values in enumerate(
        (
            {"accuracy": 0.031},
            {"reward": -0.5, "silenced_share": 0.0001, "grad_norm": 0.25},
            {"reward": -0.25, "silenced_share": 0.0003, "grad_norm": 0.5, "accuracy": 0.25, "failed_validation": 4.0},
            {"reward": 0.125, "silenced_share": 0.0002},
        )
    ):
        folder.log_step(step, values, {})
    folder.log_alarms([Alarm(step=2, kind="silenced_share", line="many"), Alarm(step=3, kind="not_finite", line="nan")])
    saved = folder.checkpoints / "global_step_2"
    saved.mkdir(parents=True)
    (saved / "data.pt").write_bytes(b"x" * 2**20)
    folder.complete_checkpoint(2)
    return folder


def page(folder: TrainingFolder, state: Any, *, seconds: tuple[float, ...] = (), on: str = "", reason: str = "") -> str:
    config = SimpleNamespace(run=SimpleNamespace(**RUN))
    status.write(folder, config, state, step_seconds=seconds, alarms_on=frozenset([on]), reason=reason, now=NOW)
    return folder.status_file.read_text()


def test_a_running_training(folder: TrainingFolder) -> None:
    lines = page(folder, "running", seconds=(160.0, 140.0), on="not_finite").splitlines()
    assert "step 3 of 3000, 2 min 30 s a step" in lines[2]
    assert "2026-02-08 18:57 UTC" in lines[2]  # 2,997 steps of 150 s later
    assert "| | step 3 | mean of the 2 before | step 1 |" in lines
    assert "| reward (-1 to 1) | 0.125 | -0.375 | -0.500 |" in lines
    assert "| gradient norm | missing | 0.375 | 0.25 |" in lines
    assert "3.1% at step 0, 25.0% at step 2 (4 samples failed)" in "\n".join(lines)
    assert [line for line in lines if "(still on)" in line] == ["- step 3, not_finite (still on): nan"]
    assert any("step 2 (1.0 MiB; 1 on disk), best by validation: step 2" in line for line in lines)
    assert f"    {RUN['command']}" in lines


def test_a_failed_a_finished_and_a_new_training(folder: TrainingFolder, tmp_path: Path) -> None:
    failed, finished = page(folder, "failed", reason="no room"), page(folder, "finished")
    assert failed.splitlines()[2] == "**Failed** after step 3 of 3000: no room"
    assert ("stapo-train run" in finished, "stapo-train export" in finished) == (False, True)
    (tmp_path / "new").mkdir()
    new = page(TrainingFolder(tmp_path / "new"), "running")
    assert ("step 0 of 3000" in new, "| |" in new) == (True, False)
