"""Commands, numbers by hand, and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stapo_repro.read import TrainingRun
from stapo_repro.run.chain import make_stages
from stapo_results.errors import BadInput
from stapo_results.schema import StepMetrics
from studies.noise import page
from studies.noise.request import NoiseClaim, load, request

HARD, HARD_T07 = "val-core/mini-add-hard/acc/mean@8", "val-t0.7/mini-add-hard/acc/mean@8"


def test_what_is_trained(tmp_path: Path) -> None:
    stages = {s.name: s.command for s in make_stages(request(out=tmp_path))}
    trainings = [name for name in stages if name.startswith("train/")]
    assert len(trainings) == 24
    assert not any(name.startswith(("eval/", "export/")) for name in stages)
    command = stages["train/stapo-random-noise0.7-mini-costly-s47"]
    for word in ("method=stapo-random", "run.method=stapo-random-noise0.7", "run.steps=60", "trainer.test_freq=10",
                 "+reward.custom_reward_function.reward_kwargs.noise=0.7", "run.size=mini-costly"):  # fmt: skip
        assert word in command
    with pytest.raises(BadInput):
        request(pilot=True, noise="0.32")
    with pytest.raises(BadInput):
        request(steps=80)
    pilot = make_stages(request(pilot=True, out=tmp_path))
    assert {s.name.rpartition("-")[2] for s in pilot if s.kind == "train"} == {"s120", "s121"}


def run(method: str, seed: int, accuracy: float, useful: float) -> TrainingRun:
    """40 steps: half of the accuracy before step 20, then `accuracy`; useful words in the last ten steps alone."""
    steps = [
        StepMetrics(
            schema_version=1, step=k,
            values={"useful_rate": useful if k > 30 else 0.0}
            | ({HARD: accuracy if k >= 20 else accuracy / 2, HARD_T07: 0.9} if k % 10 == 0 else {}),
        )
        for k in range(1, 41)
    ]  # fmt: skip
    return TrainingRun(method, "mini-costly", seed, "", "done", steps)


def values(runs: list[TrainingRun], seeds: Sequence[int]) -> page.Values:
    return page.values(runs, {"stapo": "stapo", "justrl": "justrl"}, first=20, seeds=seeds, steps=40)


def test_numbers_by_hand() -> None:
    runs = [run("stapo", s, 0.8 + s / 100, 0.2) for s in (1, 2, 3)] + [run("justrl", s, 0.7, 0.1) for s in (1, 2)]
    runs += [replace(run("stapo", 1, 0.1, 0.1), status="running"), run("stapo", 120, 0.1, 0.1)]
    runs += [replace(short := run("stapo", 2, 0.1, 0.1), steps=short.steps[:20])]  # none of these three counts
    found = values(runs, (1, 2, 3))
    assert found["stapo"]["longer t1.0"] == pytest.approx({1: 81.0, 2: 82.0, 3: 83.0})  # of steps 20, 30, 40
    assert found["stapo"]["useful, late"] == pytest.approx(dict.fromkeys((1, 2, 3), 20.0))
    d = page.minus(found, "stapo", "justrl", "longer t1.0")  # 11 and 12: sd 0.7071, SE 0.5, t(1) = 12.706
    assert (d.mean, d.low, d.high) == pytest.approx((11.5, 11.5 - 6.353, 11.5 + 6.353), abs=1e-3)


def test_first_steps() -> None:
    runs = [run("stapo", 1, 0.8, 0.95), run("stapo", 2, 0.8, 0.2), run("justrl", 1, 0.8, 0.95)]  # in the last ten steps
    assert page.first_steps(runs, "stapo") == "31, 1 of 2"
    assert page.first_steps(runs, "grpo") == "not run"


def claim(measure: str, within: float = 0.0) -> NoiseClaim:
    return NoiseClaim.model_validate(
        {"id": "x", "claim": "", "measure": measure, "against": "justrl", "within": within}
    )


def test_verdicts_after_holm() -> None:
    runs = [run(m, s, a + s / 1000, u) for s in range(4) for m, a, u in (("stapo", 0.9, 0.1), ("justrl", 0.5, 0.5))]
    runs[0] = run("stapo", 0, 0.91, 0.1)
    found = values(runs, range(5))
    claims = [claim("longer t1.0"), claim("longer t0.7", 3), claim("longer t1.0", 3)]
    assert [v for *_, v in page.judged(claims, found, 4)] == ["holds", "holds", "fails"]  # 40 points; 0; not within 3
    assert [v for *_, v in page.judged(claims, found, 5)] == ["not run"] * 3


def test_the_study_makes_a_page_and_its_figures_of_the_four_claims() -> None:
    files: dict[Path, bytes] = {}
    page.add(files)
    assert {p.name for p in files} == {"noise.md", "noise_dose.svg", "noise_useful.svg", "README.md"}
    assert [c.id for c in load().claims] == list("abcd")
