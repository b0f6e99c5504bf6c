"""The table from records: values by hand, loud gaps, best marks, comparisons, Holm, the paper's values, every form."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic_records as synthetic

from stapo_repro import labels, paper, text
from stapo_repro.cli import main
from stapo_repro.read import load_cells
from stapo_repro.scores import Difference
from stapo_repro.table import write
from stapo_repro.table.build import Row, Section, Table, build
from stapo_results import generated
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import SETTINGS, CellRecord
from stapo_results.store import read_json, write_json

SIZE = "qwen3-1.7b"


def table(root: Path) -> Table:
    return build(load_cells([root]), paper.load())


def section(t: Table, name: str = "miniature") -> Section:
    return next(s for s in t.sections if s.id == name)


def value(t: Table, method: str, benchmark: str, setting: str = "t1.0", part: str = "miniature") -> SimpleNamespace:
    """A row as the files hold it."""
    key = (part, method, "ours", benchmark, setting)
    row = next(r for r in t.rows if (r.section, r.method, r.source, r.benchmark, r.setting) == key)
    return SimpleNamespace(**text.written(row, write.COLUMNS[Row]))


def difference(t: Table, method: str, against: str, benchmark: str = "mini-add", part: str = "miniature"):
    """A difference as the files hold it."""
    key = (method, against, benchmark, "t1.0")
    found = next(d for d in t.differences[part] if (d.method, d.against, d.benchmark, d.setting) == key)
    return SimpleNamespace(**text.written(found, write.COLUMNS[Difference]))


def cell(root: Path, method: str, verdicts: list[str], benchmark: str = "mini-add", **changed) -> None:
    synthetic.cell(root, method, benchmark, "t1.0", verdicts, **changed)


def tenths(*means: float) -> list[str]:
    return ["1" * round(10 * m) + "0" * round(10 - 10 * m) for m in means]


def small(root: Path) -> Path:
    """Two models, two benchmarks of four problems and two samples; worked by hand below."""
    cell(root, "base", ["10", "00", "00", "10"])
    cell(root, "base", ["00", "00", "00", "10"], "mini-add-hard")
    cell(root, "stapo", ["11", "10", "00", "10"])
    cell(root, "stapo", ["00", "00", "00", "11"], "mini-add-hard")
    return root


def test_values_by_hand(tmp_path):
    t = table(small(tmp_path))
    # STAPO on mini-add: problem means 1 .5 0 .5, mean .5, SE sqrt(.5 / 12) = .204124
    v = value(t, "stapo", "mini-add")
    assert (v.shown, v.mean, v.se) == ("50.00", 50.0, 20.41241452)
    # base on mini-add-hard: means 0 0 0 .5, mean .125, SE sqrt((3 * .015625 + .140625) / 12) = .125
    v = value(t, "base", "mini-add-hard")
    assert (v.shown, v.se, v.low) == ("12.50", 12.5, 0.0)
    # average .5 and .25; SE sqrt(.204124^2 + .25^2) / 2 = .161374
    v = value(t, "stapo", "avg")
    assert (v.shown, v.se) == ("37.50", 16.13743061)
    assert value(t, "base", "avg").shown == "18.75"
    cells = {r["path"]: r["cell"] for r in t.records}
    assert [cells[f].split("/")[4] for f in value(t, "base", "avg").records] == ["mini-add-hard", "mini-add"]


def test_a_model_that_was_only_evaluated_has_no_rows_of_methods_never_run(tmp_path):
    cell(tmp_path, "external", ["10", "00"], "math500", size="some-lm", step="base", rows=500)
    rows = [r for r in table(tmp_path).rows if r.size == "some-lm"]
    assert {r.method for r in rows} == {"external"}


def test_missing_is_loud_and_never_zero(tmp_path):
    t = table(small(tmp_path))
    assert (value(t, "grpo", "mini-add").status, value(t, "grpo", "mini-add").mean) == ("not run", None)
    shown = write.to_markdown(t)
    assert "| GRPO | not run | not run | not run |" in shown
    assert "50.00** (not run)" in shown
    cell(tmp_path, "grpo", ["11", "1-", "11", "11"])
    cell(tmp_path, "justrl", ["11", "11", "--", "11"])  # a problem without any sample
    cell(tmp_path, "base", ["00", "10"], "aime24", rows=30)
    t = table(tmp_path)
    v = value(t, "grpo", "mini-add")
    assert (v.shown, v.missing, v.fewest_samples, v.best) == ("100.00", 1, 1, False)
    assert value(t, "stapo", "mini-add").best
    assert (value(t, "justrl", "mini-add").mean, value(t, "justrl", "mini-add").status) == (None, "incomplete")
    assert value(t, "base", "avg", part="miniature-real").shown == "1 of 6 run"
    shown = write.to_markdown(t)
    assert "100.00 (**1/2 samples**)" in shown
    assert "**1 of 6 run**" in shown
    assert "<sub>N 2 x 2 of 30</sub>" in shown
    assert "MISSING SAMPLES: GRPO on mini-add at t1.0" in shown


def test_real_models_stand_beside_the_papers_rows_and_toys_on_a_page_of_their_own(tmp_path):
    size = "qwen2.5-coder-0.5b"
    cell(small(tmp_path), "base", ["10"] * 40, "amc23", size=size, rows=40, finish_reasons={"stop": 77, "length": 3})
    t = table(tmp_path)
    v = value(t, "base", "amc23", part=size)
    assert (v.shown, v.samples, v.problems, v.truncated) == ("50.00", 2, 40, 3.75)  # 3 of 80 responses
    assert value(t, "base", "aime24", part="qwen2.5-coder-1.5b").status == "not run"
    block = {line.split(" | ")[0]: line.split(" | ")[1:] for line in write.readme_block(t).splitlines()}
    assert block["| Qwen2.5-Coder-0.5B-Instruct: Base model"][2:4] == [
        # all alike: 1 - .025^(1 / 40) = .0881 of the way to 0 and to 1
        "50.00 (not run)<br><sub>45.6 to 54.4</sub><br><sub>N 2 x 40</sub><br><sub>cut 3.8 %</sub>",
        "not run",
    ]
    assert block["| *Qwen3-1.7B: STAPO, paper*"][3] == "**73.10** (**71.80**)<br><sub>N 4 x 500</sub>"
    pages = {name: write.FILES[name](t) for name in ("main_table.md", "toys.md")}
    assert ["## Miniature" in page for page in pages.values()] == [False, True]
    assert ["## Qwen2.5" in page for page in pages.values()] == [True, False]


def test_tiny_model_never_enters_the_papers_sections(tmp_path):
    cell(tmp_path, "stapo", ["11"] * 30, "aime24", rows=30)
    t = table(tmp_path)
    assert value(t, "stapo", "aime24", part="miniature-real").shown == "100.00"
    assert {value(t, "stapo", "aime24", part=size).status for size in labels.PAPER_SIZES} == {"not run"}
    assert all(r.minus_paper is None for r in t.rows)


def test_best_needs_two_and_ties_share_it_and_the_last_checkpoint_counts(tmp_path):
    cell(tmp_path, "base", ["10", "10"])
    assert not value(table(tmp_path), "base", "mini-add").best
    cell(tmp_path, "stapo", ["11", "11"], step=20)
    cell(tmp_path, "stapo", ["11", "00"], step=40)
    t = table(tmp_path)
    assert [(value(t, m, "mini-add").shown, value(t, m, "mini-add").best) for m in ("base", "stapo")] == [
        ("50.00", True), ("50.00", True)
    ]  # fmt: skip


def test_unlike_records_are_named(tmp_path):
    judged = {"scored_by": "rule+judge", "judge": "x"}
    cell(tmp_path, "base", ["10"], variant="31 rows, registered 30", text_variants=15, grader="ours-1")
    cell(tmp_path, "grpo", ["10"], step=20, **judged)
    cell(
        tmp_path, "stapo", ["10"], grader="ours-2", benchmark_sha256="1" * 64, max_tokens=64, **judged | {"judge": "y"}
    )
    notes = " ".join(section(table(tmp_path)).footnotes)
    for what in ("SCORED", "GRADED", "JUDGED", "LIMITED", "TRAINED"):
        assert f"NOT {what} ALIKE" in notes
    for said in ("SAME COPY of mini-add", "31 rows, registered 30", "15 problems"):
        assert said in notes


@pytest.mark.parametrize(
    "otherwise",
    [{"max_tokens": 64}, {"chat": {"system": "x"}}, {"scored_by": "rule+judge", "judge": "x"}, {"step": 20}],
)
def test_methods_that_were_not_evaluated_alike_are_not_compared(otherwise, tmp_path):
    cell(tmp_path, "justrl", ["11", "00"], step=40)
    cell(tmp_path, "stapo", ["11", "11"], **{"step": 40} | otherwise)
    t = table(tmp_path)
    assert difference(t, "stapo", "justrl").status == "evaluated otherwise"
    assert not any(row.best for row in t.rows if row.source == "ours")
    cell(tmp_path, "stapo", ["11", "11"], step=40)
    assert difference(table(tmp_path), "stapo", "justrl").points == 50


def test_the_readme_has_every_warning_of_a_real_model_with_its_size(tmp_path):
    size = "qwen2.5-coder-0.5b"
    for setting, engine in (("t1.0", "vllm 0.32"), ("t0.7", "hf 5")):
        synthetic.cell(tmp_path, "base", "amc23", setting, ["10"] * 40, size=size, engine=engine, rows=40,
                       chat={"system": "<b>"}, options_refused=["top_k"])  # fmt: skip
    synthetic.cell(tmp_path, "base", "amc23", "t1.0", ["10"] * 40, size="qwen2.5-coder-1.5b", rows=40)
    block = write.readme_block(table(tmp_path))
    assert "Qwen2.5-Coder-0.5B-Instruct: OTHER SAMPLING: Base model on AMC23 at t1.0" in block
    assert "&lt;b>" in block
    assert "<b>" not in block
    assert "<sub>by vllm (hf)</sub>" in block  # of one cell the two settings


def three(root: Path) -> Path:
    """Six problems: the base model solves none, GRPO all, STAPO the first three."""
    cell(root, "base", ["00"] * 6)
    cell(root, "grpo", ["11"] * 6)
    cell(root, "stapo", ["11"] * 3 + ["00"] * 3)
    return root


def test_what_is_on_record_and_in_no_column_is_named(tmp_path):
    cell(tmp_path, "base", ["11", "10"])
    synthetic.cell(tmp_path, "base", "mini-add", "t0.7-p0.8-k20", ["11", "10"])
    cell(tmp_path, "base", ["11"], "mine")
    notes = section(table(tmp_path)).footnotes
    (named,) = (n for n in notes if "mini-add at t0.7-p0.8-k20" in n)
    assert "mine at t1.0" in named


def test_an_average_has_the_fewest_samples_of_its_benchmarks(tmp_path):
    cell(tmp_path, "base", ["1111", "1010"])
    cell(tmp_path, "base", ["11", "10"], "mini-add-hard")
    average = value(table(tmp_path), "base", "avg")
    assert (average.samples, average.fewest_samples) == (2, 2)


def test_methods_are_compared_and_holm_by_hand(tmp_path):
    t = table(three(tmp_path))
    compared = list(dict.fromkeys((d.method, d.against) for d in t.differences["miniature"]))
    assert compared == [
        *((m, "base") for m in ("grpo", "entropy20", "justrl", "stapo")),
        *(("stapo", b) for b in ("grpo", "entropy20", "justrl")),
    ]
    # -1 on three of six problems: mean -.5, SE sqrt(1.5 / 30) = .2236068, t(.975, 5) = 2.5705818
    d = difference(t, "stapo", "grpo")
    assert (d.points, d.se) == (-50.0, 22.36067977)
    assert (d.low, d.high) == (-100, pytest.approx(-50 + 57.4797, abs=1e-3))
    assert difference(t, "stapo", "justrl").status == "not run"
    # exact p: six equal differences 2/64, three 2/8, three 2/8; Holm 3 x .03125, 2 x .25, then not below .5
    found = [difference(t, *pair) for pair in (("grpo", "base"), ("stapo", "base"), ("stapo", "grpo"))]
    assert [(d.p, d.p_holm) for d in found] == [(0.03125, 0.09375), (0.25, 0.5), (0.25, 0.5)]
    assert t.families == {"miniature, single benchmarks": 3}


def test_of_benchmarks_with_other_seeds_there_is_no_average_nor_its_difference(tmp_path):
    for name, seeds in (("mini-add", (0, 1)), ("mini-add-hard", (0,))):
        cell(tmp_path, "base", ["00", "10", "00"], name)
        for seed in seeds:
            cell(tmp_path, "stapo", ["11", "10", "10"], name, seed=seed)
    t = table(tmp_path)
    assert value(t, "stapo", "avg").status == "incomplete"
    d = difference(t, "stapo", "base", "avg")
    assert (d.status, d.points, d.p) == ("seeds differ", None, None)
    assert (
        "SEEDS DIFFER: STAPO: seed 0, 1 on mini-add at t1.0; seed 0 on mini-add-hard at t1.0." in section(t).footnotes
    )
    notes = write.difference_grid(t, section(t)).notes
    assert "(0, 1: STAPO minus Base model on mini-add)" in notes[1]
    assert "With two seeds" in section(t).footnotes[0]


def test_samples_of_seeds_that_have_other_numbers_are_all_named(tmp_path):
    cell(tmp_path, "stapo", ["1100"])
    cell(tmp_path, "stapo", ["11"], seed=1)
    grid = write.main_grid(table(tmp_path), section(table(tmp_path)))
    assert "N 2 or 4 x 1" in "".join(grid.rows[-1])


JUDGE = "{} weights sha256:{}, prompt sha256:0, scope all, mode compass"


@pytest.mark.parametrize("changed", [
    {"max_tokens": 256}, {"chat": {"system": "Be brief."}}, {"scored_by": "rule"}, {"judge": JUDGE.format("a", 2)},
    {"step": 7},
])  # fmt: skip
def test_seeds_that_were_not_evaluated_alike_are_no_number(tmp_path, changed):
    judged = {"scored_by": "rule+judge", "judge": JUDGE.format("a", 1)}
    cell(tmp_path, "stapo", ["11"], **judged)
    cell(tmp_path, "stapo", ["10"], seed=1, **judged | changed)
    with pytest.raises(RecordError, match="have different"):
        table(tmp_path)


@pytest.mark.parametrize(("by", "judge"), [("rule+judge", JUDGE.format("b", 1)), ("rule+judge", ""), ("rule", "other")])
def test_a_judge_of_another_name_an_unnamed_one_and_one_without_a_word_are_no_difference(tmp_path, by, judge):
    cell(tmp_path, "stapo", ["11"], scored_by=by, judge=JUDGE.format("a", 1))
    cell(tmp_path, "stapo", ["10"], seed=1, scored_by=by, judge=judge)
    assert value(table(tmp_path), "stapo", "mini-add").shown == "75.00"


def test_seeds_with_equal_weights_are_told(tmp_path):
    for seed in (0, 1):
        cell(tmp_path, "stapo", ["11"], seed=seed, revisions={"model": "weights sha256:aa"})
    notes = section(table(tmp_path)).footnotes
    assert [n for n in notes if n.startswith("ONE MODEL UNDER SEVERAL NAMES: STAPO seed 0, STAPO seed 1 ")]


def test_methods_with_equal_weights_are_told_and_a_base_with_itself_is_not(tmp_path):
    for method, weights in (("base", "aa"), ("justrl", "aa"), ("stapo", "bb")):
        for setting in ("t1.0", "t0.7"):
            synthetic.cell(
                tmp_path, method, "mini-add", setting, ["11"], revisions={"model": f"weights sha256:{weights}"}
            )
    notes = section(table(tmp_path)).footnotes
    assert [n.partition(" have")[0] for n in notes if n.startswith("ONE MODEL")] == [
        "ONE MODEL UNDER SEVERAL NAMES: Base model, JustRL seed 0"
    ]


def test_a_method_of_ones_own_has_seeds_whatever_its_step(tmp_path):
    for seed, verdicts in enumerate((["11", "10"], ["00", "10"])):
        cell(tmp_path, "mine", verdicts, seed=seed, step="base")
    assert value(table(tmp_path), "mine", "mini-add").se_seeds == 25.0


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        ({"grader": "ours, rules 8"}, {"grader": "strict, rules 8"}, "evaluated otherwise"),
        ({"grader": "ours, rules 7"}, {"grader": "ours, rules 8"}, "run"),
        ({"grader": "rules 5, x"}, {"grader": "strict, rules 8"}, "run"),
        ({"options_refused": ["top_k"]}, {}, "evaluated otherwise"),
        ({"context_limit": {"context": 64, "asked": 128, "problems": 2, "least": 9, "most": 99}}, {},
         "evaluated otherwise"),
        ({"context_limit": {"context": 64, "asked": 128, "problems": 2, "least": 9, "most": 99}},
         {"context_limit": {"context": 64, "asked": 128, "problems": 1, "least": 9, "most": 9}}, "run"),
        ({"revisions": {"data:own": "rows in order"}}, {"revisions": {"data:own": "in another"}}, "other problems"),
    ],
)  # fmt: skip
def test_what_was_evaluated_otherwise_is_not_compared(tmp_path, one, other, status):
    for method, changed in (("stapo", one), ("justrl", other)):
        cell(tmp_path, method, ["11", "10"], "own", size="lm", **changed)
    assert difference(table(tmp_path), "stapo", "justrl", "own", part="lm").status == status


def test_judges_of_three_seeds_are_compared_although_the_first_names_none(tmp_path):
    for seed, judge in enumerate(("", JUDGE.format("a", 1), JUDGE.format("b", 2))):
        cell(tmp_path, "stapo", ["11"], seed=seed, scored_by="rule+judge", judge=judge)
    with pytest.raises(RecordError, match="different judges"):
        table(tmp_path)


def test_stapo_is_compared_with_a_method_of_ones_own(tmp_path):
    cell(three(tmp_path), "mine", ["00"] * 6)
    d = difference(table(tmp_path), "stapo", "mine")
    assert (d.points, d.status) == (50.0, "run")


def test_the_papers_sizes_are_one_family_and_averages_another(tmp_path):
    for size in ("qwen3-1.7b", "qwen3-8b"):
        for b in labels.PAPER_BENCHMARKS:
            cell(tmp_path / size, "base", ["00", "10", "00"], b, size=size)
            cell(tmp_path / size, "stapo", ["11", "10", "10"], b, size=size)
    t = table(tmp_path)
    assert t.families == {"the paper's three sizes, single benchmarks": 12, "the paper's three sizes, averages": 2}
    d = difference(t, "stapo", "base", "aime24", "qwen3-8b")
    assert (d.p, d.p_holm) == (0.5, 1.0)
    # the average of six: twelve differences, 1 and .5 six times each, all above 0: 2 of 2^12 patterns
    a = difference(t, "stapo", "base", "avg", "qwen3-8b")
    assert (a.points, a.p, a.p_holm) == (50.0, round(2 / 4096, 8), round(2 * 2 / 4096, 8))


def by_hand(root: Path) -> Path:
    """Two seeds of STAPO, one base model that solves nothing: the matrix of test_crossed."""
    cell(root, "base", tenths(0, 0, 0))
    cell(root, "stapo", tenths(0.1, 0.4, 0.7), seed=0)
    cell(root, "stapo", tenths(0.3, 0.6, 0.9), seed=1)
    return root


def test_two_seeds_have_both_variances(tmp_path):
    # problem means .2 .5 .8: sqrt(.18 / 6); seed means .4 .6: sqrt(.02 / 2); together sqrt(.03 + .01)
    t = table(by_hand(tmp_path))
    v = value(t, "stapo", "mini-add")
    assert (v.mean, v.se, v.se_problems, v.se_seeds) == (50.0, 20.0, 17.32050808, 10.0)
    assert v.seeds == {0: 40.0, 1: 60.0}
    assert any("88 of 100" in note for note in section(t).footnotes)  # docs/statistics.md: of two seeds alone
    assert not any("88 of 100" in note for note in section(table(small(tmp_path / "one"))).footnotes)
    # within: .1 .9 -> .09 each x 10/9 ... seed 0: (.09 + .24 + .21) / 3 x 10/9 = .2, over 30 samples .00666667;
    # seed 1: (.21 + .24 + .09) the same; mean over two seeds: sqrt(2 x .00666667) / 2 = .0577350
    assert v.se_sampling == 5.77350269
    # t = 2.5 at 2.909 degrees of freedom: between 2 (.1296) and 3 (.0877); the sign flip of .2 .5 .8 has 2 of 8
    d = difference(t, "stapo", "base")
    assert (d.points, d.se, d.seeds, d.test) == (50.0, 20.0, (0, 1), "t over problems and seeds")
    assert d.p is not None
    assert 0.0877 < d.p < 0.1296
    assert d.p_sign_flip == 0.25


def test_seeds_of_an_average_are_models(tmp_path):
    # seed means .4 .6 on one benchmark and .6 .4 on the other: no variance between seeds on average
    for b, (first, second) in {"mini-add": (0, 1), "mini-add-hard": (1, 0)}.items():
        cell(tmp_path / "same", "stapo", tenths(0.1, 0.4, 0.7), b, seed=first)
        cell(tmp_path / "same", "stapo", tenths(0.3, 0.6, 0.9), b, seed=second)
        cell(tmp_path / "other", "stapo", tenths(0.1, 0.2), b, seed=first)
    v = value(table(tmp_path / "same"), "stapo", "avg")
    assert (v.mean, v.se_seeds, v.seeds) == (50.0, 0.0, {0: 50.0, 1: 50.0})
    assert v.se == v.se_problems == 12.24744871  # sqrt(.03 + .03) / 2
    v = value(table(tmp_path / "other"), "stapo", "avg")
    assert (v.status, v.shown, v.mean) == ("incomplete", "seeds differ", None)


def test_a_seed_without_a_sample_of_a_problem_leaves_the_other_seeds_and_the_samples_of_each(tmp_path):
    cell(tmp_path, "stapo", ["11", "--", "10"], seed=0)
    cell(tmp_path, "stapo", ["11", "00", "10"], seed=1)
    t = table(tmp_path)
    v = value(t, "stapo", "mini-add")
    assert (v.status, v.mean, v.seeds, v.samples, v.missing) == ("incomplete", None, {1: 50.0}, 4, 2)
    assert "| STAPO | **incomplete** (not run)<br><sub>N 2 x 3</sub>" in write.to_markdown(t)


def test_seeds_with_other_problems_are_refused(tmp_path):
    cell(tmp_path, "stapo", ["11", "00"], seed=0)
    cell(tmp_path, "stapo", ["11"], seed=1)
    with pytest.raises(RecordError, match="different problems"):
        table(tmp_path)


def test_small_print_of_the_second_setting_alone() -> None:
    lines = ("4.0 to 6.0", "4.0 to 6.0"), ("N 2 x 40", ""), ("cut n/a", "3.8 %"), ("p n/a", "0.030")
    assert write._both("not run", "5.00", *lines) == (
        "not run (5.00)<br><sub>(4.0 to 6.0)</sub><br><sub>N 2 x 40</sub><br><sub>cut (3.8 %)</sub>"
        "<br><sub>p (0.030)</sub>"
    )


AS_THE_PAPER = {"scored_by": "rule+judge", "judge": "x", "max_tokens": 20480, "step": 3000, "size": SIZE}


def test_ours_beside_the_paper(tmp_path):
    # 6 of 30 solved: 20.00, SE sqrt(.16 / 29) = 7.43 points, interval 4.8 to 35.2; the paper prints 18.44
    cell(tmp_path, "stapo", ["1111"] * 6 + ["0000"] * 24, "aime24", **AS_THE_PAPER)
    # all 30 half solved: 50.00, 44.2 to 55.8; the paper prints 7.60
    cell(tmp_path, "grpo", ["1100"] * 30, "aime24", **AS_THE_PAPER)
    t = table(tmp_path)
    found = [value(t, m, "aime24", part=SIZE) for m in ("stapo", "grpo")]
    assert [(v.minus_paper, v.paper_within) for v in found] == [(1.56, "within"), (42.4, "outside")]
    assert value(t, "stapo", "avg", part=SIZE).minus_paper is None
    assert "| STAPO, ours minus paper | +1.56 (not run)<br><sub>within</sub> |" in write.to_markdown(t)


@pytest.mark.parametrize(
    ("verdicts", "changed"),
    [
        (["11-1"] + ["1100"] * 29, {}),
        (["1100"] * 30, {"variant": "other gold answers"}),
        (["1100"] * 31, {}),
        (["1100"] * 30, {"max_tokens": 256}),
        (["1100"] * 30, {"chat": {"system": "Be brief."}}),
        (["1100"] * 30, {"text_variants": 1}),
        (["1100"] * 30, {"scored_by": "rule", "judge": ""}),
        (["1100"] * 30, {"options_refused": ["top_k"]}),
        (["1100"] * 30, {"step": 300}),
        (["1100"] * 30, {"grader": "strict, rules 8"}),
        (["1100"] * 30, {"context_limit": {"context": 4096, "asked": 20480, "problems": 30, "least": 9, "most": 99}}),
    ],
)
def test_paper_is_not_judged_by_what_is_not_comparable(tmp_path, verdicts, changed):
    cell(tmp_path, "stapo", verdicts, "aime24", **AS_THE_PAPER | changed)
    assert value(table(tmp_path), "stapo", "aime24", part=SIZE).paper_within == "not judged"


def test_gain_of_14b_over_justrl_is_within_noise():
    # 67.80 - 66.71; SE about .7 from sampling alone and 3.3 for unpaired problems; times 2.8016
    key = ("qwen3-14b", "justrl", "t0.7", "avg")
    g = next(g for g in paper.gains(paper.load()) if (g.size, g.baseline, g.setting, g.benchmark) == key)
    assert (g.points, g.reading) == (1.09, "below both")
    assert (round(g.se_sampling, 2), round(g.se_unpaired, 2)) == (0.71, 3.32)
    assert (round(g.mde_sampling, 2), round(g.mde_unpaired, 2)) == (1.99, 9.31)


@pytest.mark.parametrize(
    ("number", "plain", "with_sign"),
    [
        (53.125, "53.12", "+53.12"), (53.135, "53.14", "+53.14"), (0.005, "0.00", "0.00"), (-0.005, "0.00", "0.00"),
        (-0.015, "-0.02", "-0.02"), (-0.0, "0.00", "0.00"), (99.995, "100.00", "+100.00"), (None, "n/a", "n/a"),
    ],
)  # fmt: skip
def test_rounding_at_the_edges(number, plain, with_sign):
    assert (text.shown(number), text.signed(number)) == (plain, with_sign)
    assert [text.p_shown(p) for p in (0.00001, 0.001, 0.0125)] == ["<0.001", "0.001", "0.012"]


def test_one_verdict_changes_exactly_the_cells_that_it_should(tmp_path):
    """STAPO, one problem of mini-add-hard, T=0.7. Holm's p-values may change in all of their family."""
    for rank, method in enumerate((labels.BASE, *labels.METHODS)):
        for b, benchmark in enumerate(labels.MINI_BENCHMARKS):
            for setting in SETTINGS:
                right = [min(8, (0, 2, 2, 3, 4)[rank] + ((i * i + rank * i * 3 + b) % 7) % 5) for i in range(12)]
                synthetic.cell(tmp_path, method, benchmark, setting, ["1" * r + "0" * (8 - r) for r in right])
    before = json.loads(write.to_json(table(tmp_path)))
    wanted = "stapo/mini/s0/step40/mini-add-hard/t0.7/e0"
    path = next(c.file for c in load_cells([tmp_path]) if c.record.cell.id == wanted)
    record = read_json(path, CellRecord)
    letters = record.problems[1].verdicts
    flipped = str.translate(letters[0], str.maketrans("01", "10")) + letters[1:]
    record.problems[1] = record.problems[1].model_copy(update={"verdicts": flipped})
    write_json(path, record)
    after = json.loads(write.to_json(table(tmp_path)))

    def pairs(t: dict) -> dict[tuple, dict]:
        found = t["differences"]["miniature"]
        return {(d["method"], d["against"], d["benchmark"], d["setting"]): d | {"p_holm": None} for d in found}

    changed = [a for a, b in zip(after["rows"], before["rows"], strict=True) if a != b]
    assert {(r["method"], r["benchmark"], r["setting"]) for r in changed} == {
        ("stapo", b, "t0.7") for b in ("mini-add-hard", "avg")
    }
    compared = {key for key, d in pairs(before).items() if pairs(after)[key] != d}
    assert compared == {
        ("stapo", against, b, "t0.7")
        for against in ("base", "grpo", "entropy20", "justrl") for b in ("mini-add-hard", "avg")
    }  # fmt: skip
    assert after["families"] == {"miniature, single benchmarks": 7 * 4, "miniature, averages": 7 * 2}


def test_every_form_holds_the_numbers_of_the_rows(tmp_path):
    """Percent with two decimals, in the rows' order, from a table with seeds, gaps and the paper's rows."""
    for b, rows in {"aime24": 30, "math500": 500}.items():
        for seed in (0, 1):
            cell(tmp_path, "stapo", ["1100"] * rows, b, size=SIZE, seed=seed)
        cell(tmp_path, "base", ["1000"] * (rows - 1) + ["1--0"], b, size=SIZE)
    t = table(small(tmp_path))
    wanted = [r.score.shown for r in t.rows if r.score.status in ("run", "paper")]
    lines = list(csv.DictReader(io.StringIO(write.to_csv(t))))
    assert [text.shown(float(line["mean"])) for line in lines if line["mean"]] == wanted
    assert {line["seeds"] for line in lines if line["size"] == SIZE and line["method"] == "stapo" and line["se"]} == {
        "0;1"
    }
    printed = re.findall(r"\d+\.\d\d(?!\d)", "".join(
        c.split("<br>")[0] for s in t.sections for row in write.main_grid(t, s).rows
        if not row[0].endswith("ours minus paper") for c in row[1:]
    ))  # fmt: skip
    assert printed == wanted
    latex = " ".join(line for line in write.to_latex(t).splitlines() if line.endswith(r"\\"))
    cells = " ".join(c for g in write.all_grids(t) for row in g.rows for c in row)
    assert sorted(re.findall(r"\d+\.\d+", latex)) == sorted(re.findall(r"\d+\.\d+", cells))


def test_latex_keeps_marks_and_escapes_the_rest():
    assert write.latex(r"**-50.00** (a_b & 5 % #1 $x$ ~^\|{}†)<br><sub>1 to 2</sub>") == [
        r"\textbf{$-$50.00} (a\_b \& 5 \% \#1 \$x\$ \textasciitilde{}\textasciicircum{}$|$\{\}$\dagger$)",
        r"{\tiny 1 to 2}",
    ]
    assert write.latex(f"*{text.escape('**a* <b> <br> ')}*") == [r"\emph{**a* $<$b$>$ $<$br$>$ }"]


def test_bytes_depend_on_content_alone(tmp_path):
    for name in ("a", "b"):
        synthetic.miniature(tmp_path / name)
    for path in (tmp_path / "b").rglob("*.json"):  # another run of the same command draws another run id
        path.write_text(path.read_text().replace('"run_id": "synthetic"', '"run_id": "anew"'))
    first, second = table(tmp_path / "a"), table(tmp_path / "b")
    for form in (write.to_markdown, write.to_csv, write.to_json, write.to_latex):
        assert form(first) == form(second)


def test_a_hostile_name_stays_text(tmp_path):
    name = "<script>alert(1)</script> [l](javascript:1) |*"
    cell(tmp_path, name, ["10"], folder="hostile", judge_note=name)
    shown = write.to_markdown(table(tmp_path))
    assert "<script" not in shown
    row = next(line for line in shown.splitlines() if line.startswith("| &lt;script"))
    assert len(re.split(r"(?<!\\)\|", row)) == 3 + 3  # the name's bars do not end a cell
    assert "[l](" not in row


def cli(*arguments: object) -> int:
    with pytest.raises(SystemExit) as e:
        main(list(map(str, arguments)))
    return int(e.value.code or 0)


def test_command_writes_checks_and_notices_a_change(tmp_path, capsys):
    records, out = tmp_path / "records", tmp_path / "out"
    small(records)
    arguments = ("tables", "--records", records, "--out", out)
    assert cli(*arguments) == 0
    assert cli(*arguments, "--check") == 0
    file = out / "toys.md"
    right = file.read_text()
    file.write_text(right.replace("50.00", "99.00"))
    assert cli(*arguments, "--check") == 1
    said = capsys.readouterr().err
    assert str(file) in said
    assert "-| STAPO | **99.00" in said
    assert "99.00" in file.read_text()  # a check writes nothing
    assert cli(*arguments) == 0
    assert file.read_text() == right


def test_page_without_its_markers_is_refused(tmp_path):
    page = tmp_path / "README.md"
    for found in ("no marker\n", "<!-- /generated:table --><!-- generated:table -->"):
        page.write_text(found)
        with pytest.raises(BadInput, match=r"README\.md"):
            generated.renew({}, page, "table", "new")


@pytest.mark.parametrize("command", ["tables", "figures"])
def test_folders_without_a_record_are_refused(tmp_path: Path, capsys, command: str) -> None:
    with pytest.raises(SystemExit) as e:
        main([command, "--records", str(tmp_path), "--out", str(tmp_path / "out")])
    assert (e.value.code, (tmp_path / "out").exists()) == (2, False)
    assert str(tmp_path) in capsys.readouterr().err


def test_figures_that_compare_scores_need_some(tmp_path: Path, capsys) -> None:
    trainings = paper.checkout() / "results" / "records" / "real" / "train"
    with pytest.raises(SystemExit) as e:
        main(["figures", "--records", str(trainings), "--only", "forest", "--out", str(tmp_path / "out")])
    assert e.value.code == 2
    assert "nothing is drawn of forest" in capsys.readouterr().err
