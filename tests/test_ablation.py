"""The ablation from records: numbers by hand, every verdict, missing seeds, what is refused, bytes, the page."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro import labels, paper
from stapo_repro.ablation import build as ablation
from stapo_repro.ablation import claims, evidence
from stapo_repro.ablation import render as render_ablation
from stapo_repro.ablation.claims import Claim, verdict
from stapo_repro.ablation.evidence import Number, accuracy, measure
from stapo_repro.pages import outputs
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_results.errors import RecordError
from stapo_results.schema import StepMetrics

MINI = ("mini-add",)
PAIR = [(1.0, "stapo", "t1.0"), (-1.0, "justrl", "t1.0")]


def read(root: Path) -> evidence.Evidence:
    return evidence.gather(load_cells([root]), load_training_runs([root]))


def build(root: Path) -> ablation.Ablation:
    return ablation.build(load_cells([root]), load_training_runs([root]), claims.load())


def judged(root: Path) -> dict[str, claims.Judged]:
    return {j.claim.id: j for j in build(root).claims}


def steps(entropy: list[float], **more: list[float]) -> list[StepMetrics]:
    columns = {"entropy": entropy, **more}
    rows = [{k: v[i] for k, v in columns.items()} for i in range(len(entropy))]
    return [
        StepMetrics(step=0, values={"accuracy": 0.5}),
        *(StepMetrics(step=i, values=r) for i, r in enumerate(rows, 1)),
    ]


def test_measures_of_a_training_by_hand():
    # 8 steps: the last quarter is 7 and 8, the first 1 and 2; step 0 is a validation alone
    found = evidence.run_measures(
        steps(
            [0.9, 0.7, 0.5, 0.5, 0.5, 0.5, 0.2, 0.4],
            reward=[0, 0, 0, 0, 0, 0, 0.5, 1.0],
            silenced_share=[0.008, 0, 0, 0, 0, 0, 0.002, 0.004],
        )
    )
    assert found == {
        "reward": 0.75,
        "entropy": pytest.approx(0.3),
        "entropy_std": pytest.approx(math.sqrt(0.02)),  # deviations -.1 and .1 over n - 1 = 1
        "entropy_rise": pytest.approx(0.3 - 0.8),
        "silenced_share": pytest.approx(0.014 / 8),
        "silenced_late": pytest.approx(0.003),
    }


def test_forty_steps_have_quarters_of_ten():
    found = evidence.run_measures(steps([1.0] * 10 + [0.0] * 20 + [3.0] * 10))
    assert (found["entropy"], found["entropy_rise"], found["entropy_std"]) == (3.0, 2.0, 0.0)
    found = evidence.run_measures(steps([1.0] * 11 + [0.0] * 18 + [3.0] * 11))
    assert (found["entropy"], found["entropy_rise"]) == (3.0, 2.0)  # steps 11 and 30 are in neither


def test_a_measure_that_a_step_lacks_is_absent_not_zero():
    line = steps([0.9, 0.7, 0.5, 0.2])
    gap = [*line[:-1], StepMetrics(step=4, values={"reward": 1.0})]
    assert evidence.run_measures(gap) == {"reward": 1.0}
    # two steps: one in the last quarter, so no spread; none in the first, so no rise
    assert evidence.run_measures(steps([0.5, 0.25])) == {"entropy": 0.25}


def by_hand(root: Path) -> None:
    """Problem means of STAPO minus JustRL: q0 1 .5 .5, q1 .5 0 .5 for the seeds 0 1 2."""
    for seed, (stapo, justrl) in enumerate(
        [(["11", "11"], ["00", "10"]), (["11", "00"], ["10", "00"]), (["10", "11"], ["00", "10"])]
    ):
        synthetic.cell(root, "stapo", "mini-add", "t1.0", stapo, seed=seed)
        synthetic.cell(root, "justrl", "mini-add", "t1.0", justrl, seed=seed)


def test_paired_difference_with_both_variances_by_hand(tmp_path):
    by_hand(tmp_path)
    n = accuracy(read(tmp_path), PAIR, MINI)
    assert (n.status, n.mean, n.seeds) == ("run", 50.0, {"0": 75.0, "1": 25.0, "2": 50.0})
    # problems 2/3 and 1/3: squares 1/18 over 2 * 1 = 1/36; seeds .75 .25 .5: squares 1/8 over 3 * 2 = 1/48
    assert n.se_problems == pytest.approx(100 / 6)
    assert n.se_seeds == pytest.approx(100 * math.sqrt(1 / 48))
    # SE sqrt(7 / 144) = .2204793; df (7/144)^2 / ((4/144)^2 / 1 + (3/144)^2 / 2) = 49 / 20.5 = 2.390244
    # t(.975, 2.390244) = 3.69487 (between 4.3027 at 2 and 3.1824 at 3; the density integrated numerically)
    assert n.high is not None
    assert (n.high - 50.0) / 22.04793 == pytest.approx(3.69487, abs=1e-5)


def test_accuracy_of_one_method_by_hand(tmp_path):
    by_hand(tmp_path)
    n = accuracy(read(tmp_path), [(1.0, "stapo", "t1.0")], MINI)
    # problem means q0 1 1 .5, q1 1 0 1: seeds 1 .5 .75, mean .75; cut at 100
    assert (n.mean, n.seeds, n.high) == (75.0, {"0": 100.0, "1": 50.0, "2": 75.0}, 100.0)


def test_narrowing_is_a_difference_of_differences(tmp_path):
    synthetic.ablation(tmp_path)
    for seed in (0, 1, 2):  # STAPO at 0.7: all 16 problems at 6 of 8
        for benchmark in MINI:
            synthetic.cell(tmp_path / "eval", "stapo", benchmark, "t0.7", ["11111100"] * 16, seed=seed)
    e = read(tmp_path)
    low = accuracy(e, [(1.0, "stapo", "t0.7"), (-1.0, "justrl", "t0.7")], e.benchmarks).mean
    high = accuracy(e, PAIR, e.benchmarks).mean
    assert low is not None
    assert high is not None
    assert high == 25.0  # two more of eight everywhere
    found = judged(tmp_path)["gap-narrows-at-lower-temperature"].number.mean
    assert found == pytest.approx(high - low)
    assert found != 0


@pytest.mark.parametrize(
    ("low", "high", "direction", "expected"),
    [
        (0.1, 2.0, "above", "holds"),
        (0.1, 2.0, "below", "opposite"),
        (-2.0, -0.1, "below", "holds"),
        (-2.0, -0.1, "above", "opposite"),
        (-0.1, 2.0, "above", "not distinguishable"),
        (0.0, 2.0, "above", "not distinguishable"),
        (-2.0, 0.0, "below", "not distinguishable"),
        (0.0, 0.0, "above", "not distinguishable"),
        (None, None, "above", "not run"),
    ],
)
def test_the_rule(low, high, direction, expected):
    assert verdict(Number("run", 1.0, low, high), direction) == expected


def test_a_missing_seed_judges_nothing_however_clear_the_rest():
    assert verdict(Number("incomplete", 1.0, 0.9, 1.1, missing=["JustRL seed 2"]), "above") == "not run"


def test_every_verdict_from_records(tmp_path):
    synthetic.ablation(tmp_path)
    found = judged(tmp_path)
    # levels in eighths: random 0, JustRL and full mask 1, high-entropy 2, STAPO 3, the same noise in all
    one = found["low-entropy-mask-beats-high-entropy-mask"]
    assert (one.verdict, one.number.mean, one.number.low) == ("holds", 12.5, 12.5)
    one = found["random-mask-beats-high-entropy-mask"]
    assert (one.verdict, one.number.mean) == ("opposite", -25.0)
    one = found["full-mask-costs-accuracy"]
    assert (one.verdict, one.number.mean) == ("not distinguishable", 0.0)
    assert found["full-mask-lowers-entropy"].verdict == "holds"
    # 0.15 % on average, the claim is below 0.01 %
    one = found["few-tokens-are-silenced"]
    assert one.verdict == "opposite"
    assert one.number.mean is not None
    assert 0.1 < one.number.mean < 0.2
    assert all(j.verdict != "not run" for j in found.values())


def test_seeds_that_are_missing_are_named_everywhere(tmp_path):
    synthetic.ablation(tmp_path)
    shutil.rmtree(tmp_path / "eval" / "justrl-s2")
    value = build(tmp_path)
    found = {j.claim.id: j for j in value.claims}
    one = found["stapo-beats-justrl-at-training-temperature"]
    assert (one.verdict, one.number.status, one.number.mean) == ("not run", "incomplete", 25.0)
    assert one.number.missing == ["JustRL seed 2"]
    assert found["low-entropy-mask-beats-random-mask"].verdict == "holds"
    assert found["justrl-entropy-stays-above-stapo"].verdict != "not run"  # its training is there
    text = render_ablation.to_markdown(value)
    assert "| STAPO | +25.00 **2/3 seeds**<br>" in text
    assert "missing: JustRL seed 2" in text
    assert "Not run: 4 (claims 5, 11, 12, 13)" in render_ablation.headline(value)


def test_one_seed_has_a_value_and_no_interval(tmp_path):
    synthetic.ablation(tmp_path, seeds=(0,))
    text = render_ablation.to_markdown(build(tmp_path))
    assert "**1/3 seeds**<br><sub>n/a (n/a)</sub>" in text
    assert "Not run: 14." in text


def test_a_fourth_seed_that_one_method_has_is_missing_in_the_others(tmp_path):
    synthetic.ablation(tmp_path)
    synthetic.cell(tmp_path / "eval", "stapo", "mini-add", "t1.0", ["11111111"] * 16, seed=3)
    e = read(tmp_path)
    assert e.seeds == (0, 1, 2, 3)
    assert accuracy(e, PAIR, MINI).missing == ["JustRL seed 3"]


def test_unfinished_training_is_not_counted_and_named(tmp_path):
    synthetic.ablation(tmp_path)
    shutil.rmtree(tmp_path / "train" / "stapo-s1")
    synthetic.training_run(tmp_path / "train", "stapo", 1, 20, status="interrupted")
    value = build(tmp_path)
    stapo = next(r for r in value.rows if r.method == "stapo")
    assert stapo.training["entropy"].missing == ["STAPO seed 1"]
    assert "Trainings that are not finished and not counted: STAPO seed 1 (interrupted)." in value.footnotes


def test_nothing_run_says_so(tmp_path):
    value = build(tmp_path)
    assert {j.verdict for j in value.claims} == {"not run"}
    text = render_ablation.to_markdown(value)
    assert "| STAPO | not run | not run | not run |" in text
    assert "from 0 evaluation records and 0 trainings" in text
    assert value.footnotes == []


def test_training_too_short_for_a_measure_is_not_called_not_run(tmp_path):
    synthetic.ablation(tmp_path, seeds=(0,), steps=2)
    value = build(tmp_path)
    stapo = next(r for r in value.rows if r.method == "stapo")
    assert (stapo.training["entropy_std"].status, stapo.training["entropy"].status) == ("no value", "incomplete")
    assert "| **not run** |" in render_ablation.to_markdown(value)
    assert {j.verdict for j in value.claims} == {"not run"}


def test_problem_without_a_sample_takes_its_seed_out(tmp_path):
    synthetic.ablation(tmp_path)
    synthetic.cell(tmp_path / "eval", "stapo", "mini-add", "t1.0", ["-" * 8, *["11110000"] * 15], seed=1)
    value = build(tmp_path)
    stapo = next(r for r in value.rows if r.method == "stapo")
    assert stapo.accuracy["mini-add"]["t1.0"].missing == ["STAPO seed 1"]
    assert stapo.accuracy["mini-add-hard"]["t1.0"].status == "run"
    assert "MISSING SAMPLES: 8; a problem's mean is over those present." in value.footnotes


def test_base_model_has_its_average(tmp_path):
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["1000", "1111"])
    synthetic.cell(tmp_path, "base", "mini-add-hard", "t1.0", ["0000", "1000"])
    row = build(tmp_path).rows[0]
    assert row.accuracy["mini-add"]["t1.0"].mean == 62.5
    assert row.accuracy[labels.AVERAGE]["t1.0"].mean == 37.5
    assert row.accuracy[labels.AVERAGE]["t0.7"].status == "not run"


def other_method(root: Path) -> None:
    synthetic.cell(root / "eval", "grpo", "mini-add", "t1.0", ["1" * 8] * 16)


def other_size(root: Path) -> None:
    synthetic.cell(root / "eval", "stapo", "mini-add", "t1.0", ["1" * 8] * 16, size="qwen3-8b")


def other_benchmark(root: Path) -> None:
    synthetic.cell(root / "eval", "stapo", "aime24", "t1.0", ["1" * 8] * 16)


def other_training(root: Path) -> None:
    synthetic.training_run(root / "train", "grpo")


def other_problems(root: Path) -> None:
    synthetic.cell(root / "eval", "stapo", "mini-add", "t1.0", ["1" * 8] * 15)


def other_steps(root: Path) -> None:
    synthetic.cell(root / "eval", "stapo", "mini-add", "t1.0", ["1" * 8] * 16, step=41)


def other_evaluation_seed(root: Path) -> None:
    path = synthetic.cell(root / "other", "stapo", "mini-add", "t1.0", ["1" * 8] * 16)
    path.write_text(path.read_text().replace('"eval_seed": 0', '"eval_seed": 1'))


def second_training(root: Path) -> None:
    synthetic.training_run(root / "again", "stapo")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_method, "no record of the ablation"),
        (other_size, "no record of the ablation"),
        (other_benchmark, "no record of the ablation"),
        (other_training, "no record of the ablation"),
        (other_problems, "different problems"),
        (other_steps, "not trained equally long"),
        (other_evaluation_seed, "two evaluations of stapo with training seed 0"),
        (second_training, "two trainings of stapo with seed 0"),
    ],
)
def test_records_that_do_not_belong_together_are_refused(tmp_path, spoil, message):
    synthetic.ablation(tmp_path)
    spoil(tmp_path)
    with pytest.raises(RecordError, match=message):
        build(tmp_path)


def test_claims_of_the_checkout_cover_the_ablation():
    loaded = claims.load()
    assert len(loaded.claims) == 14
    assert {c.first for c in loaded.claims} | {c.second for c in loaded.claims if c.second} == set(labels.ABLATION)
    settings = {c.setting for c in loaded.claims}
    assert settings == {None, "t1.0", "t0.7", "t1.0-t0.7"}


CLAIM = {"id": "a", "place": "p", "claim": "c", "measure": "entropy", "first": "stapo", "direction": "above"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": "stapo-highentropy"}, "no method of the ablation"),
        ({"setting": "t1.0"}, "nothing else has one"),
        ({"measure": "accuracy", "second": "justrl"}, "an accuracy has a setting"),
        ({"measure": "accuracy", "setting": "t1.0"}, "second method"),
        ({"second": "justrl", "reference": 0.1}, "either a second method or a reference"),
        ({"direction": "up"}, "direction"),
        ({"measure": "length"}, "measure"),
    ],
)
def test_a_claim_that_cannot_be_computed_is_refused(tmp_path, changes, message):
    file = tmp_path / "claims.json"
    file.write_text(
        json.dumps(
            {"schema_version": 1, "source": "s", "rule": "r", "claims": [{**CLAIM, **changes}], "not_tested": []}
        )
    )
    with pytest.raises(RecordError, match=message):
        claims.load(file)


def test_an_id_twice_is_refused(tmp_path):
    file = tmp_path / "claims.json"
    file.write_text(
        json.dumps({"schema_version": 1, "source": "s", "rule": "r", "claims": [CLAIM, CLAIM], "not_tested": []})
    )
    with pytest.raises(RecordError, match="an id of its own"):
        claims.load(file)


def test_reference_is_subtracted_before_the_interval(tmp_path):
    synthetic.ablation(tmp_path)
    e = read(tmp_path)
    plain, less = (measure(e, [(1.0, "stapo")], "silenced_late", reference=r) for r in (0.0, 0.0001))
    for end in ("mean", "low", "high"):
        assert getattr(plain, end) - getattr(less, end) == pytest.approx(0.01)
    claim = Claim.model_validate({**CLAIM, "measure": "silenced_late", "reference": 0.0001})
    assert claim.quantity(e) == less
    assert render_ablation.quantity(claim) == "silenced, last quarter: STAPO minus 0.01 % (%)"


def test_bytes_depend_on_content_alone(tmp_path):
    for name in ("a", "b"):
        synthetic.ablation(tmp_path / name)
    for path in (tmp_path / "b").rglob("*.json"):
        path.write_text(path.read_text().replace('"run_id": "synthetic"', '"run_id": "anew"'))
    first, second = build(tmp_path / "a"), build(tmp_path / "b")
    for form in (render_ablation.to_markdown, render_ablation.to_json, render_ablation.page_block):
        assert form(first) == form(second)
        assert "\r" not in form(first)
        assert form(first).endswith("\n")
    folder = tmp_path / "b" / "train" / "stapo-s0"
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text(
        "\n".join([*lines[:-1], lines[-1].replace('"reward":0', '"reward":1')]) + "\n"
    )
    assert build(tmp_path / "b").inputs_sha256 != first.inputs_sha256


def test_json_holds_every_seed_and_record(tmp_path):
    synthetic.ablation(tmp_path)
    data = json.loads(render_ablation.to_json(build(tmp_path)))
    assert len(data["records"]) == 4 + 5 * 3 * 4
    assert len(data["trainings"]) == 15
    stapo = next(r for r in data["rows"] if r["method"] == "stapo")
    assert set(stapo["training"]["entropy"]["seeds"]) == {"0", "1", "2"}
    assert stapo["difference"]["avg"]["t1.0"]["mean"] == 25.0
    assert data["claims"][0]["verdict"] == "holds"


def test_main_table_leaves_the_ablation_out(tmp_path):
    synthetic.cell(tmp_path / "miniature", "stapo", "mini-add", "t1.0", ["11", "00"])
    synthetic.cell(tmp_path / "ablation", "stapo", "mini-add", "t1.0", ["11", "11"])
    synthetic.training_run(tmp_path / "ablation", "stapo")
    with pytest.raises(RecordError, match="contradict"):
        load_cells([tmp_path])
    kept = load_cells([tmp_path], skip=(ablation.FOLDER,))
    assert [c.path.split("/")[0] for c in kept] == ["miniature"]
    assert load_training_runs([tmp_path], skip=(ablation.FOLDER,)) == []


def test_which_experiment_is_meant(tmp_path):
    assert outputs.parts(None, []) == ("main", "ablation")
    assert outputs.parts(None, [tmp_path]) == ("main",)
    assert outputs.parts("ablation", [tmp_path]) == ("ablation",)


def cli(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "stapo_repro.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_command_writes_checks_and_notices_a_change(tmp_path):
    records, out, page = tmp_path / "records", tmp_path / "out", tmp_path / "page.md"
    synthetic.ablation(records)
    page.write_text("before\n<!-- generated:ablation -->\n<!-- /generated:ablation -->\nafter\n")
    arguments = ("tables", "--of", "ablation", "--records", records, "--out", out, "--page", page)
    done = cli(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["ablation.json", "ablation.md", "planted.json", "planted.md"]
    assert page.read_text().startswith("before\n<!-- generated:ablation -->\n## The paper's claims")
    assert page.read_text().endswith("<!-- /generated:ablation -->\nafter\n")
    assert cli(*arguments, "--check", cwd=tmp_path).returncode == 0
    page.write_text(page.read_text().replace("**opposite**", "**holds**"))
    done = cli(*arguments, "--check", cwd=tmp_path)
    assert done.returncode == 1
    assert f"stale: {page}" in done.stderr


def test_what_is_committed_is_what_the_records_give():
    root = paper.checkout()
    for path, data in outputs.ablation_tables([], None, None).items():
        assert path.read_bytes() == data, path.relative_to(root)


def test_curves_of_the_ablation(tmp_path):
    pytest.importorskip("matplotlib")

    synthetic.ablation(tmp_path)
    (drawn,) = outputs.draw("ablation", load_cells([tmp_path]), load_training_runs([tmp_path]), (), ["training-curves"])
    assert drawn.name == "ablation_training_curves"
    # three runs: the median lies outside their range when all are on one side of it, 2 * (1/2)^3 = 25 %
    assert (
        "lowest to the highest seed (of 3 seeds; it holds the median run with a probability of 75 %)" in drawn.caption
    )
    svg = drawn.files["svg"].decode()
    for method in labels.ABLATION:
        assert svg.count(f'<g id="entropy-{method}">') == 1
    assert svg.count('<g id="FillBetweenPolyCollection') == 20
    assert len({labels.COLOURS[m] for m in {**labels.METHODS, **labels.ABLATION}}) == 7
    assert drawn.block("../results/figures").startswith("![Training curves: mask ablation (miniature)")
