"""STATUS.md as a golden text; what it says in the cases between."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from stapo_results.schema import StepMetrics
from stapo_training.run.folder import Checkpoint
from stapo_training.run.watch.alarms import Alarm
from stapo_training.run.watch.status import Status, render

GOLDEN = Path(__file__).parent / "data"


def step(n: int, **values: float) -> StepMetrics:
    return StepMetrics(step=n, values=values)


RUNNING = Status(
    name="Training: stapo on qwen3-1.7b, seed 0",
    state="running",
    total=3000,
    command="stapo-train run method=stapo size=qwen3-1.7b run.out=/data/run",
    now=datetime(2026, 2, 3, 14, 5, tzinfo=UTC),
    disk_free=600 * 2**30,
    steps=[
        step(0, accuracy=0.031),
        step(1, reward=-0.5, entropy=0.8, silenced_share=0.0001, grad_norm=0.25, truncated_share=0.125),
        step(2, reward=-0.25, entropy=0.7, silenced_share=0.0003, grad_norm=0.5, truncated_share=0.125, accuracy=0.25),
        step(3, reward=0.125, entropy=0.06, silenced_share=0.0002, truncated_share=0.25, accuracy=0.125),
    ],
    step_seconds=[160.0, 140.0],
    checkpoints=[Checkpoint(2, 20 * 2**30, Path("global_step_2"))],
    alarms=[
        Alarm(step=2, kind="silenced_share", line="0.11 % of the tokens silenced"),
        Alarm(step=3, kind="not_finite", line="not finite: actor/grad_norm"),
    ],
    alarms_on=frozenset({"not_finite"}),
)


def test_status_of_a_running_training() -> None:
    assert render(RUNNING) == (GOLDEN / "status-running.md").read_text()


def test_status_of_a_failed_training_says_why_first() -> None:
    lines = render(replace(RUNNING, state="failed", reason="the disk is full (0.0 GiB)", alarms_on=frozenset()))
    assert lines.splitlines()[2] == "**Failed** after step 3 of 3000: the disk is full (0.0 GiB)"
    assert "- step 3, not_finite: not finite" in lines  # whether it still lasts is not known any more
    assert "    stapo-train run method=stapo size=qwen3-1.7b run.out=/data/run\n" in lines


def test_status_before_the_first_step_and_after_the_last() -> None:
    start = render(replace(RUNNING, steps=[], step_seconds=[], checkpoints=[], alarms=[]))
    assert "**Running**: step 0 of 3000; the time of a step is not known yet." in start
    assert "Validation: none yet." in start
    assert "Checkpoint: none yet; 600.0 GiB of disk free." in start
    one = render(replace(RUNNING, steps=RUNNING.steps[:2]))
    assert "| | step 1 |\n|---|---:|\n| reward (-1 to 1) | -0.500 |\n" in one
    end = render(replace(RUNNING, state="finished"))
    assert "**Finished**: 3000 steps." in end
    assert "stapo-train run" not in end
    assert "stapo-train export" in end
