"""The ablation from records: numbers by hand, every verdict, missing seeds, what is refused, bytes, the page."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro.ablation import build as ablation
from stapo_repro.ablation import by_seed, claims
from stapo_repro.ablation import render as render_ablation
from stapo_repro.ablation.by_seed import Number, accuracy, measure
from stapo_repro.ablation.claims import Claim, verdict
from stapo_repro.pages import outputs
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_results.errors import RecordError
from stapo_results.schema import StepMetrics

MINI = ("mini-add",)
PAIR = [(1.0, "stapo", "t1.0"), (-1.0, "justrl", "t1.0")]


def read(root: Path) -> by_seed.SeedResults:
    return by_seed.gather(load_cells([root]), load_training_runs([root]))


def build(root: Path) -> ablation.Ablation:
    return ablation.build(load_cells([root]), load_training_runs([root]), claims.load())


def judged(root: Path) -> dict[str, claims.JudgedClaim]:
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
    found = by_seed.run_measures(
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


def test_a_measure_that_a_step_lacks_is_absent_not_zero():
    line = steps([0.9, 0.7, 0.5, 0.2])
    gap = [*line[:-1], StepMetrics(step=4, values={"reward": 1.0})]
    assert by_seed.run_measures(gap) == {"reward": 1.0}
    # two steps: one in the last quarter, so no spread; none in the first, so no rise
    assert by_seed.run_measures(steps([0.5, 0.25])) == {"entropy": 0.25}


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


@pytest.mark.parametrize(
    ("low", "high", "direction", "expected"),
    [
        (0.1, 2.0, "above", "holds"),
        (0.1, 2.0, "below", "opposite"),
        (-2.0, -0.1, "below", "holds"),
        (0.0, 2.0, "above", "not distinguishable"),
        (-2.0, 0.0, "below", "not distinguishable"),
        (None, None, "above", "not run"),
    ],
)
def test_the_rule(low, high, direction, expected):
    assert verdict(Number("run", 1.0, low, high), direction) == expected
    # however clear the rest
    assert verdict(Number("incomplete", 1.0, low, high, missing=["JustRL seed 2"]), direction) == "not run"


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
    assert sum(j.verdict == "not run" for j in value.claims) == 4
    assert "| STAPO | +25.00 **2/3 seeds**<br>" in render_ablation.to_markdown(value)


def test_unfinished_training_is_not_counted_and_named(tmp_path):
    synthetic.ablation(tmp_path)
    shutil.rmtree(tmp_path / "train" / "stapo-s1")
    synthetic.training_run(tmp_path / "train", "stapo", 1, 20, status="interrupted")
    value = build(tmp_path)
    stapo = next(r for r in value.rows if r.method == "stapo")
    assert stapo.training["entropy"].missing == ["STAPO seed 1"]
    assert any("STAPO seed 1 (interrupted)" in note for note in value.footnotes)


def test_nothing_run_says_so(tmp_path):
    value = build(tmp_path)
    assert {j.verdict for j in value.claims} == {"not run"}
    assert "| STAPO | not run | not run | not run |" in render_ablation.to_markdown(value)
    assert value.footnotes == []


@pytest.mark.parametrize(
    "spoil",
    [
        {"method": "grpo"},  # no method of the ablation
        {"benchmark": "aime24"},
        {"verdicts": ["1" * 8] * 15},  # other problems
        {"step": 41},
    ],
)
def test_records_that_do_not_belong_together_are_refused(tmp_path, spoil):
    synthetic.ablation(tmp_path)
    given = {"method": "stapo", "benchmark": "mini-add", "setting": "t1.0", "verdicts": ["1" * 8] * 16}
    synthetic.cell(tmp_path / "eval", **given | spoil)
    with pytest.raises(RecordError):
        build(tmp_path)


def test_a_second_training_of_a_seed_is_refused(tmp_path):
    for folder in ("train", "again"):
        synthetic.training_run(tmp_path / folder, "stapo")
    with pytest.raises(RecordError):
        build(tmp_path)


CLAIM = {"id": "a", "place": "p", "claim": "c", "measure": "entropy", "first": "stapo", "direction": "above"}


def test_reference_is_subtracted_before_the_interval(tmp_path):
    synthetic.ablation(tmp_path)
    e = read(tmp_path)
    plain, less = (measure(e, [(1.0, "stapo")], "silenced_late", reference=r) for r in (0.0, 0.0001))
    for end in ("mean", "low", "high"):
        assert getattr(plain, end) - getattr(less, end) == pytest.approx(0.01)
    claim = Claim.model_validate({**CLAIM, "measure": "silenced_late", "reference": 0.0001})
    assert claim.quantity(e) == less


def test_main_table_leaves_the_ablation_out(tmp_path):
    synthetic.cell(tmp_path / "miniature", "stapo", "mini-add", "t1.0", ["11", "00"])
    synthetic.cell(tmp_path / "ablation", "stapo", "mini-add", "t1.0", ["11", "11"])
    synthetic.training_run(tmp_path / "ablation", "stapo")
    with pytest.raises(RecordError, match="contradict"):
        load_cells([tmp_path])
    kept = load_cells([tmp_path], skip=(ablation.FOLDER,))
    assert [c.path.split("/")[0] for c in kept] == ["miniature"]
    assert load_training_runs([tmp_path], skip=(ablation.FOLDER,)) == []


def test_what_is_committed_is_what_the_records_give():
    files: dict[Path, bytes] = {}
    outputs.ablation_tables(files, [], None)
    assert len(files) == 3
    for path, data in files.items():
        assert path.read_bytes() == data, path
