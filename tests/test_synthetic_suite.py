"""What one verdict changes in the table; time and memory of tables, figures and report at full size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic

from stapo_repro import labels, paper, tables
from stapo_repro.records.reading import load_cells, load_training_runs
from stapo_repro.tables import render
from stapo_results.benchmarks import registry
from stapo_results.schema import SETTINGS, CellRecord
from stapo_results.seeds import derive_seed
from stapo_results.store import read_json, write_json


def build(root: Path) -> dict:
    return json.loads(render.to_json(tables.build(load_cells([root]), paper.load())))


def test_one_verdict_changes_exactly_the_cells_that_it_should(tmp_path):
    """STAPO, one problem of mini-add-hard, T=0.7. Holm's p-values may change in all of their family."""
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


SAMPLES = 215_616
ABILITY = {"qwen3-1.7b": -1.0, "qwen3-8b": 0.5, "qwen3-14b": 1.0}
GAIN = {labels.BASE: -0.8, "grpo": 0.0, "entropy20": 0.1, "justrl": 0.0, "stapo": 0.4}
EASE = {"aime24": -1.0, "aime25": -1.4, "amc23": 0.8, "math500": 1.9, "minerva": -0.1, "olympiadbench": 0.2}


def generator(*parts: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive_seed(*parts)))


def verdicts(size: str, method: str, benchmark: str, setting: str, seed: int) -> list[str]:
    """One string of N letters a problem."""
    spec = registry()[benchmark]
    difficulty = generator("difficulty", benchmark).normal(0, 1.6, spec.rows)
    run = generator("run", size, method, seed).normal(0, 0 if method == labels.BASE else 0.08)
    logit = ABILITY[size] + GAIN[method] + EASE[benchmark] + run + 0.2 * (setting == "t0.7") - difficulty
    draws = generator("draw", size, method, benchmark, setting, seed).random((spec.rows, spec.samples))
    right = draws < 1 / (1 + np.exp(-logit[:, None]))
    return ["".join("01"[int(x)] for x in row) for row in right]


def write_suite(out: Path) -> int:
    """Made-up records of 15 models x 2 settings x 6 benchmarks and of their trainings; returns how many samples."""
    samples = 0
    for size in ABILITY:
        for method in (labels.BASE, *labels.METHODS):
            for benchmark in labels.PAPER_BENCHMARKS:
                for setting in SETTINGS:
                    letters = verdicts(size, method, benchmark, setting, 0)
                    samples += sum(map(len, letters))
                    step = "base" if method == labels.BASE else 3000
                    synthetic.cell(out / "eval" / size, method, benchmark, setting, letters, size=size, step=step)
            if method != labels.BASE:
                synthetic.training_run(out / "train" / size, method, 0, 3000, size)
    return samples


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
    assert write_suite(records) * 4 == SAMPLES * 5
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
