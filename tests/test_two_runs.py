"""Two evaluations against each other: the one setting that differs is found by its name."""

from __future__ import annotations

from pathlib import Path

import planted_run
import pytest

from stapo_repro.calibration import beside, two_runs
from stapo_results.errors import BadInput


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    planted_run.build(folder)
    return folder


def pair(world: Path, name: str, **changed) -> two_runs.Pair:
    other = planted_run.build(world, name=name, **changed)
    ((found,), _) = two_runs.pairs(beside.own_cells([world / "run"]), beside.own_cells([other]), 5.0)
    return found


def test_a_run_against_itself_agrees(world):
    cells = beside.own_cells([world / "run"])
    ((found,), _) = two_runs.pairs(cells, cells, 5.0)
    d = found.difference
    assert (d.verdict, d.points, d.low, d.high, d.p) == ("agrees", 0.0, 0.0, 0.0, 1.0)
    assert (found.settings, found.environment, found.attributed_to) == ({}, [], "")


# three problems that the changed setting loses
LOST = {f"g{i}": "0000" for i in range(3)}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("temperature", {"temperature": 0.9, "setting": "t0.9-p0.9"}),
        ("top-p", {"top_p": 0.8, "temperature": 0.7, "setting": "t0.7-p0.8"}),
        ("longest response", {"max_tokens": 32}),
        ("grader", {"grader": "strict, stapo-rules 1"}),
        ("engine", {"engine": "vllm"}),
        ("model", {"revisions": {"model": "weights 2"}}),
        ("dtype", {"config": {"dtype": "bfloat16"}}),
    ],
)
def test_the_one_setting_that_differs_is_named(world, name, changed):
    found = pair(world, f"one-{name}", verdicts=LOST, **changed)
    assert (list(found.settings), found.attributed_to, found.difference.verdict) == ([name], name, "differs")
    assert found.difference.points == pytest.approx(1200 / 44)


def test_the_judge_is_one_cause(world):
    found = pair(world, "unjudged", judge=False)
    assert (found.attributed_to, found.settings["judge"][1], found.difference.verdict) == ("judge", "none", "differs")


def test_settings_that_differ_together_are_not_told_apart(world):
    found = pair(world, "two", verdicts=LOST, setting="t1.0", max_tokens=32, top_p=1.0)
    assert (found.attributed_to, sorted(found.settings)) == ("", ["longest response", "temperature", "top-p"])
    assert found.difference.verdict == "differs"


def test_other_code_is_no_setting_and_is_named_beside_it(world):
    found = pair(world, "code", verdicts=LOST, max_tokens=32, code_commit="d" * 40, config={"threads": 2})
    assert (found.attributed_to, found.environment) == ("longest response", ["code", "threads"])


def test_other_numbers_of_samples_are_compared_without_pairing(world):
    found = pair(world, "fewer", n=2)
    assert (found.attributed_to, found.difference.points) == ("samples a problem", pytest.approx(-75 / 11))


def test_other_problems_are_refused(world, tmp_path):
    cells = beside.own_cells([world / "run"])
    fewer = cells[0].record.model_copy(update={"problems": cells[0].record.problems[1:]})
    other = [type(cells[0])(fewer, cells[0].path, "", cells[0].file)]
    with pytest.raises(BadInput, match="other problems"):
        two_runs.pairs(cells, other, 5.0)


def test_weights_from_the_hub_and_from_a_folder_are_the_same(world):
    planted_run.build(world, name="hub", revisions={"model": "0123abcd weights sha256:77"})
    planted_run.build(world, name="folder", revisions={"model": "weights sha256:77"})
    hub, folder = (beside.own_cells([world / n]) for n in ("hub", "folder"))
    ((found,), _) = two_runs.pairs(hub, folder, 5.0)
    assert found.settings == {}
