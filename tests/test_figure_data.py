"""The numbers behind the figures, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic

from stapo_repro import labels, paper
from stapo_repro.read import load_cells, load_training_runs
from stapo_repro.table.build import build
from stapo_results.schema import StepMetrics, VerdictLengths

pytest.importorskip("matplotlib")
from stapo_repro.figures import comparisons, evaluations, pareto, sensitivity, token_entropy
from stapo_repro.figures.experiment import Experiment, Group, Value, variant


def experiment(root: Path) -> Experiment:
    return Experiment.from_records(load_cells([root]), load_training_runs([root]), paper.load())


def group(e: Experiment, name: str = "miniature") -> Group:
    return next(g for g in e.groups() if g.name == name)


def entropies(values: list[float]) -> list[StepMetrics]:
    return [StepMetrics(step=k, values={"token_entropy_mean": v}) for k, v in enumerate(values, 1)]


def test_stability_by_hand():
    # 8 steps: the first quarter is 1 and 2, mean .2; later factors 1/2 three times and 2 three times: RMS ln 2
    halved_and_doubled = [0.1, 0.3, 0.1, 0.4, 0.1, 0.4, 0.1, 0.4]
    assert pareto.stability(entropies(halved_and_doubled)) == pytest.approx(0.5)
    assert pareto.stability(entropies([0.2] * 8)) == pytest.approx(1.0)
    # a collapse and an explosion by the same factor count alike
    for value in (0.1, 10.0):
        assert pareto.stability(entropies([1.0] * 2 + [value] * 6)) == pytest.approx(0.1)
    # too little
    assert pareto.stability(entropies([0.2] * 3)) is None  # no step in the first quarter
    assert pareto.stability([]) is None
    assert pareto.stability(entropies([0.2, 0.2, 0.0, 0.2])) is None
    assert pareto.stability([*entropies([0.2] * 4), StepMetrics(step=5, values={"reward": 1.0})]) is None


def test_frontier_by_hand():
    assert pareto.frontier([(1, 3), (2, 2), (3, 1), (1, 1), (2, 1.5)]) == [(1, 3), (2, 2), (3, 1)]
    assert pareto.frontier([(1, 1), (2, 2)]) == [(2, 2)]
    assert pareto.frontier([(1, 2), (1, 1), (1, 2)]) == [(1, 2)]
    assert pareto.frontier([]) == []


def test_spots_need_a_finished_training_and_every_benchmark(tmp_path):
    synthetic.miniature(tmp_path / "eval", methods=("base", "justrl", "stapo"))
    synthetic.cell(tmp_path / "eval", "grpo", "mini-add", "t1.0", ["10"] * 64)
    for method, status in (("stapo", "done"), ("justrl", "running"), ("grpo", "done")):
        synthetic.training_run(tmp_path / "train", method, status=status)
    e = experiment(tmp_path)
    (spot,) = pareto.method_points(e, group(e), "mini", "t1.0")
    assert spot.method == "stapo"
    assert spot.accuracy == e.accuracy("mini", "stapo", group(e).benchmarks, "t1.0")


def test_quantiles_and_their_late_profile(tmp_path):
    folder = synthetic.training_run(tmp_path, "grpo", steps=8)
    e = experiment(tmp_path)
    found = token_entropy.quantiles(e.runs)
    assert found is not None
    assert found.values.shape == (6, 8)
    np.testing.assert_allclose(found.values[:, 0], [0.005, 0.025, 0.05, 0.075, 0.095, 0.099])
    # of eight steps 7 and 8 are late; each is changed to its own number
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    for step, value in ((6, "9.0"), (7, "0.2"), (8, "0.4")):
        lines[step] = lines[step].replace('"token_entropy_q95":0.095', f'"token_entropy_q95":{value}')
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    profile = token_entropy.late_profile(experiment(tmp_path).runs)
    assert profile is not None
    np.testing.assert_allclose(profile[[3, 4]], [0.075, 0.3])
    assert token_entropy.quantiles([]) is None


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("stapo-tau0.0002", ("stapo", 0.0002, 0.75)),
        ("stapo-tau2e-05-q0.5", ("stapo", 2e-05, 0.5)),
        ("stapo-random-q0.5", ("stapo-random", 0.002, 0.5)),
        ("stapo", None),
        ("stapo-q0.5-old", None),
        ("grpo", None),
    ],
)
def test_labels_of_other_values_are_read_as_the_trainer_writes_them(label, expected):
    assert variant(label) == expected


def test_sweep_finds_runs_under_their_labels_and_leaves_gaps(tmp_path):
    for method, right in (("justrl", "1000"), ("stapo", "1100"), ("stapo-q0.5", "1110"), ("stapo-tau0.0002", "1111")):
        for benchmark in ("mini-add", "mini-add-hard"):
            synthetic.cell(tmp_path, method, benchmark, "t1.0", [right, right])
    synthetic.training_run(tmp_path / "train", "stapo", steps=8)
    e = experiment(tmp_path)
    over_q = sensitivity.sweep(e, group(e), "stapo", "q")
    assert [(s.at, s.label) for s in over_q] == [
        (0.0, "justrl"), (0.25, None), (0.5, "stapo-q0.5"), (0.75, "stapo"), (1.0, None)
    ]  # fmt: skip
    assert [v.mean if (v := s.values["t1.0"]) else None for s in over_q] == [25.0, None, 75.0, 50.0, None]
    over_tau = sensitivity.sweep(e, group(e), "stapo", "tau_p")
    assert [(s.at, s.label) for s in over_tau] == [(2e-4, "stapo-tau0.0002"), (2e-3, "stapo"), (2e-2, None)]
    # late entropy: the mean of the last quarter of eight steps
    late = [s.values["entropy"] for s in e.runs[0].steps if s.step in (7, 8)]
    entropy = over_q[3].values["entropy"]
    assert entropy is not None
    assert entropy.mean == pytest.approx(sum(late) / 2)
    assert over_q[0].values["entropy"] is None
    # such a run has its own figure and none of the others
    assert group(e).methods == tuple(labels.METHODS)


def test_lengths_by_hand(tmp_path):
    quantiles = dict.fromkeys(("p5", "p25", "p50", "p75", "p95", "max"), 10.0)
    by_verdict = {
        "correct": VerdictLengths(responses=3, truncated=0, tokens=quantiles),
        "incorrect": VerdictLengths(responses=1, truncated=1, tokens=quantiles | {"p50": 30.0}),
    }
    for seed, kept in ((0, by_verdict), (1, {})):
        more = {
            "finish_reasons": {"length": 1, "stop": 3},
            "mean_response_tokens": 10.0 + 10 * seed,
            "by_verdict": kept,
        }
        synthetic.cell(tmp_path / str(seed), "stapo", "mini-add", "t1.0", ["11", "10"], seed=seed, **more)
    first = evaluations.lengths(experiment(tmp_path / "0").cells)
    assert first == evaluations.Lengths(
        mean=10.0, truncated=25.0,
        tokens={"correct": (10.0,) * 5, "incorrect": (10.0, 10.0, 30.0, 10.0, 10.0)},
        cut={"correct": 0.0, "incorrect": 100.0},
    )  # fmt: skip
    # one seed without lengths by verdict: none is shown as if it were both
    both = evaluations.lengths(experiment(tmp_path).cells)
    assert both == evaluations.Lengths(mean=15.0, truncated=25.0, tokens={}, cut={})


def test_lines_of_the_forest_are_the_tables_differences(tmp_path):
    # mini-add: STAPO 1 .5 0 .5 minus base .5 0 0 .5 = .5 .5 0 0: mean 25, half width 45.9346 (tests/test_tables.py)
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10", "00", "00", "10"])
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "10", "00", "10"])
    synthetic.cell(tmp_path, "grpo", "mini-add", "t1.0", ["11", "10", "00"])
    synthetic.cell(tmp_path, "justrl", "mini-add", "t1.0", ["11", "10", "00", "--"])
    e = experiment(tmp_path)
    found = {(x.benchmark, x.second): x for x in comparisons.forest_lines(e, group(e), "t1.0")}
    value = found["mini-add", "base"].value
    assert isinstance(value, Value)
    assert value.mean == 25.0
    assert value.low == pytest.approx(25 - 45.9346, abs=1e-3)
    assert found["mini-add", "grpo"].value == "other problems"
    assert found["mini-add", "justrl"].value == "samples missing"
    assert found["mini-add", "entropy20"].value == "not run"
    assert found["avg", "base"].value == "not run"  # of two benchmarks one was run
    assert found["mini-add", "base"].printed is None


def test_printed_differences_are_those_of_the_paper(tmp_path):
    # 1.7B at T = 1.0: STAPO 18.44, GRPO 7.60 on AIME24; averages 36.85 and 31.10 (JustRL)
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["10"], size="qwen3-1.7b")
    e = experiment(tmp_path)
    found = {(x.benchmark, x.second): x.printed for x in comparisons.forest_lines(e, group(e, "qwen3-1.7b"), "t1.0")}
    assert found["aime24", "grpo"] == pytest.approx(10.84)
    assert found["avg", "justrl"] == pytest.approx(5.75)
    assert found["avg", "base"] is None


def test_each_size_is_a_group(tmp_path):
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["10"])
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["10"], size="qwen3-14b")
    synthetic.cell(tmp_path, "external", "mine", "t1.0", ["10"], size="org/a model")
    e = experiment(tmp_path)
    assert [g.name for g in e.groups()] == ["miniature", "qwen3-14b", "org_a_model"]
    other = e.groups()[2]
    assert (other.methods, other.benchmarks) == (("external",), ("mine",))
    assert other.heading("Length") == "Length, org/a model, SYNTHETIC RECORDS"


def test_a_figure_shows_what_the_table_says_with_several_seeds_too(tmp_path):
    for seed in (0, 1):
        for benchmark in ("mini-add", "mini-add-hard"):
            for method, right in (("stapo", ("1100", "1000", "1111")), ("justrl", ("1000", "0000", "1110"))):
                letters = [right[(i + seed) % 3] for i in range(3)]
                synthetic.cell(tmp_path, method, benchmark, "t1.0", letters, seed=seed)
    e = experiment(tmp_path)
    table = build(load_cells([tmp_path]), paper.load())
    for name, part in (("mini-add", ("mini-add",)), (labels.AVERAGE, group(e).benchmarks)):
        said = next(r for r in table.rows if (r.method, r.benchmark, r.setting) == ("stapo", name, "t1.0"))
        shown = e.accuracy("mini", "stapo", part, "t1.0")
        assert shown is not None
        assert (shown.mean, shown.low, shown.high) == pytest.approx((said.mean, said.low, said.high))
        assert len(shown.seeds) == 2
