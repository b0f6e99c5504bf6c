"""The table from records: hand-worked values, loud gaps, best marks, provenance of every value, bytes, README block."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro import paper, tables
from stapo_repro.cli import main
from stapo_repro.read import load_cells
from stapo_repro.tables import render
from stapo_results import generated
from stapo_results.errors import BadInput, RecordError
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


def test_a_model_that_was_only_evaluated_has_no_rows_of_methods_never_run(tmp_path):
    synthetic.cell(tmp_path, "external", "math500", "t1.0", ["10", "00"], size="some-lm", step="base", rows=500)
    rows = next(s for s in table(tmp_path).sections if s.size == "some-lm").rows
    assert [(r.method, r.values["math500"]["t1.0"].shown) for r in rows] == [("external", "25.00")]


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
    synthetic.cell(tmp_path, "justrl", "mini-add", "t1.0", ["11", "11", "--", "11"])
    none = value(table(tmp_path), "justrl", "mini-add")  # a problem without any sample
    assert (none.mean, none.status) == (None, "incomplete")
    assert "100.00 (**1/2 samples**)" in text
    assert "MISSING SAMPLES: GRPO on mini-add at t1.0 lacks 1 of 8 samples" in text


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
    for said in (
        *("Scored by the rule alone.", "The judge was a stand-in", "15 problems with another text", "SYNTHETIC"),
        "mini-add is a variant: 31 rows, registered 30.",
    ):
        assert said in notes
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


def test_seeds_with_other_problems_are_refused(tmp_path):
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11", "00"], seed=0)
    synthetic.cell(tmp_path, "stapo", "mini-add", "t1.0", ["11"], seed=1)
    with pytest.raises(RecordError, match="different problems"):
        table(tmp_path)


def test_papers_table_with_a_wrong_print_is_refused(tmp_path):
    text = (paper.checkout() / "results/paper/main_table.json").read_text()
    wrong = tmp_path / "t.json"
    wrong.write_text(text.replace("7.60", "7.6", 1))
    with pytest.raises(RecordError, match=r"t\.json"):
        paper.load(wrong)


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
    file = out / "main_table.md"
    text = file.read_text()
    file.write_text(text.replace("50.00", "99.00"))
    assert cli(*arguments, "--check") == 1
    said = capsys.readouterr().err
    assert str(file) in said
    assert "-| STAPO | **99.00" in said
    assert "99.00" in file.read_text()  # a check writes nothing
    assert cli(*arguments) == 0
    assert file.read_text() == text


def test_page_without_its_markers_is_refused(tmp_path):
    page = tmp_path / "README.md"
    for text in ("no marker\n", "<!-- /generated:table --><!-- generated:table -->"):
        page.write_text(text)
        with pytest.raises(BadInput, match=r"README\.md"):
            generated.renew({}, page, "table", "new")


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
