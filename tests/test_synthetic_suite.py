"""What one verdict changes in the table; time and memory of tables, figures and report at full size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic_records as synthetic
import synthetic_suite

from stapo_repro import labels, paper, tables
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_repro.tables import render
from stapo_results.schema import SETTINGS, CellRecord
from stapo_results.store import read_json, write_json


def build(root: Path) -> dict:
    return json.loads(render.to_json(tables.build(load_cells([root]), paper.load())))


def fields(value: object, path: tuple = ()) -> Iterator[tuple[tuple, object]]:
    """Every leaf of a JSON value with its path."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from fields(v, (*path, k))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from fields(v, (*path, i))
    else:
        yield path, value


def by_pair(table: dict) -> dict[tuple, dict]:
    """The differences of the miniature."""
    differences = table["sections"][0]["differences"]
    return {(d["method"], d["against"], d["benchmark"], d["setting"]): d for d in differences}


def holms(table: dict) -> dict[tuple, float]:
    """Holm's p-values from those of each family, by its definition: the largest of p times the number of those not
    below it, over all p up to one's own, and at most 1."""
    found = by_pair(table)
    adjusted = {}
    for key, d in found.items():
        family = [x["p"] for x in found.values() if x["family"] == d["family"]]
        adjusted[key] = round(min(1.0, max(p * sum(q >= p for q in family) for p in family if p <= d["p"])), 8)
    return adjusted


def test_one_verdict_changes_exactly_the_cells_that_it_should(tmp_path):
    """STAPO, one problem of mini-add-hard, T=0.7."""
    for rank, method in enumerate((labels.BASE, *labels.METHODS)):
        for b, benchmark in enumerate(labels.MINI_BENCHMARKS):
            for setting in SETTINGS:
                right = [min(8, (0, 2, 2, 3, 4)[rank] + ((i * i + rank * i * 3 + b) % 7) % 5) for i in range(12)]
                synthetic.cell(tmp_path, method, benchmark, setting, ["1" * r + "0" * (8 - r) for r in right])
    before = build(tmp_path)
    wanted = "stapo/mini/s0/step40/mini-add-hard/t0.7/e0"
    path = next(c.file for c in load_cells([tmp_path]) if c.record.cell.id == wanted)
    record = read_json(path, CellRecord)
    letters = record.problems[1].verdicts
    flipped = str.translate(letters[0], str.maketrans("01", "10")) + letters[1:]
    record.problems[1] = record.problems[1].model_copy(update={"verdicts": flipped})
    write_json(path, record)
    after = build(tmp_path)
    old, new = dict(fields(before)), dict(fields(after))
    assert new.keys() == old.keys()
    changed = [k for k, v in old.items() if new[k] != v]
    rows, differences = before["sections"][0]["rows"], before["sections"][0]["differences"]
    cells, compared, adjusted, rest = set(), set(), set(), []
    for k in changed:
        if k[:2] == ("sections", 0) and k[2] == "rows":
            cells.add((rows[k[3]]["method"], rows[k[3]]["source"], *k[5:7]))
        elif k[:2] == ("sections", 0) and k[2] == "differences":
            d = differences[k[3]]
            where = (d["method"], d["against"], d["benchmark"], d["setting"])
            (adjusted if k[4] == "p_holm" else compared).add(where)
        else:
            rest.append(k)
    assert cells == {("stapo", "ours", "mini-add-hard", "t0.7"), ("stapo", "ours", "avg", "t0.7")}
    assert compared == {
        ("stapo", against, b, "t0.7")
        for against in ("base", "grpo", "entropy20", "justrl") for b in ("mini-add-hard", "avg")
    }  # fmt: skip
    # Holm ranks a p-value among all of its family: each is what its family says, and those that changed follow from it
    assert adjusted == {k for k, v in holms(after).items() if v != holms(before)[k]}
    assert {k: d["p_holm"] for k, d in by_pair(after).items()} == holms(after)
    assert {k: d["p_holm"] for k, d in by_pair(before).items()} == holms(before)
    assert compared & adjusted
    assert after["families"] == {"miniature, single benchmarks": 7 * 4, "miniature, averages": 7 * 2}
    stamps = [k for k in rest if k[0] == "inputs_sha256" or (k[0] == "records" and k[2] == "sha256")]
    assert rest == stamps
    assert len(stamps) == 2


MEASURED = """
import os, re, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
start = time.monotonic()
from stapo_repro import cli
try:
    cli.main(sys.argv[1:])
finally:
    # getrusage would count the process that started this one
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
    print(time.monotonic() - start, peak)
"""


def measured(*arguments: str | Path) -> tuple[float, float]:
    """(seconds, peak in GiB) of a `stapo-repro` command on two cores, a process of its own that starts no other."""
    done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, kibibytes = map(float, done.stdout.splitlines()[-1].split())
    return seconds, kibibytes / 2**20


@pytest.mark.slow
def test_table_figures_and_report_in_a_minute_and_two_gibibytes(tmp_path):
    """215,616 samples, 53,904 of the base models and twelve trainings of 3,000 steps: every form, figure and part."""
    records, out = tmp_path / "records", tmp_path / "out"
    assert synthetic_suite.write(records, base=True) * 4 == synthetic_suite.SAMPLES * 5
    runs = load_training_runs([records])
    assert [len(r.steps) for r in runs] == [3001] * 12
    cost = [
        measured(command, "--records", records, "--out", out / target)
        for command, target in (("tables", "tables"), ("figures", "figures"), ("report", "report.html"))
    ]
    assert sum(seconds for seconds, _ in cost) < 60, cost
    assert max(gibibytes for _, gibibytes in cost) < 2, cost
    assert "not run" not in (out / "tables" / "main_table.md").read_text().split("## RL from")[1].split("\n- ")[0]
    drawn = {p.name for p in (out / "figures").iterdir()}
    assert {f"{s}_{f}.svg" for s in labels.PAPER_SIZES for f in ("training_curves", "forest", "lengths")} <= drawn
    page = (out / "report.html").read_text()
    assert all(f"{r.size}/{r.method}-s0" in page for r in runs)
