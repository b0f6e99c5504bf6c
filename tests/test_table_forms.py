"""Markdown, LaTeX and CSV are read back and hold the numbers of the JSON; hostile labels stay text."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro import paper, tables
from stapo_repro.read import load_cells
from stapo_repro.tables import render
from stapo_repro.tables.render import latex
from stapo_repro.tables.render.view import all_grids, main_grid

NUMBER = re.compile(r"[+-]?\d+\.\d+")
HOSTILE = "<script>alert(1)</script> a & b_c %$#{}~^\\ \"x\" 'y' `z` [l](javascript:1) |*é"
BENCHMARKS = {"aime24": 30, "aime25": 30, "amc23": 40, "math500": 500, "minerva": 272, "olympiadbench": 674}


def ones(problems: int, right: int, n: int = 4) -> list[str]:
    """`right` samples of all are right, from the first problem on."""
    flat = "1" * right + "0" * (problems * n - right)
    return [flat[i : i + n] for i in range(0, len(flat), n)]


def records(root: Path) -> Path:
    """Two of the paper's models, two seeds of one, missing samples, a miniature, and a method with a hostile name."""
    for b, rows in BENCHMARKS.items():
        for setting in ("t1.0", "t0.7"):
            synthetic.cell(root, "base", b, setting, ones(rows, rows), size="qwen3-1.7b")
            synthetic.cell(root, "stapo", b, setting, ones(rows, 2 * rows), size="qwen3-1.7b")
            synthetic.cell(root, "stapo", b, setting, ones(rows, 2 * rows + 9), size="qwen3-1.7b", seed=1)
        lacking = [*ones(rows - 1, rows), "1--0"]
        synthetic.cell(root, "grpo", b, "t1.0", lacking, size="qwen3-1.7b")
    synthetic.cell(root, HOSTILE, "mini-add", "t1.0", ["10", "01", "00"], folder="hostile", judge_note=HOSTILE)
    synthetic.cell(root, "base", "mini-add", "t1.0", ["10", "00", "00"])
    return root


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tables.Table:
    cells = load_cells([records(tmp_path_factory.mktemp("records"))])
    return tables.build(cells, paper.load())


@pytest.fixture(scope="module")
def data(table: tables.Table) -> dict:
    return json.loads(render.to_json(table))


def printed(text: str) -> list[str]:
    return [n.lstrip("+") for n in NUMBER.findall(text.replace("$-$", "-"))]


@pytest.mark.parametrize("form", [render.to_markdown, render.to_latex])
def test_form_prints_the_numbers_of_the_grids_by_row(table, form):
    grids = all_grids(table)
    # miniature and its comparison, the small model, three sizes and the comparison of the one that was run, gains
    assert [len(g.rows) for g in grids] == [6, 1, 5, 9 + 2, 3, 9, 9, 9]
    found = printed(form(table))
    at = 0
    for row in (r for g in grids for r in g.rows):
        expected = sorted(
            n for c in row.cells for n in printed(" ".join((*(p.text for p in c.pieces), *c.small)))
        )  # LaTeX writes the small print of a row after all its numbers
        while expected and sorted(found[at : at + len(expected)]) != expected:
            at += 1  # numbers of titles and notes
            assert at < len(found), row
        at += len(expected)


def test_grids_and_csv_hold_the_numbers_of_the_json(table, data):
    def rounded(value: float | None) -> str:
        return "" if value is None else str(Decimal(str(value)).quantize(Decimal("0.01"), ROUND_HALF_EVEN))

    lines = csv.DictReader(io.StringIO(render.to_csv(table)))
    for section, found in zip(data["sections"], map(main_grid, table.sections), strict=True):
        rows = [r for r in found.rows if not r.follows]
        for row, shown in zip(section["rows"], rows, strict=True):
            for (benchmark, by_setting), cell in zip(row["values"].items(), shown.cells, strict=True):
                assert list(cell.keys) == [rounded(v["mean"]) for v in by_setting.values()]
                for (setting, v), line in zip(by_setting.items(), lines, strict=False):
                    key = (section["id"], row["method"], row["source"], benchmark, setting)
                    assert tuple(line[k] for k in ("section", "method", "source", "benchmark", "setting")) == key
                    for column in ("se", "low", "high", "se_problems", "se_seeds", "se_sampling"):
                        assert line[column] == ("" if v[column] is None else str(v[column]))
                    assert line["percent"] == ("" if v["mean"] is None else str(v["mean"]))
    assert next(lines, None) is None


def test_every_form_says_first_that_records_are_made_up(table):
    assert render.to_markdown(table).startswith("# Main table\n\nSYNTHETIC RECORDS")
    assert render.to_latex(table).startswith("% SYNTHETIC RECORDS")
    assert json.loads(render.to_json(table))["synthetic"]
    real = replace(table, synthetic=False)
    assert "SYNTHETIC" not in render.to_markdown(real).split("\n## ")[0]


def test_hostile_names_stay_text_in_markdown(table):
    text = render.to_markdown(table)
    assert "<script" not in text
    row = next(line for line in text.splitlines() if line.startswith("| &lt;script"))
    assert len(re.split(r"(?<!\\)\|", row)) == 3 + 3  # the name's bars do not end a cell
    assert "[l](" not in row


def test_latex_sets_special_characters_and_closes_what_it_opens(table):
    assert latex.escape(r"\{}") == r"\textbackslash{}\{\}"
    assert latex.escape("a_b & 5 % #1 $x$ ~^") == r"a\_b \& 5 \% \#1 \$x\$ \textasciitilde{}\textasciicircum{}"
    assert latex.escape("p <0.001, -0.5 to +1.2, x-2") == "p $<$0.001, $-$0.5 to $+$1.2, x-2"
    text = render.to_latex(table)
    bare = re.sub(r"\\[{}$&#%_]", "", text)  # without what is escaped
    assert bare.count("{") == bare.count("}")
    for part in bare.split(r"\begin{tabular}")[1:]:
        columns = len(part.removeprefix("{@{}").partition("@")[0])
        rows = [line for line in part.partition(r"\bottomrule")[0].splitlines() if line.endswith(r"\\")]
        assert {row.count("&") + 1 for row in rows} == {columns}
    known = "begin end centering caption label scriptsize setlength tabcolsep toprule midrule bottomrule par linewidth "
    known += "tiny raggedright textbf emph dagger resizebox ifdim width else fi textbackslash textasciitilde "
    known += "textasciicircum"
    assert set(re.findall(r"\\([A-Za-z]+)", text)) <= {*known.split()}, "no text of a record became a command"
