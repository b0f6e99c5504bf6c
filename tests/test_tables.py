"""The table from records: hand-worked values, loud gaps, best marks, provenance of every value, bytes, README block."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_records as synthetic
from hypothesis import given
from hypothesis import strategies as st

from stapo_repro import paper, tables
from stapo_repro.records.reading import load_cells
from stapo_repro.tables import render
from stapo_results.errors import BadInput, RecordError
from stapo_results.generated import replace_block
from stapo_results.schema import CellRecord
from stapo_results.store import read_json


def table(*roots: Path) -> tables.Table:
    return tables.build(load_cells(roots), paper.load())


def section(t: tables.Table, name: str = "miniature") -> tables.Section:
    return next(s for s in t.sections if s.id == name)


def value(t: tables.Table, method: str, benchmark: str, setting: str = "t1.0", part: str = "miniature") -> tables.Value:
    row = next(r for r in section(t, part).rows if r.method == method and r.source == "ours")
    return row.values[benchmark][setting]


def small(root: Path) -> Path:
    """Two models, two benchmarks of four problems and two samples; worked by hand below."""
    synthetic.cell(root, "base", "mini-add", "t1.0", ["10", "00", "00", "10"])
    synthetic.cell(root, "base", "mini-add-hard", "t1.0", ["00", "00", "00", "10"])
    synthetic.cell(root, "stapo", "mini-add", "t1.0", ["11", "10", "00", "10"])
    synthetic.cell(root, "stapo", "mini-add-hard", "t1.0", ["00", "00", "00", "11"])
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


def test_difference_to_base_by_hand(tmp_path):
    # mini-add: stapo 1 .5 0 .5 minus base .5 0 0 .5 = .5 .5 0 0: mean .25, SE sqrt(.25 / 12) = .144338
    # t(.975, 3) = 3.1824463: half width .459346; two non-zero differences: p = 2 / 4
    differences = section(table(small(tmp_path))).differences
    found = {(d.method, d.benchmark): d for d in differences if (d.against, d.setting) == ("base", "t1.0")}
    d = found["stapo", "mini-add"]
    assert (d.points, d.p_sign_flip, d.problems) == (25.0, 0.5, 4)
    assert d.low == pytest.approx(25 - 45.9346, abs=1e-3)
    assert found["grpo", "mini-add"].status == "not run"


def test_both_settings_stand_in_one_cell(tmp_path):
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10", "00"])
    synthetic.cell(tmp_path, "base", "mini-add", "t0.7", ["11", "10"])
    text = render.to_markdown(table(tmp_path))
    assert "| Base model | 25.00 (75.00)<br>" in text


def test_missing_is_loud_and_never_zero(tmp_path):
    t = table(small(tmp_path))
    assert value(t, "grpo", "mini-add").status == "not run"
    assert value(t, "grpo", "mini-add").mean is None
    assert value(t, "stapo", "mini-add", "t0.7").status == "not run"
    text = render.to_markdown(t)
    assert "| GRPO | not run | not run | not run |" in text
    assert "50.00** (not run)" in text


def test_missing_samples_are_named_and_never_best(tmp_path):
    small(tmp_path)
    synthetic.cell(tmp_path, "grpo", "mini-add", "t1.0", ["11", "1-", "11", "11"])
    t = table(tmp_path)
    v = value(t, "grpo", "mini-add")
    assert (v.shown, v.missing, v.fewest_samples, v.best) == ("100.00", 1, 1, False)
    assert value(t, "stapo", "mini-add").best
    text = render.to_markdown(t)
    assert "100.00 (**1/2 samples**)" in text
    assert "MISSING SAMPLES: GRPO on mini-add at t1.0 lacks 1 of 8 samples" in text


def test_problem_without_any_sample_has_no_value(tmp_path):
    synthetic.cell(tmp_path, "grpo", "mini-add", "t1.0", ["11", "--"])
    t = table(tmp_path)
    assert value(t, "grpo", "mini-add").mean is None
    assert value(t, "grpo", "mini-add").status == "incomplete"
    assert "incomplete" in render.to_markdown(t)


def test_part_of_a_benchmark_is_named(tmp_path):
    synthetic.cell(tmp_path, "base", "aime24", "t1.0", ["00", "10"], rows=30)
    t = table(tmp_path)
    assert "25.00 (**2/30 problems**)" in render.to_markdown(t)
    assert value(t, "base", "avg", part="miniature-real").shown == "1 of 6 run"
    assert "2 of 30 problems x 2 samples" in render.to_markdown(t)


def test_tiny_model_never_enters_the_papers_sections(tmp_path):
    synthetic.cell(tmp_path, "stapo", "aime24", "t1.0", ["11"] * 30, rows=30)
    t = table(tmp_path)
    assert value(t, "stapo", "aime24", part="miniature-real").shown == "100.00"
    for size in ("qwen3-1.7b", "qwen3-8b", "qwen3-14b"):
        assert value(t, "stapo", "aime24", part=size).status == "not run"
        assert not section(t, size).miniature


def test_best_needs_two_and_ties_share_it(tmp_path):
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10", "10"])
    assert not value(table(tmp_path), "base", "mini-add").best
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "00"])
    t = table(tmp_path)
    assert value(t, "base", "mini-add").best
    assert value(t, "stapo", "mini-add").best


def test_ours_stands_beside_the_papers_values(tmp_path):
    for b, rows in (("aime24", 30), ("aime25", 30), ("amc23", 40), ("math500", 50), ("minerva", 27),
                    ("olympiadbench", 67)):  # fmt: skip
        synthetic.cell(tmp_path, "stapo", b, "t1.0", ["1000"] * rows, size="qwen3-1.7b")
    text = render.to_markdown(table(tmp_path))
    assert "| *STAPO, paper* | **18.44** (**19.27**) |" in text
    assert "| STAPO | 25.00 (not run)<br>" in text
    assert "| *JustRL, paper* | 9.17 (15.73) | 6.67 (9.28) |" in text


def test_several_seeds_are_pooled_and_said(tmp_path):
    # seed 0: 1 0; seed 1: .5 .5; pooled problem means .75 .25, not .5 .5 of twice as many problems
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "00"], seed=0)
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["10", "10"], seed=1)
    t = table(tmp_path)
    v = value(t, "stapo", "mini-add")
    assert (v.problems, v.samples, v.seeds, v.se) == (2, 4, {"0": 50.0, "1": 50.0}, 25.0)
    assert any("STAPO: seeds 0, 1" in note for note in section(t).footnotes)


def test_last_checkpoint_counts(tmp_path):
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "11"], step=20)
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["10", "00"], step=40)
    t = table(tmp_path)
    assert value(t, "stapo", "mini-add").shown == "25.00"
    assert "STAPO step 40" in " ".join(section(t).footnotes)
    assert "1 records of earlier checkpoints" in " ".join(section(t).footnotes)


def test_footnotes_say_how_it_was_scored(tmp_path):
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10"], variant="31 rows, registered 30", text_variants=15)
    notes = " ".join(section(table(tmp_path)).footnotes)
    assert "Scored by the rule alone." in notes
    assert "The judge was a stand-in" in notes
    assert "mini-add is a variant: 31 rows, registered 30." in notes
    assert "15 problems with another text" in notes
    assert "SYNTHETIC" in notes


def test_unlike_scoring_is_loud(tmp_path):
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10"])
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["10"], scored_by="rule+judge")
    assert "NOT SCORED ALIKE: rule: Base model; rule+judge: STAPO." in section(table(tmp_path)).footnotes


def test_every_value_traces_to_its_records(tmp_path):
    synthetic.miniature(tmp_path)
    data = json.loads(render.to_json(table(tmp_path)))
    listed = {r["path"]: r["cell"] for r in data["records"]}
    for row in data["sections"][0]["rows"]:
        for benchmark, by_setting in row["values"].items():
            for setting, v in by_setting.items():
                benchmarks = ["mini-add", "mini-add-hard"] if benchmark == "avg" else [benchmark]
                step = "base" if row["method"] == "base" else "step40"
                cells = [f"{row['method']}/mini/s0/{step}/{b}/{setting}/e0" for b in benchmarks]
                assert sorted(listed[p] for p in v["records"]) == sorted(cells)
                scores = []
                for path in v["records"]:
                    record = read_json(tmp_path / path, CellRecord)
                    letters = "".join(p.verdicts for p in record.problems)
                    scores.append(100 * letters.count("1") / len(letters))
                assert v["mean"] == pytest.approx(sum(scores) / len(scores))


def test_one_verdict_changes_its_cell_its_average_and_nothing_else(tmp_path):
    synthetic.miniature(tmp_path)
    before = table(tmp_path)
    synthetic.cell(tmp_path, "justrl", "mini-add", "t0.7",
                   ["0" * 8] + ["1" * min(8, (i * 5) % 9 + 5) + "0" * (8 - min(8, (i * 5) % 9 + 5))
                                for i in range(1, 64)])  # fmt: skip
    after = table(tmp_path)
    changed = [
        (x.method, b, s)
        for x, y in zip(section(before).rows, section(after).rows, strict=True)
        for b in x.values
        for s in x.values[b]
        if x.values[b][s].mean != y.values[b][s].mean
    ]
    assert changed == [("justrl", "mini-add", "t0.7"), ("justrl", "avg", "t0.7")]
    assert before.inputs_sha256 != after.inputs_sha256


def test_bytes_depend_on_content_alone(tmp_path):
    for name in ("a", "b"):
        synthetic.miniature(tmp_path / name)
    for path in (tmp_path / "b").rglob("*.json"):  # another run of the same command draws another run id
        path.write_text(path.read_text().replace('"run_id": "synthetic"', '"run_id": "anew"'))
    first, second = table(tmp_path / "a"), table(tmp_path / "b")
    for form in (render.to_markdown, render.to_csv, render.to_json, render.to_latex):
        assert form(first) == form(second)
        assert "\r" not in form(first)
        assert form(first).endswith("\n")


def test_same_cell_twice_counts_once_and_a_contradiction_is_refused(tmp_path):
    small(tmp_path / "a")
    small(tmp_path / "b")
    assert value(table(tmp_path / "a", tmp_path / "b"), "stapo", "mini-add").samples == 2
    synthetic.cell(tmp_path / "b", "stapo", "mini-add", "t1.0", ["11", "10", "00", "10"], code_commit="1" * 40)
    assert value(table(tmp_path / "a", tmp_path / "b"), "stapo", "mini-add").samples == 2  # other code, same verdicts
    other = synthetic.cell(tmp_path / "b", "stapo", "mini-add", "t1.0", ["11", "11", "11", "11"])
    with pytest.raises(RecordError, match="contradict") as e:
        table(tmp_path / "a", tmp_path / "b")
    assert str(other) in str(e.value)


def test_seeds_with_other_problems_are_refused(tmp_path):
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "00"], seed=0)
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11"], seed=1)
    with pytest.raises(RecordError, match="different problems"):
        table(tmp_path)


def test_comparison_over_other_problems_is_not_made(tmp_path):
    synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["11", "00"])
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "00", "11"])
    t = table(tmp_path)
    d = next(d for d in section(t).differences if (d.method, d.benchmark, d.setting) == ("stapo", "mini-add", "t1.0"))
    assert (d.status, d.points) == ("other problems", None)
    assert "other problems" in render.to_markdown(t)


def test_broken_record_is_named(tmp_path):
    path = synthetic.cell(tmp_path, "base", "mini-add", "t1.0", ["10"])
    path.write_text(path.read_text().replace('"n": 2', '"n": 3'))
    with pytest.raises(RecordError) as e:
        table(tmp_path)
    assert str(path) in str(e.value)


def test_formats_show_the_same_numbers(tmp_path):
    synthetic.miniature(tmp_path)
    t = table(tmp_path)
    rows = list(csv.DictReader(io.StringIO(render.to_csv(t))))
    text = render.to_markdown(t)
    for r in rows:
        if r["status"] in ("run", "paper"):
            assert tables.shown(float(r["percent"])) in text
    mine = next(r for r in rows if r["method"] == "stapo" and r["benchmark"] == "mini-add" and r["setting"] == "t1.0")
    assert float(mine["percent"]) == value(t, "stapo", "mini-add").mean
    # 3 sizes x (5 of ours + 4 of the paper's) x 7 columns x 2 settings + 5 x 3 x 2 of the miniature
    assert len(rows) == 3 * 9 * 7 * 2 + 5 * 3 * 2


@pytest.mark.parametrize(
    ("number", "text"),
    [(53.125, "53.12"), (53.135, "53.14"), (0.005, "0.00"), (0.015, "0.02"), (3.125, "3.12"), (100.0, "100.00"),
     (None, "n/a"), (66.66666667, "66.67")],
)  # fmt: skip
def test_rounding_is_half_to_even(number, text):
    assert tables.shown(number) == text


@given(st.integers(0, 960))
def test_printed_value_is_within_half_a_unit(k):
    assert abs(float(tables.shown(tables.percent(k / 960))) - 100 * k / 960) <= 0.005 + 1e-9


def test_papers_table_is_complete_and_right():
    p = paper.load()
    assert len(p.rows) == 24
    row = p.get("qwen3-14b", "stapo", "t1.0")
    assert row is not None
    assert (row.values["amc23"], row.values["avg"]) == ("89.63", "67.76")
    assert sum("avg" in r.best and r.method == "stapo" for r in p.rows) == 6


def test_papers_table_with_a_wrong_mark_is_refused(tmp_path):
    text = (paper.checkout() / "results/paper/main_table.json").read_text()
    wrong = tmp_path / "t.json"
    wrong.write_text(text.replace('"minerva": "33.73"', '"minerva": "13.73"', 1))
    with pytest.raises(RecordError, match=r"t\.json") as e:
        paper.load(wrong)
    assert "mark is not on the highest" in str(e.value)
    wrong.write_text(text.replace("7.60", "7.6", 1))
    with pytest.raises(RecordError):
        paper.load(wrong)
    with pytest.raises(BadInput, match="not there"):
        paper.load(tmp_path / "none.json")


def cli(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "stapo_repro.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_command_writes_checks_and_notices_a_change(tmp_path):
    records, out = tmp_path / "records", tmp_path / "out"
    small(records)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- generated:table -->\nold\n<!-- /generated:table -->\nafter\n")
    arguments = ("tables", "--records", records, "--out", out, "--readme", readme)
    assert cli(*arguments, cwd=tmp_path).returncode == 0
    assert readme.read_text().startswith("before\n<!-- generated:table -->\n### Miniature")
    assert readme.read_text().endswith("<!-- /generated:table -->\nafter\n")
    assert cli(*arguments, "--check", cwd=tmp_path).returncode == 0
    file = out / "main_table.md"
    text = file.read_text()
    file.write_text(text.replace("50.00", "99.00"))
    done = cli(*arguments, "--check", cwd=tmp_path)
    assert done.returncode == 1
    assert f"stale: {file}" in done.stderr
    assert "-| STAPO | **99.00" in done.stderr.replace("  -|", "-|")
    assert "99.00" in file.read_text()  # a check writes nothing
    assert cli(*arguments, cwd=tmp_path).returncode == 0
    assert file.read_text() == text


def test_missing_marker_is_an_error_and_nothing_is_written(tmp_path):
    records, out, readme = tmp_path / "records", tmp_path / "out", tmp_path / "README.md"
    small(records)
    readme.write_text("no marker here\n")
    done = cli("tables", "--records", records, "--out", out, "--readme", readme, cwd=tmp_path)
    assert done.returncode == 2
    assert "lacks the markers" in done.stderr
    assert not out.exists()


def test_marker_rules(tmp_path):
    file = tmp_path / "f"
    file.write_text("<!-- generated:a --><!-- /generated:a --><!-- generated:a -->")
    with pytest.raises(BadInput, match="lacks the markers"):
        replace_block(file, "a", "x")
    file.write_text("<!-- /generated:a --><!-- generated:a -->")
    with pytest.raises(BadInput, match="lacks the markers"):
        replace_block(file, "a", "x")


def test_folder_that_is_not_there(tmp_path):
    done = cli("tables", "--records", tmp_path / "none", "--out", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "no such records folder" in done.stderr


def test_tables_need_neither_torch_nor_matplotlib(tmp_path):
    small(tmp_path)
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'matplotlib', 'ray', 'verl', 'math_verify'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from stapo_repro.cli import main\n"
        f"main(['tables', '--records', {str(tmp_path)!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| STAPO | **50.00**" in (tmp_path / "out" / "main_table.md").read_text()
