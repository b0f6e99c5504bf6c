"""Alarms on literal series: the step at which each begins, its line, what lasts, what is bad input."""

import json
from pathlib import Path

import pytest

from stapo_results.errors import BadInput
from stapo_training.folder.alarms import AlarmConfig, Watch, alarms_from, observe, silenced_reference
from stapo_training.start.configuration import compose

LIMITS = AlarmConfig(window=2)
RECORDS = Path(__file__).parents[1] / "results" / "records" / "miniature" / "train"


def begun(series: list[dict], limits: AlarmConfig = LIMITS, **facts) -> list[tuple[int, str]]:
    """(step, kind) of the alarms of a run whose steps 1, 2, ... have these values."""
    watch, found = Watch(), []
    for step, values in enumerate(series, 1):
        watch, alarms = observe(watch, limits, step, values, **facts)
        found += [(a.step, a.kind) for a in alarms]
    return found


@pytest.mark.parametrize(
    ("key", "series", "expected"),
    [
        # first two: mean 1.0; (0.2 + 0.02) / 2 = 0.11 is not under 0.1; (0.02 + 0.17) / 2 = 0.095 is, at step 5
        ("entropy", (1.2, 0.8, 0.2, 0.02, 0.17, 0.01), [(5, "entropy_collapse")]),
        ("entropy", (1.0, 1.0, 3.0, 3.0, 3.5), [(5, "entropy_explosion")]),  # 3.0 is not over 3
        # first 0.32; the last two: 0.37, 0.50, 0.55
        ("truncated_share", (0.30, 0.34, 0.40, 0.60, 0.50), [(5, "truncation")]),
        # the median of the first two is 2e-4; the last two: 1.6e-3, 2e-3, 2.05e-3
        ("rollout_kl", (1e-4, 3e-4, 2.9e-3, 1.1e-3, 3e-3), [(5, "rollout_mismatch")]),
        ("rollout_kl", (-7e-9, 0.0, 1e-6, 9e-4, 9e-4), []),  # rounding, of either sign
        # exactly ten times the reference of 1e-4 is not over; one that lasts is one alarm, one that returns is two
        ("silenced_share", (0.001, 0.0011, 0.8, 0.0, 0.0011), [(2, "silenced_share"), (5, "silenced_share")]),
        ("failed_rollouts", (0.0, 3.0, 1.0, 0.0, 1.0), [(2, "failed_rollouts"), (5, "failed_rollouts")]),
        ("failed_validation", (0.0, 72.0, 0.0), [(2, "failed_validation")]),
        ("zero_variance_share", (1.0, 0.9, 1.0, 0.99, 1.0, 1.0), [(6, "no_signal")]),
    ],
)
def test_the_step_at_which_an_alarm_begins(key: str, series: tuple, expected: list[tuple[int, str]]) -> None:
    assert begun([{key: value} for value in series], silenced_reference=1e-4) == expected


def test_failed_validation_lasts_over_the_steps_that_do_not_validate() -> None:
    series = [{"failed_validation": 3.0}, {}, {"failed_validation": 2.0}, {"failed_validation": 0.0}, {}]
    assert begun([*series, {"failed_validation": 1.0}]) == [(1, "failed_validation"), (6, "failed_validation")]


def test_not_finite_names_the_metrics() -> None:
    names = ("actor/grad_norm", "actor/loss", "actor/pg_loss", "actor/ppo_kl", "reward")
    watch, (alarm,) = observe(Watch(), LIMITS, 3, {}, not_finite=names)
    assert alarm.line == "not finite: actor/grad_norm, actor/loss, actor/pg_loss and 2 more"
    assert watch.on == {"not_finite"}
    watch, again = observe(watch, LIMITS, 4, {"entropy": 1.0})
    assert (watch.on, again) == (frozenset(), [])


DIFFERENCE = "training/rollout_probs_diff_mean"


def test_a_rollout_that_differs_from_the_trainer_is_an_alarm_and_ends_a_run_in_its_first_steps() -> None:
    """0.01 is healthy bf16; the first steps of these limits are two."""
    differences = [{DIFFERENCE: d} for d in (0.01, 0.051, 0.02, 0.06)]
    assert begun(differences) == [(2, "rollout_mismatch"), (2, "rollout_broken"), (4, "rollout_mismatch")]
    assert "rollout_broken" in alarms_from(compose(["run.base=base", "run.out=out"]).alarms).stop


def test_a_rollout_may_be_broken_by_a_resume() -> None:
    for resumed_at, since in ((100, 1), (98, 3)):  # the first steps are two
        _, found = observe(Watch(), LIMITS, 101, {DIFFERENCE: 0.4}, resumed_at=resumed_at)
        assert ("rollout_broken" in [a.kind for a in found]) == (since <= 2)
    watch, _ = observe(Watch(), LIMITS, 2, {DIFFERENCE: 0.4}, resumed_at=100)  # of an earlier process
    assert watch.on == {"rollout_mismatch"}


def test_one_odd_batch_is_no_growth() -> None:
    assert begun([{"rollout_kl": v} for v in (1e-3, 1e-3, 1e-3, 1e-3, 0.06, 1e-3)], AlarmConfig(window=5)) == []


def test_disk_under_two_checkpoints() -> None:
    gib = 2**30
    assert begun([{}], disk_free=20 * gib, checkpoint_bytes=10 * gib) == []
    assert begun([{}], disk_free=20 * gib - 1, checkpoint_bytes=10 * gib) == [(1, "disk")]
    assert begun([{}], disk_free=1, checkpoint_bytes=None) == []


def test_no_alarm_in_the_committed_runs_of_the_miniature() -> None:
    """The thresholds have to leave a healthy run alone; entropy falls to 0.4 of its beginning there."""
    config = compose(["run.base=base", "run.out=out"])
    limits = alarms_from(config.alarms)
    found = {}
    for file in sorted(RECORDS.glob("*/metrics.jsonl")):
        steps = [json.loads(line)["values"] for line in file.read_text().splitlines()][1:]
        reference = None if file.parent.name.startswith("entropy20") else config.run.silenced_share_reference
        found[file.parent.name] = begun(steps, limits, silenced_reference=reference)
    assert found == {f"{m}-s{s}": [] for m in ("entropy20", "grpo", "justrl", "stapo") for s in range(5)}


def test_selectors_that_silence_by_design_have_no_reference() -> None:
    names = ("silence_spurious", "silence_random", "a_selector_of_ones_own", "top_entropy", "keep_all")
    assert [silenced_reference(n, 1e-4) for n in names] == [1e-4, 1e-4, 1e-4, None, None]


def test_a_wrong_alarm_is_bad_input() -> None:
    with pytest.raises(BadInput) as e:
        alarms_from({"entropy": 1})
    assert e.value.what.startswith("alarms.entropy:")
