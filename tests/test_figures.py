"""Figures: the numbers behind them by hand, the same bytes each time, colours told apart, and all of the paper's."""

from __future__ import annotations

import json
import math
import re
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic
import token_logs as logs

from stapo_repro import labels, paper
from stapo_repro.read import load_cells, load_training_runs
from stapo_repro.run.request import parse_cells
from stapo_repro.table.build import build
from stapo_repro.tokens.log import load
from stapo_results.errors import BadInput
from stapo_results.schema import StepMetrics
from stapo_results.store import append

pytest.importorskip("matplotlib")
pytest.importorskip("wordcloud")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from stapo_repro.figures import compare, curves, groups, style, tokens
from stapo_repro.figures import paper as registry

MINI, (S, *_) = labels.MINI, labels.PAPER_SIZES


def of(root: Path) -> dict[str, groups.Group]:
    return groups.groups(load_cells([root]), load_training_runs([root]), paper.load())


def sketched(root: Path, *only: str) -> dict[str, style.Sketch]:
    """Drawn, but not saved, which takes most of the time."""
    with style.style():
        return {s.name: s for s in registry.sketches(of(root), only)}


def marks(sketch: style.Sketch) -> dict[str, Line2D]:
    """Lines and markers that have a name."""
    return {str(x.get_gid()): x for x in sketch.figure.findobj(Line2D) if x.get_gid()}  # type: ignore[misc]


def shares(root: Path, seed: int, values: dict[int, float], metric: str = "silenced_share") -> None:
    folder = synthetic.training_run(root, "stapo", seed, steps=0)
    (folder / "metrics.jsonl").unlink()
    append(folder / "metrics.jsonl", [StepMetrics(step=k, values={metric: v}) for k, v in values.items()])


# curves


def test_curve_is_the_mean_over_seeds_with_their_range(tmp_path):
    shares(tmp_path, 0, {1: 0.001, 2: 0.002, 3: 0.003})
    shares(tmp_path, 1, {1: 0.003, 2: 0.002})  # still running: step 3 is not yet common
    c = curves.curve(load_training_runs([tmp_path]), curves.SILENCED)
    assert c is not None
    np.testing.assert_allclose(c[:4], [[1, 2], [0.2, 0.2], [0.1, 0.2], [0.3, 0.2]])
    for seed, values in enumerate(({1: 1.0, 3: 2.0}, {1: 2.0, 2: 0.5})):  # a step without a rare token has none
        shares(tmp_path / "thresholds", seed, values, "threshold")
    c = curves.curve(load_training_runs([tmp_path / "thresholds"]), curves.THRESHOLD)
    assert c is not None
    np.testing.assert_allclose(c[:4], [[1, 2, 3], [1.5, 0.5, 2], [1, 0.5, 2], [2, 0.5, 2]])
    shares(tmp_path / "again", 0, {1: 0.001})
    with pytest.raises(BadInput):
        curves.curve(load_training_runs([tmp_path]), curves.SILENCED)


def test_a_long_curve_is_drawn_in_windows_and_a_noisy_one_as_running_means(tmp_path):
    shares(tmp_path, 0, {k: k / 100 for k in range(1, 8)})
    runs = load_training_runs([tmp_path])
    c = curves.curve(runs, curves.SILENCED, most=3)
    assert c is not None
    # seven steps in at most three points: windows of three; the seventh alone is no point
    assert (c.window, c.steps.tolist()) == (3, [2, 5.5])
    np.testing.assert_allclose(c.mean, [2, 5.5])
    axes = Figure().subplots()
    curves.line(axes, "stapo", c, curves.SILENCED.metric)
    assert np.isfinite(axes.lines[0].get_ydata()).all()  # a wider window is no gap
    assert curves.curve(runs, curves.REWARD) is None  # not logged
    np.testing.assert_allclose(curves.smoothed(np.array([1.0, 3, 2, 6, 4]), 3), [2, 2, 11 / 3, 4, 5])


def test_a_gap_is_drawn_where_steps_are_missing(tmp_path):
    shares(tmp_path, 0, {1: 0.1, 2: 0.2, 5: 0.5}, "token_entropy_mean")
    drawn = marks(sketched(tmp_path, "training-curves")["miniature_training_curves"])["token_entropy_mean-stapo"]
    np.testing.assert_array_equal(drawn.get_ydata(), [0.1, 0.2, math.nan, 0.5])


def test_what_is_logged_now_and_then_is_drawn(tmp_path):
    shares(tmp_path, 0, dict.fromkeys(range(1, 80, 2), 0.1), "token_entropy_mean")
    drawn = marks(sketched(tmp_path, "training-curves")["miniature_training_curves"])["token_entropy_mean-stapo"]
    assert np.isfinite(drawn.get_ydata()).all()


def test_seeds_without_a_common_step_are_not_called_unlogged(tmp_path):
    for seed in (0, 1):
        shares(tmp_path, seed, {1 + seed: 0.1, 3 + seed: 0.1}, "token_entropy_mean")
    missing = sketched(tmp_path, "training-curves")["miniature_training_curves"].missing
    assert "Policy entropy (no step that all seeds have)" in missing
    assert "Mean reward (not logged)" in missing


def test_a_name_is_no_formula_and_no_markup(tmp_path):
    sketch = style.Sketch("a", "b|c", style.sheet(2), "<img src=x> [y](z)")
    sketch.figure.subplots().plot([1, 2], [1, 2], label=r"x$\frac{1$")
    with style.style():
        style.legend(sketch.figure, sketch.figure.axes[0].get_lines())
        saved = style.save(sketch)
    assert saved.files["svg"]
    assert saved.block() == r"![b\|c](results/figures/a.svg)" + "\n\n" + r"<sub>&lt;img src=x> \[y\](z)</sub>"


def test_share_after_warm_up(tmp_path):
    shares(tmp_path, 0, {10: 0.5, 11: 0.0, 12: 0.00004, 13: 0.00014})  # step 10 is the last of the warm-up
    assert curves.share_after(load_training_runs([tmp_path])) == pytest.approx((0.006, 200 / 3, 100 / 3))
    assert curves.share_after(load_training_runs([tmp_path]), 11) == pytest.approx((0.009, 50, 0))


def test_late_profile_is_the_mean_over_the_last_quarter_and_old_records_lack_the_80th(tmp_path):
    shares(tmp_path, 0, {6: 9.0, 7: 0.2, 8: 0.4}, "token_entropy_q95")  # of eight steps 7 and 8 are late
    assert curves.late_profile(load_training_runs([tmp_path])) == pytest.approx({95: 0.3})
    with style.style():
        drawn = curves.training(of(tmp_path)[MINI].only("stapo"), (), profile=True)
    assert drawn is not None
    assert len(drawn.missing) == 1


def test_a_caption_says_what_cuts_a_curve_and_which_seeds_are_in_it(tmp_path):
    shares(tmp_path, 0, dict.fromkeys(range(1, 9), 0.1))
    shares(tmp_path, 1, dict.fromkeys(range(1, 4), 0.1))
    shares(tmp_path, 2, dict.fromkeys(range(1, 9), 0.1), "token_entropy_mean")
    caption = sketched(tmp_path, "training-curves")["miniature_training_curves"].caption
    assert "means over 3 seeds" in caption
    assert "of those that logged it: Policy entropy, Silenced tokens" in caption
    assert "CUT where the shortest seed ends: STAPO at step 3" in caption


# comparisons


def test_a_benchmark_of_ones_own_is_in_no_average_of_a_real_size(tmp_path):
    size = next(iter(labels.REAL_SIZES))
    for name in (*labels.PAPER_BENCHMARKS, "mine"):
        synthetic.cell(tmp_path, "base", name, "t1.0", ["1"], size=size)
    assert of(tmp_path)[size].benchmarks == tuple(labels.PAPER_BENCHMARKS)


def entropies(values: list[float]) -> list[StepMetrics]:
    return [StepMetrics(step=k, values={"token_entropy_mean": v}) for k, v in enumerate(values, 1)]


def test_stability_by_hand():
    # 8 steps: the first quarter is 1 and 2, mean .2; later factors 1/2 three times and 2 three times: RMS ln 2
    assert compare.stability(entropies([0.1, 0.3, 0.1, 0.4, 0.1, 0.4, 0.1, 0.4])) == pytest.approx(0.5)
    assert compare.stability(entropies([0.2] * 8)) == pytest.approx(1.0)
    # a collapse and an explosion by the same factor count alike
    for value in (0.1, 10.0):
        assert compare.stability(entropies([1.0] * 2 + [value] * 6)) == pytest.approx(0.1)
    assert compare.stability(entropies([0.2] * 3)) is None  # no step in the first quarter
    assert compare.stability(entropies([0.2, 0.2, 0.0, 0.2])) is None
    assert compare.stability([*entropies([0.2] * 4), StepMetrics(step=5, values={"reward": 1.0})]) is None


def test_spots_need_a_finished_training_and_every_benchmark(tmp_path):
    synthetic.miniature(tmp_path / "eval", methods=("base", "justrl", "stapo"))
    synthetic.cell(tmp_path / "eval", "grpo", "mini-add", "t1.0", ["10"] * 64)
    for method, status in (("stapo", "done"), ("justrl", "running"), ("grpo", "done")):
        synthetic.training_run(tmp_path / "train", method, status=status)
    group = of(tmp_path)[MINI]
    assert list(compare.spots(group, group.benchmarks, "t1.0")) == ["stapo"]
    assert compare.pareto(group) is None  # 40 steps say nothing of stability


def test_a_training_that_ended_earlier_is_named_and_has_no_late_steps_to_compare(tmp_path):
    # of two seeds the shorter one counts: a method is drawn up to its end
    runs = (("stapo", 0, 40), ("justrl", 0, 40), ("grpo", 0, 13), ("entropy20", 0, 40), ("entropy20", 1, 20))
    for method, seed, steps in runs:
        synthetic.training_run(tmp_path, method, seed=seed, steps=steps)
    drawn = curves.token_entropy(of(tmp_path)[MINI])
    assert "FEWER STEPS: GRPO 13, 20-Entropy 20." in drawn.caption
    assert not any(name in drawn.finding for name in ("GRPO", "20-Entropy"))
    late = next(axes for axes in drawn.figure.axes if axes.get_title() == "Late in training")
    assert {line.get_gid() for line in late.lines} == {"profile-stapo", "profile-justrl"}


def test_a_figure_of_trainings_says_which_machine_made_which(tmp_path):
    synthetic.training_run(tmp_path, "grpo")
    assert "MACHINE" not in curves.token_entropy(of(tmp_path)[MINI]).caption
    synthetic.training_run(tmp_path, "stapo", gpu="NVIDIA H200, 143771 MiB")
    synthetic.training_run(tmp_path, "justrl", gpu="NVIDIA H200, 143771 MiB")
    said = "NOT ON ONE MACHINE: NVIDIA H200: JustRL, STAPO; a CPU: GRPO."
    assert said in curves.token_entropy(of(tmp_path)[MINI]).caption


def test_labels_of_other_values_are_read_as_the_trainer_writes_them():
    assert paper.variant("stapo-tau0.0002") == ("stapo", 0.0002, 0.75)
    assert paper.variant("stapo-tau2e-05-q0.5") == ("stapo", 2e-05, 0.5)
    assert paper.variant("stapo-random-q0.5") == ("stapo-random", 0.002, 0.5)
    assert paper.variant("stapo") is paper.variant("stapo-q0.5-old") is None


def test_sweep_finds_runs_under_their_labels_and_leaves_gaps(tmp_path):
    for label in ("justrl", "stapo-q0.5", "stapo", "stapo-tau0.0002"):
        synthetic.cell(tmp_path, label, "mini-add", "t1.0", ["10"])
    synthetic.training_run(tmp_path, "stapo", steps=8)
    g = of(tmp_path)[MINI]
    assert compare.sweep(g, "stapo", "q") == {0: "justrl", 0.25: None, 0.5: "stapo-q0.5", 0.75: "stapo", 1: None}
    assert compare.sweep(g, "stapo", "tau_p") == {2e-4: "stapo-tau0.0002", 2e-3: "stapo", 2e-2: None}
    # late entropy: the mean of the last quarter of eight steps
    late = [s.values["token_entropy_mean"] for s in g.runs[0].steps if s.step in (7, 8)]
    entropy = compare.late_entropy(g, "stapo")
    synthetic.cell(tmp_path, "stapo-q1", "mini-add", "t1.0", ["10"])
    assert compare.sweep(of(tmp_path)[MINI], "stapo", "q")[1.0] == "stapo-q1"
    assert entropy.mean == pytest.approx(sum(late) / 2)
    assert g.methods == tuple(labels.METHODS)  # such a run is in no other figure


def test_lines_of_the_forest_are_the_tables_differences(tmp_path):
    # mini-add: STAPO 1 .5 0 .5 minus base .5 0 0 .5 = .5 .5 0 0: mean 25, half width 45.9346 (tests/test_table.py)
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10", "00", "00", "10"])
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "10", "00", "10"])
    synthetic.cell(tmp_path, "grpo", "mini-add", "t1.0", ["11", "10", "00"])
    synthetic.cell(tmp_path, "justrl", "mini-add", "t1.0", ["11", "10", "00", "--"])
    found = compare.forest_lines(of(tmp_path)[MINI], "t1.0")
    (d, printed) = found["mini-add", "base"]
    assert (d.number.mean, d.number.low, printed) == (25.0, pytest.approx(25 - 45.9346, abs=1e-3), None)
    synthetic.cell(tmp_path, "entropy20", "mini-add", "t1.0", ["11", "10", "00", "10"], engine="vllm 0.24.0")
    why = [
        compare.forest_lines(of(tmp_path)[MINI], "t1.0")["mini-add", m][0].status
        for m in ("grpo", "justrl", "entropy20")
    ]
    assert why == ["other problems", "samples missing", "other engine"]
    assert "NOT SAMPLED ALIKE" in compare.forest(of(tmp_path)[MINI]).caption
    assert found["avg", "base"][0].status == "not run"  # of two benchmarks one was run
    # printed, 1.7B at T = 1.0: STAPO 18.44, GRPO 7.60 on AIME24; averages 36.85 and 31.10 (JustRL)
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["10"], size=S)
    found = compare.forest_lines(of(tmp_path)[S], "t1.0")
    assert (found["aime24", "grpo"][1], found["avg", "justrl"][1]) == (pytest.approx(10.84), pytest.approx(5.75))


def test_what_a_figure_finds_is_counted(tmp_path):
    """STAPO 3 of 4 in each problem; the base none; GRPO as many as STAPO, with a spread between problems."""
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["0000"] * 4)
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["1110", "1110", "1110", "1111"])
    synthetic.cell(tmp_path, "grpo", "mini-add", "t1.0", ["1111", "1110", "1110", "1100"])
    found = sketched(tmp_path, "forest")["miniature_forest"]
    base, others = found.finding.split(";")
    assert ("1 of 1 above 0" in base, "0 of 1 above 0" in others) == (True, True)
    for seed, method, ends in ((0, "stapo", 0.9), (1, "stapo", 0.7), (0, "grpo", 0.6), (1, "grpo", 0.8)):
        synthetic.training_run(tmp_path, method, seed, more={"accuracy": ends})
    found = sketched(tmp_path, "training-curves")["miniature_training_curves"]
    assert ["70 % (GRPO)" in found.finding, "80 % (STAPO)" in found.finding, "overlap" in found.finding] == [True] * 3
    assert found.block().startswith(f"![{found.title}: {found.finding}](")


def test_a_figure_shows_what_the_table_says_with_several_seeds_too(tmp_path):
    for seed in (0, 1):
        for benchmark in ("mini-add", "mini-add-hard"):
            for method, right in (("stapo", ("1100", "1000", "1111")), ("justrl", ("1000", "0000", "1110"))):
                letters = [right[(i + seed) % 3] for i in range(3)]
                synthetic.cell(tmp_path, method, benchmark, "t1.0", letters, seed=seed)
    g = of(tmp_path)[MINI]
    table = build(load_cells([tmp_path]), paper.load())
    for name, part in (("mini-add", ("mini-add",)), (labels.AVERAGE, g.benchmarks)):
        key = ("miniature", "stapo", name, "t1.0")
        row = next(r for r in table.rows if (r.section, r.method, r.benchmark, r.setting) == key)
        said, shown = row.score.percent, g.accuracy("stapo", part, "t1.0")
        assert (shown.mean, shown.low, shown.high) == pytest.approx((said.mean, said.low, said.high))
        assert len(shown.seeds) == 2


# what is drawn, and how


@pytest.fixture(scope="module")
def mini(tmp_path_factory) -> Path:
    """Records of the miniature: base and four methods."""
    root = tmp_path_factory.mktemp("mini")
    synthetic.miniature(root / "eval")
    for m in labels.METHODS:
        synthetic.training_run(root / "train", m)
    return root


def test_each_figure_of_the_miniature_says_what_it_is(mini):
    found = sketched(mini)
    kinds = ("training_curves", "forest", "token_entropy", "silenced_share")
    assert set(found) == {f"miniature_{k}" for k in kinds}
    for s in found.values():
        assert s.title.endswith("(miniature), SYNTHETIC RECORDS")
        assert "not a result of the paper" in s.caption
    lines = marks(found["miniature_training_curves"])
    assert len(lines) == 16  # four methods in four panels
    assert {n: x.get_color() for n, x in lines.items()} == {n: style.STYLES[n.split("-")[1]].colour for n in lines}


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_bytes_are_the_same_each_time_and_hold_no_date(mini, kind):
    (first,), (again,) = (registry.draw(of(mini), ["silenced-share"], [kind]) for _ in range(2))
    assert first.files == again.files
    # the layout's last digits depend on what else was drawn; an SVG's ids hash them
    bounds = [x for axes in first.figure.axes for x in axes.get_position().bounds]
    assert bounds == pytest.approx([round(x, 6) for x in bounds], rel=0, abs=1e-15)
    assert first.files[kind].startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])
    assert not re.search(rb"<dc:date>|tIME|Software|CreationDate", first.files[kind])


def test_an_unknown_figure_is_refused_and_nothing_run_still_draws(tmp_path):
    with pytest.raises(BadInput) as e:
        sketched(tmp_path, "paretto")
    assert e.value.found == "paretto"
    assert sketched(tmp_path)["miniature_training_curves"].missing == tuple(labels.METHODS.values())


def test_a_model_that_was_only_evaluated_has_no_empty_figures(tmp_path):
    synthetic.cell(tmp_path, "external", "mine", "t1.0", ["10", "00"], size="org/a model", rows=30, step="base")
    assert sketched(tmp_path) == {}


@pytest.fixture(scope="module")
def papers(tmp_path_factory) -> Path:
    """Made-up records of the paper's three sizes, enough for all of its figures."""
    root, methods = tmp_path_factory.mktemp("papers"), (*labels.METHODS, "justrl-fullmask")
    arms = ["stapo-tau0.0002", "stapo-tau0.02", "stapo-random", "stapo-high-entropy"]
    arms += [f"{m}-q{q}" for m in ("stapo", "stapo-random", "stapo-high-entropy") for q in (0.25, 0.5)]
    for size in labels.PAPER_SIZES:
        every = (*methods, *(arms if size == S else ()))
        synthetic.miniature(root / size / "eval", every, size, 9)
        for method in every:
            synthetic.training_run(root / size, method, steps=120, size=size)
    for method, selector in (("justrl", "keep_all"), ("stapo", "silence_spurious")):
        rows = logs.random_rows(2, 2000, silences=method == "stapo")
        folder = logs.write(root / S / f"{method}-s0", rows, selector=selector)
        cases = [{k: r[k] for k in tokens.CASE} for r in rows if r["rare"]]
        (folder / tokens.LABELS).write_text(json.dumps([c | {"category": "math"} for c in cases]))
    return root


def test_every_figure_of_the_paper_is_drawn_from_made_up_records(papers):
    g = of(papers)
    with style.style():
        found = {p.number: (p.sketches(g), p.state(g)) for p in registry.PRINTED if p.draw}
    assert {n: state for n, (_, state) in found.items()} == dict.fromkeys(found, "drawn")
    have = {n: set(marks(s[0])) for n, (s, _) in found.items()}
    assert {f"pareto-{m}" for m in labels.METHODS} <= have["1b"]
    assert {"val-t0.7/aime24/acc/mean@32-justrl", "token_entropy_mean-justrl-fullmask"} <= have["3"]
    assert "profile-stapo" in have["5"]
    assert {f"silenced_share-{size}" for size in labels.PAPER_SIZES} <= have["6"]
    assert {"sweep-stapo-q0.25-t1.0", "sweep-stapo-high-entropy-q0.5-t1.0", "sweep-justrl-fullmask-t1.0"} <= have["7"]
    assert {"sweep-stapo-tau0.02-t1.0", "sweep-stapo-tau0.02-t0.7"} <= have["8"]


def test_what_is_not_run_is_a_state(papers):
    states = {p.number: p.state(of(papers / "qwen3-8b")) for p in registry.PRINTED if p.draw}
    assert {n for n, state in states.items() if state == "drawn"} == {"1b", "9a"}
    assert states["6"] == "in part; missing: Qwen3-1.7B, Qwen3-14B"
    assert states["2b"] == states["9b"] == "not run"


def test_a_panel_without_data_is_no_drawn_figure(papers, tmp_path):
    root = tmp_path / "r"
    shutil.copytree(papers, root)
    for file in root.rglob("metrics.jsonl"):
        file.write_text(file.read_text().replace("val-t0.7/aime24/acc/mean@32", "other"))
    for file in root.rglob("*t0.7*.json"):
        file.unlink()
    states = {p.number: p.state(of(root)) for p in registry.PRINTED if p.draw}
    missing = "in part; missing: AIME24 in validation (not logged)"
    assert {n for n, state in states.items() if state == missing} == {"3", "5", "9a", "9b"}
    assert states["1b"] == "in part; missing: T = 0.7, top-p = 0.9 (not evaluated)"


def test_the_papers_figures_take_eleven_trainings_beside_its_table():
    further = [m for p in registry.PRINTED for m in p.further]
    assert sorted(set(further)) == [
        "justrl-fullmask", *(f"stapo-high-entropy{q}" for q in ("", "-q0.25", "-q0.5")), "stapo-q0.25", "stapo-q0.5",
        *(f"stapo-random{q}" for q in ("", "-q0.25", "-q0.5")), "stapo-tau0.0002", "stapo-tau0.02",
    ]  # fmt: skip
    assert parse_cells([f"{m}/qwen3-1.7b" for m in further])[0] == "cells"


# token logs


@pytest.mark.parametrize("case", [{"step": 1}, dict.fromkeys(tokens.CASE, 1) | {"category": "odd"}])
def test_a_readers_category_that_is_none_is_refused(tmp_path, case):
    (tmp_path / tokens.LABELS).write_text(json.dumps([case]))
    with pytest.raises(BadInput):
        tokens.categories(tmp_path)


@pytest.mark.parametrize(("q", "tau"), [(0.0, -math.inf), (1.0, math.inf)])
def test_where_every_rare_token_is_below_the_threshold_the_region_is_outlined(tmp_path, q, tau):
    log = load(logs.write(tmp_path, [logs.row(tau_h=tau, silenced=q == 1)], q=q))
    outlined = [p for p in tokens.density(log).figure.findobj(Rectangle) if p.get_gid() == "region"]
    assert len(outlined) == int(q == 1)


def test_words_of_one_count_have_one_size_however_little_room_there_is():
    counts = {f"hypothesis{i}": 3 if i < 4 else 1 for i in range(60)}
    sizes = {(n, size) for (_, n), size, *_ in tokens.laid_out(counts, "black").layout_}
    assert len(sizes) == 2, sizes
    assert {n for n, _ in sizes} == {1.0, 1 / 3}


def test_words_that_look_like_mathematics_are_words_and_too_few_make_no_cloud(tmp_path):
    counts = {"$x^2$": 9, "$\\nothing{$": 8, "\\$": 7, "_a": 6, "a\x00b": 5, "中": 4, "\u202e": 3}
    log = load(logs.write(tmp_path, [logs.row()]))
    figure = tokens.clouds(log, {"silenced": counts, "kept": {}}).figure
    assert [t.get_text() for t in figure.axes[1].get_yticklabels()] == [
        *("$x^2$", "$\\nothing{$", "\\$", "_a", "a⟨U+0000⟩b", "⟨U+4E2D⟩", "⟨U+202E⟩"),
    ]
    figure.draw_without_rendering()  # "$\\nothing{$" read as mathematics would raise
    figure = tokens.clouds(log, {"silenced": dict.fromkeys("3456", 1), "kept": {}}).figure
    assert not any(axes.images for axes in figure.axes)
    texts = [t.get_text() for t in figure.findobj(Text)]
    assert texts.count("no such token") == 2, "nothing is kept: neither a cloud nor bars"


# the palette

BEYOND = tuple(m for m in style.STYLES if m not in (labels.BASE, *labels.METHODS, *labels.ARMS))


def test_every_method_has_a_style_of_its_own():
    known = style.STYLES.values()
    assert len({k.colour for k in known}) == len(known)
    # within one figure, dashes and markers tell the lines apart in grey too
    for together in ((labels.BASE, *labels.METHODS), tuple(labels.ARMS), BEYOND):
        assert len({style.method_style(m).dashes for m in together}) == len(together)
        assert len({style.method_style(m).marker for m in together}) == len(together)


@pytest.mark.parametrize("method", ["justrl", "stapo", "entropy20"])
def test_dashes_are_seen_in_the_legend(method):
    """Parts of the line on each side of the marker, along the middle of the drawn key: one if it is solid."""
    with style.style():
        figure = style.sheet(1.0)
        style.legend(figure, [style.handle(method)])
        drawn = FigureCanvasAgg(figure)
        drawn.draw()
        (key,) = figure.legends[0].get_lines()
        box = key.get_window_extent()
        pixels = np.asarray(drawn.buffer_rgba())[..., :3].min(axis=2)
    row = pixels[pixels.shape[0] - round((box.y0 + box.y1) / 2), round(box.x0) - 4 : round(box.x1) + 4]
    parts = int(((row[1:] < 200) & (row[:-1] >= 200)).sum())
    assert (parts >= 3) == bool(style.method_style(method).dashes)


# Machado, Oliveira and Fernandes (2009), table 1, severity 1.0, on linear RGB
SEEN_BY = {
    "everybody": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# IEC 61966-2-1, white D65
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
LEAST = 12.0  # CIE76; 2.3 can just be told apart side by side (Mahy and others, 1994), and marks are thin and apart
TOGETHER = (
    [style.STYLES[m].colour for m in dict.fromkeys((labels.BASE, *labels.METHODS, *labels.ARMS))],
    [style.STYLES[m].colour for m in (labels.BASE, *labels.METHODS, *BEYOND)],
    [style.SILENCED, style.KEPT],
)


def lab(colour: str, seen_by: str) -> np.ndarray:
    """L*, a*, b* of "#RRGGBB"; what a deficiency puts outside the screen's colours is cut to them."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    xyz = np.array(TO_XYZ) @ np.clip(np.array(SEEN_BY[seen_by]) @ linear, 0, 1) / (0.95047, 1.0, 1.08883)
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_colours_in_one_figure_are_told_apart(seen_by):
    np.testing.assert_allclose(lab("#FF0000", "everybody"), (53.24, 80.09, 67.20), atol=0.02)
    for colours in TOGETHER:
        pairs = combinations([lab(c, seen_by) for c in colours], 2)
        assert min(np.linalg.norm(a - b) for a, b in pairs) >= LEAST
