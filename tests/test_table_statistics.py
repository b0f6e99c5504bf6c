"""Statistics across runs as the table shows them: comparisons, Holm's families, seeds, the paper's values, gains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro import labels, paper, tables, text
from stapo_repro.read import load_cells
from stapo_repro.tables import render
from stapo_results.schema import SETTINGS, CellRecord
from stapo_results.store import read_json, write_json

SIZE = "qwen3-1.7b"


def build(root: Path) -> tables.Table:
    return tables.build(load_cells([root]), paper.load())


def section(t: tables.Table, name: str = "miniature") -> tables.Section:
    return next(s for s in t.sections if s.id == name)


def difference(
    t: tables.Table, method: str, against: str, benchmark: str = "mini-add", part: str = "miniature"
) -> tables.Difference:
    key = (method, against, benchmark, "t1.0")
    return next(d for d in section(t, part).differences if (d.method, d.against, d.benchmark, d.setting) == key)


def value(t: tables.Table, method: str, benchmark: str, part: str = "miniature") -> tables.Value:
    row = next(r for r in section(t, part).rows if r.method == method and r.source == "ours")
    return row.values[benchmark]["t1.0"]


def cell(root: Path, method: str, verdicts: list[str], benchmark: str = "mini-add", **changed) -> None:
    synthetic.cell(root, method, benchmark, "t1.0", verdicts, **changed)


def tenths(*means: float) -> list[str]:
    return ["1" * round(10 * m) + "0" * round(10 - 10 * m) for m in means]


def three(root: Path) -> Path:
    """Six problems: the base model solves none, GRPO all, STAPO the first three."""
    cell(root, "base", ["00"] * 6)
    cell(root, "grpo", ["11"] * 6)
    cell(root, "stapo", ["11"] * 3 + ["00"] * 3)
    return root


def test_methods_are_compared_with_base_and_stapo_with_each_baseline(tmp_path):
    t = build(three(tmp_path))
    compared = list(dict.fromkeys((d.method, d.against) for d in section(t).differences))
    assert compared == [
        *((m, "base") for m in ("grpo", "entropy20", "justrl", "stapo")),
        *(("stapo", b) for b in ("grpo", "entropy20", "justrl")),
    ]
    # -1 on three of six problems: mean -.5, SE sqrt(1.5 / 30) = .2236068, t(.975, 5) = 2.5705818
    d = difference(t, "stapo", "grpo")
    assert (d.points, d.se) == (-50.0, 22.36067977)
    assert d.low == pytest.approx(-50 - 57.4797, abs=1e-3)
    assert difference(t, "stapo", "justrl").status == "not run"


def test_holm_by_hand(tmp_path):
    # exact p: six equal differences 2/64, three 2/8, three 2/8; Holm 3 x .03125, 2 x .25, then not below .5
    t = build(three(tmp_path))
    found = [difference(t, *pair) for pair in (("grpo", "base"), ("stapo", "base"), ("stapo", "grpo"))]
    assert [d.p for d in found] == [0.03125, 0.25, 0.25]
    assert [d.p_holm for d in found] == [0.09375, 0.5, 0.5]
    assert {d.family for d in found} == {"miniature, single benchmarks"}
    assert t.families == {"miniature, single benchmarks": 3}
    assert "(miniature, single benchmarks: 3 tests)" in render.to_markdown(t)


def test_the_papers_sizes_are_one_family_and_averages_another(tmp_path):
    for size in ("qwen3-1.7b", "qwen3-8b"):
        for b in ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench"):
            cell(tmp_path / size, "base", ["00", "10", "00"], b, size=size)
            cell(tmp_path / size, "stapo", ["11", "10", "10"], b, size=size)
    cell(tmp_path, "base", ["00"] * 2)
    cell(tmp_path, "stapo", ["11"] * 2)
    t = build(tmp_path)
    assert t.families == {
        "miniature, single benchmarks": 1,
        "the paper's three sizes, single benchmarks": 12,
        "the paper's three sizes, averages": 2,
    }
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
    t = build(by_hand(tmp_path))
    v = value(t, "stapo", "mini-add")
    assert (v.mean, v.se, v.se_problems, v.se_seeds) == (50.0, 20.0, 17.32050808, 10.0)
    assert v.seeds == {"0": 40.0, "1": 60.0}
    # within: .1 .9 -> .09 each x 10/9 ... seed 0: (.09 + .24 + .21) / 3 x 10/9 = .2, over 30 samples .00666667;
    # seed 1: (.21 + .24 + .09) the same; mean over two seeds: sqrt(2 x .00666667) / 2 = .0577350
    assert v.se_sampling == 5.77350269
    assert any("the interval covers the choice of problems and of seeds" in n for n in section(t).footnotes)
    few = "Two training seeds (STAPO) are few"
    assert any(n.startswith(few) for n in section(t).footnotes)
    cell(tmp_path, "stapo", tenths(0.3, 0.6, 0.9), seed=2)
    assert not any(n.startswith(few) for n in section(build(tmp_path)).footnotes)


def test_comparison_over_two_seeds_by_hand(tmp_path):
    d = difference(build(by_hand(tmp_path)), "stapo", "base")
    assert (d.points, d.se, d.seeds, d.test) == (50.0, 20.0, [0, 1], "t over problems and seeds")
    # t = 2.5 at 2.909 degrees of freedom: between 2 (.1296) and 3 (.0877); the sign flip of .2 .5 .8 has 2 of 8
    assert 0.0877 < d.p < 0.1296  # type: ignore[operator]
    assert d.p_sign_flip == 0.25


def test_seeds_pair_methods(tmp_path):
    """What a seed does to both methods drops out."""
    for seed, up in ((0, 0.0), (1, 0.3)):
        cell(tmp_path, "grpo", tenths(0.1 + up, 0.4 + up, 0.2 + up), seed=seed)
        cell(tmp_path, "stapo", tenths(0.3 + up, 0.6 + up, 0.4 + up), seed=seed)
    d = difference(build(tmp_path), "stapo", "grpo")
    assert (d.points, d.se, d.seeds) == (20.0, 0.0, [0, 1])


def test_average_over_other_seeds_is_not_formed(tmp_path):
    cell(tmp_path, "stapo", tenths(0.1, 0.2), seed=0)
    cell(tmp_path, "stapo", tenths(0.1, 0.2), "mini-add-hard", seed=1)
    v = value(build(tmp_path), "stapo", "avg")
    assert (v.status, v.shown, v.mean) == ("incomplete", "seeds differ", None)
    assert "**seeds differ**" in render.to_markdown(build(tmp_path))


def test_average_over_seeds_takes_a_seed_as_one_model(tmp_path):
    # seed means .4 .6 on one benchmark and .6 .4 on the other: no variance between seeds on average
    for b, (first, second) in {"mini-add": (0, 1), "mini-add-hard": (1, 0)}.items():
        cell(tmp_path, "stapo", tenths(0.1, 0.4, 0.7), b, seed=first)
        cell(tmp_path, "stapo", tenths(0.3, 0.6, 0.9), b, seed=second)
    v = value(build(tmp_path), "stapo", "avg")
    assert (v.mean, v.se_seeds, v.seeds) == (50.0, 0.0, {"0": 50.0, "1": 50.0})
    assert v.se == v.se_problems == 12.24744871  # sqrt(.03 + .03) / 2


def test_ours_beside_the_paper(tmp_path):
    # 6 of 30 solved: 20.00, SE sqrt(.16 / 29) = 7.43 points, interval 4.8 to 35.2; the paper prints 18.44
    cell(tmp_path, "stapo", ["1111"] * 6 + ["0000"] * 24, "aime24", size=SIZE)
    # all 30 half solved: 50.00 with no spread; the paper prints 7.60
    cell(tmp_path, "grpo", ["1100"] * 30, "aime24", size=SIZE)
    t = build(tmp_path)
    assert value(t, "stapo", "aime24", SIZE).paper == tables.AgainstPaper(1.56, True)
    assert value(t, "grpo", "aime24", SIZE).paper == tables.AgainstPaper(42.4, False)
    assert value(t, "stapo", "avg", SIZE).paper is None
    text = render.to_markdown(t)
    assert "| STAPO, ours minus paper | +1.56 (not run)<br><sub>within (n/a)</sub> |" in text
    assert "| GRPO, ours minus paper | +42.40 (not run)<br><sub>outside (n/a)</sub> |" in text


@pytest.mark.parametrize(
    ("verdicts", "changed"),
    [
        (["11-1"] + ["1100"] * 29, {}),
        (["1100"] * 30, {"variant": "other gold answers"}),
        (["1100"] * 31, {}),
    ],
)
def test_paper_is_not_judged_by_what_is_not_comparable(tmp_path, verdicts, changed):
    cell(tmp_path, "stapo", verdicts, "aime24", size=SIZE, **changed)
    found = value(build(tmp_path), "stapo", "aime24", SIZE).paper
    assert found is not None
    assert found.within is None
    assert "<sub>not judged" in render.to_markdown(build(tmp_path))


def test_miniature_is_never_held_against_the_paper(tmp_path):
    cell(tmp_path, "stapo", ["1111"] * 6 + ["0000"] * 24, "aime24")
    t = build(tmp_path)
    for part in ("miniature", "miniature-real"):
        for row in section(t, part).rows:
            assert all(v.paper is None for by in row.values.values() for v in by.values())
    assert "ours minus paper" not in render.to_markdown(t)


def gain(size: str, baseline: str, setting: str, benchmark: str = "avg") -> tables.Gain:
    key = (size, baseline, setting, benchmark)
    return next(
        g for g in tables.paper_gains(paper.load()) if (g.size, g.baseline, g.setting, g.benchmark) == key
    )  # fmt: skip


def test_gain_of_14b_over_justrl_is_within_noise():
    # 67.80 - 66.71; SE about .7 from sampling alone and 3.3 for unpaired problems; times 2.8016
    g = gain("qwen3-14b", "justrl", "t0.7")
    assert g.points == 1.09
    assert (round(g.se_sampling, 2), round(g.se_unpaired, 2)) == (0.71, 3.32)
    assert (round(g.mde_sampling, 2), round(g.mde_unpaired, 2)) == (1.99, 9.31)
    assert g.reading == "below both"


@pytest.mark.parametrize(
    ("number", "plain", "with_sign"),
    [
        (53.125, "53.12", "+53.12"), (53.135, "53.14", "+53.14"), (0.005, "0.00", "0.00"), (-0.005, "0.00", "0.00"),
        (-0.015, "-0.02", "-0.02"), (-0.0, "0.00", "0.00"), (99.995, "100.00", "+100.00"), (None, "n/a", "n/a"),
    ],
)  # fmt: skip
def test_rounding_at_the_edges(number, plain, with_sign):
    assert text.shown(number) == plain
    assert text.signed(number) == with_sign


def test_p_values_are_never_printed_as_zero():
    shown = {0.00001: "<0.001", 0.001: "0.001", 0.0125: "0.012", 1.0: "1.000", None: "n/a"}
    assert {p: text.p_shown(p) for p in shown} == shown


def test_one_verdict_changes_exactly_the_cells_that_it_should(tmp_path):
    """STAPO, one problem of mini-add-hard, T=0.7. Holm's p-values may change in all of their family."""
    for rank, method in enumerate((labels.BASE, *labels.METHODS)):
        for b, benchmark in enumerate(labels.MINI_BENCHMARKS):
            for setting in SETTINGS:
                right = [min(8, (0, 2, 2, 3, 4)[rank] + ((i * i + rank * i * 3 + b) % 7) % 5) for i in range(12)]
                synthetic.cell(tmp_path, method, benchmark, setting, ["1" * r + "0" * (8 - r) for r in right])
    before = json.loads(render.to_json(build(tmp_path)))
    wanted = "stapo/mini/s0/step40/mini-add-hard/t0.7/e0"
    path = next(c.file for c in load_cells([tmp_path]) if c.record.cell.id == wanted)
    record = read_json(path, CellRecord)
    letters = record.problems[1].verdicts
    flipped = str.translate(letters[0], str.maketrans("01", "10")) + letters[1:]
    record.problems[1] = record.problems[1].model_copy(update={"verdicts": flipped})
    write_json(path, record)
    after = json.loads(render.to_json(build(tmp_path)))

    def values(table: dict) -> dict[tuple, object]:
        rows = table["sections"][0]["rows"]
        return {(r["method"], b, s): v for r in rows for b, by in r["values"].items() for s, v in by.items()}

    def pairs(table: dict) -> dict[tuple, dict]:
        found = table["sections"][0]["differences"]
        return {(d["method"], d["against"], d["benchmark"], d["setting"]): d | {"p_holm": None} for d in found}

    changed = {key for key, v in values(before).items() if values(after)[key] != v}
    assert changed == {("stapo", b, "t0.7") for b in ("mini-add-hard", "avg")}
    compared = {key for key, d in pairs(before).items() if pairs(after)[key] != d}
    assert compared == {
        ("stapo", against, b, "t0.7")
        for against in ("base", "grpo", "entropy20", "justrl") for b in ("mini-add-hard", "avg")
    }  # fmt: skip
    assert after["families"] == {"miniature, single benchmarks": 7 * 4, "miniature, averages": 7 * 2}
    assert after["sections"][1:] == before["sections"][1:]
    assert sum(a != b for a, b in zip(after["records"], before["records"], strict=True)) == 1
