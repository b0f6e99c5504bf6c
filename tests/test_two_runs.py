"""Two evaluations against each other: the one setting that differs is found by its name."""

from __future__ import annotations

import shutil
from pathlib import Path

import planted_run
import pytest

from stapo_repro.calibration import beside, page, two_runs
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Run


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    planted_run.build(folder)
    return folder


def pair(world: Path, name: str, **changed) -> two_runs.Pair:
    other = planted_run.build(world, name=name, **changed)
    ((found,), _) = two_runs.pairs(beside.own_cells([world / "run"]), {"other": beside.own_cells([other])}, 5.0)
    return found


def test_a_run_against_itself_agrees(world):
    cells = beside.own_cells([world / "run"])
    ((found,), _) = two_runs.pairs(cells, {"other": cells}, 5.0)
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
    assert list(found.settings) == ["samples a problem"]
    assert (found.attributed_to, found.difference.points) == ("", pytest.approx(-75 / 11))


def test_other_problems_are_refused(world, tmp_path):
    cells = beside.own_cells([world / "run"])
    fewer = cells[0].record.model_copy(update={"problems": cells[0].record.problems[1:]})
    other = [type(cells[0])(fewer, cells[0].path, "", cells[0].file)]
    with pytest.raises(BadInput, match="other problems"):
        two_runs.pairs(cells, {"other": other}, 5.0)


def test_weights_from_the_hub_and_from_a_folder_are_the_same(world):
    planted_run.build(world, name="hub", revisions={"model": "0123abcd weights sha256:77"})
    planted_run.build(world, name="folder", revisions={"model": "weights sha256:77"})
    hub, folder = (beside.own_cells([world / n]) for n in ("hub", "folder"))
    ((found,), _) = two_runs.pairs(hub, {"other": folder}, 5.0)
    assert found.settings == {}


@pytest.mark.parametrize("changed", [{}, {"eval_seed": 1}])
def test_more_than_chance_without_a_setting_is_said(world, changed):
    found = pair(world, f"unexplained-{len(changed)}", verdicts=LOST, **changed)
    assert (found.difference.verdict, found.attributed_to) == ("differs", "")
    assert "more than chance, and no recorded setting explains it" in found.says


def test_verdicts_that_cancel_are_not_the_same_verdicts(world):
    first = planted_run.build(world, name="one-lost", judge=False, verdicts={"l0": "0000"})
    second = planted_run.build(world, name="another-lost", judge=False, verdicts={"l1": "0000"})
    ((found,), _) = two_runs.pairs(beside.own_cells([first]), {"other": beside.own_cells([second])}, 5.0)
    assert (found.difference.points, found.says) == (0.0, "no setting differs: the rest is chance")


def test_what_one_side_did_not_record_is_no_cause_and_leaves_none_certain(world):
    other = planted_run.build(world, name="bare", verdicts=LOST, max_tokens=32)
    (other / "run.json").unlink()
    ((found,), _) = two_runs.pairs(beside.own_cells([world / "run"]), {"other": beside.own_cells([other])}, 5.0)
    assert (list(found.settings), found.unrecorded, found.attributed_to) == (["longest response"], ["dtype"], "")
    assert found.says.endswith("longest response, unless it is dtype (not on record on both sides)")


def test_auto_on_a_gpu_is_another_dtype_and_hardware_is_named(world):
    found = pair(world, "gpu", verdicts=LOST, hardware={"cpu": "x", "gpus": ["H100"]})
    assert found.settings == {"dtype": ("auto on a CPU", "auto on a GPU")}
    assert (found.attributed_to, found.environment) == ("dtype", ["hardware"])


def test_many_other_packages_are_counted_and_the_rest_is_named(world):
    other = planted_run.build(world, name="packages", verdicts=LOST, max_tokens=32)
    run = store.read_json(other / "run.json", Run)
    changed = {"packages": run.packages | dict.fromkeys("abcd", "1"), "config": run.config | {"threads": 2}}
    store.write_json(other / "run.json", run.model_copy(update=changed | {"hardware": {"cpu": "y", "gpus": []}}))
    ((found,), _) = two_runs.pairs(beside.own_cells([world / "run"]), {"other": beside.own_cells([other])}, 5.0)
    assert (found.environment, found.packages) == (["threads", "hardware"], ["a", "b", "c", "d"])
    assert found.says.endswith(", unless it is threads or hardware or one of 4 packages")


def test_two_seeds_are_refused_and_what_has_no_counterpart_is_named(world):
    two = beside.own_cells([world / "run", planted_run.build(world, name="seed", eval_seed=1)])
    with pytest.raises(BadInput, match="two cells of toy"):
        two_runs.pairs(two, {"other": two[:1]}, 5.0)
    more = beside.own_cells([world / "run", planted_run.build(world, name="hot", setting="t1.0")])
    (found, alone) = two_runs.pairs(more, {"other": more[:1]}, 5.0)
    assert (len(found), alone) == (
        1,
        [f"not compared with other: toy at {more[1].record.cell.setting}, which only the first run holds"],
    )


def test_all_wrong_twice_on_other_responses_is_no_proof(world):
    wrong = dict.fromkeys(planted_run.PROBLEMS, "0000")
    first, second = (
        planted_run.build(world, name=f"wrong{s}", judge=False, verdicts=wrong, eval_seed=s, n=2) for s in (0, 1)
    )
    ((found,), _) = two_runs.pairs(beside.own_cells([first]), {"other": beside.own_cells([second])}, 5.0)
    # 1 - 0.05^(1/22) = 0.127307
    assert (found.difference.high, found.difference.verdict) == (pytest.approx(12.7307, abs=1e-3), "cannot tell")


def test_several_runs_are_judged_together(world, tmp_path):
    first = beside.own_cells([world / "run"])
    other = planted_run.build(world, name="shorter", verdicts=LOST, max_tokens=32)
    (same, short), _ = two_runs.pairs(first, {"same": first, "short": beside.own_cells([other])}, 5.0)
    ((alone,), _) = two_runs.pairs(first, {"short": beside.own_cells([other])}, 5.0)
    assert (same.against, short.against, same.difference.p, alone.difference.p_holm) == (
        "same", "short", 1.0, alone.difference.p,
    )  # fmt: skip
    assert short.difference.p_holm == pytest.approx(2 * alone.difference.p)
    assert page.page_block(world / "run", tmp_path / "none") == "Not run."
    shutil.copytree(other, tmp_path / "limit-32")
    block = page.page_block(world / "run", tmp_path)
    assert "| limit-32 | toy |" in block
    assert "the difference comes from: longest response" in block
    assert "- differs: p after Holm below 0.05" in block
