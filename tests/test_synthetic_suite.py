"""Full-size made-up records: their number and marks, what one verdict changes, time and memory of the whole table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic_suite

from stapo_repro import labels, paper, tables
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_repro.tables import render
from stapo_results.schema import CellRecord
from stapo_results.store import read_json

SIZE = "qwen3-8b"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of the three sizes."""
    out = tmp_path_factory.mktemp("suite")
    assert synthetic_suite.write(out, sizes=(SIZE,), steps=3, base=True) * 12 == synthetic_suite.SAMPLES * 5
    return out


def build(root: Path) -> tables.Table:
    return tables.build(load_cells([root]), paper.load())


@pytest.fixture(scope="module")
def built(suite: Path) -> tables.Table:
    return build(suite)


def test_every_record_says_that_it_is_synthetic(suite, built):
    cells = load_cells([suite])
    assert len(cells) == 5 * 6 * 2
    assert {c.record.engine for c in cells} == {"synthetic"}
    section = next(s for s in built.sections if s.id == SIZE)
    assert any("SYNTHETIC RECORDS" in note for note in section.footnotes)
    assert (suite / "SYNTHETIC.md").read_text() == synthetic_suite.MARK
    runs = load_training_runs([suite])
    assert [(r.method, r.size, len(r.steps)) for r in runs] == [(m, SIZE, 4) for m in sorted(labels.METHODS)]


def test_records_are_the_same_each_time(built, tmp_path):
    synthetic_suite.write(tmp_path, sizes=(SIZE,), steps=0, base=True)
    again = load_cells([tmp_path])
    assert sorted(c.sha256 for c in again) == sorted(r["sha256"] for r in built.records)


@pytest.mark.parametrize("where", ["results/records/made-up", "results", "results/records/../../results"])
def test_nothing_is_written_to_results(tmp_path, where):
    """Tried on a folder of that form: a guard that lets it pass leaves its mark there."""
    (tmp_path / "results" / "paper").mkdir(parents=True)
    (tmp_path / "results" / "records").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match="synthetic records never stand there"):
        synthetic_suite.write(tmp_path / where, sizes=())
    assert sorted(tmp_path.rglob("*")) == before
    assert (paper.checkout() / "results" / "paper").is_dir()  # what the guard knows the folder by


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
    """The differences of the one size that was run."""
    (section,) = [s for s in table["sections"] if s["id"] == SIZE]
    return {(d["method"], d["against"], d["benchmark"], d["setting"]): d for d in section["differences"]}


def holms(table: dict) -> dict[tuple, float]:
    """Holm's p-values from those of each family, by its definition: the largest of p times the number of those not
    below it, over all p up to one's own, and at most 1."""
    found = by_pair(table)
    adjusted = {}
    for key, d in found.items():
        family = [x["p"] for x in found.values() if x["family"] == d["family"]]
        adjusted[key] = round(min(1.0, max(p * sum(q >= p for q in family) for p in family if p <= d["p"])), 8)
    return adjusted


def test_one_verdict_changes_exactly_the_cells_that_it_should(suite, built):
    """STAPO, one problem of Minerva, T=0.7."""
    before = json.loads(render.to_json(built))
    path = next(c.file for c in load_cells([suite]) if c.record.cell.id == f"stapo/{SIZE}/s0/step3000/minerva/t0.7/e0")
    text = path.read_bytes()
    record = read_json(path, CellRecord)
    flipped = str.translate(record.problems[7].verdicts[0], str.maketrans("01", "10")) + record.problems[7].verdicts[1:]
    problems = [*record.problems]
    problems[7] = problems[7].model_copy(update={"verdicts": flipped})
    try:
        path.write_text(record.model_copy(update={"problems": problems}).model_dump_json())
        after = json.loads(render.to_json(build(suite)))
    finally:
        path.write_bytes(text)
    old, new = dict(fields(before)), dict(fields(after))
    assert new.keys() == old.keys()
    changed = [k for k, v in old.items() if new[k] != v]
    section = next(i for i, s in enumerate(before["sections"]) if s["id"] == SIZE)
    rows, differences = before["sections"][section]["rows"], before["sections"][section]["differences"]
    cells, compared, adjusted, rest = set(), set(), set(), []
    for k in changed:
        if k[:2] == ("sections", section) and k[2] == "rows":
            cells.add((rows[k[3]]["method"], rows[k[3]]["source"], *k[5:7]))
        elif k[:2] == ("sections", section) and k[2] == "differences":
            d = differences[k[3]]
            where = (d["method"], d["against"], d["benchmark"], d["setting"])
            (adjusted if k[4] == "p_holm" else compared).add(where)
        else:
            rest.append(k)
    assert cells == {("stapo", "ours", "minerva", "t0.7"), ("stapo", "ours", "avg", "t0.7")}
    assert compared == {
        ("stapo", against, b, "t0.7")
        for against in ("base", "grpo", "entropy20", "justrl") for b in ("minerva", "avg")
    }  # fmt: skip
    # Holm ranks a p-value among all of its family: each is what its family says, and those that changed follow from it
    assert adjusted == {k for k, v in holms(after).items() if v != holms(before)[k]}
    assert {k: d["p_holm"] for k, d in by_pair(after).items()} == holms(after)
    assert {k: d["p_holm"] for k, d in by_pair(before).items()} == holms(before)
    assert compared & adjusted
    assert after["families"] == {
        f"the paper's three sizes, {f}": 7 * n for f, n in (("single benchmarks", 12), ("averages", 2))
    }
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
