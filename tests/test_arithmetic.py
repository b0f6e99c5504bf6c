"""The miniature with other last digits: noise on the base model, the variables on record, the page's table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import synthetic_records as synthetic

from stapo_repro.pages import arithmetic
from stapo_results import provenance
from stapo_results.errors import RecordError
from stapo_results.schema import Run
from stapo_results.store import read_json, write_json

PLAIN = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}


def run_of(root: Path, right: int, seeds: tuple[int, ...] = (0,), **machine: object) -> None:
    """Of GRPO and STAPO: `right` of 8 at T 1.0, all at 0.7; of GRPO one fewer; of the base model 4, whatever the
    setting. On mini-add-hard 2 fewer of each."""
    for seed in seeds:
        for method, count in (("base", 4), ("grpo", right - 1), ("stapo", right)):
            name = f"{method}-s{seed}"
            for setting, k in (("t1.0", count), ("t0.7", 4 if method == "base" else 8)):
                for benchmark, fewer in (("mini-add", 0), ("mini-add-hard", 2)):
                    verdicts = ["1" * (k - fewer) + "0" * (8 - k + fewer)] * 4
                    step = "base" if method == "base" else 30
                    of = 0 if method == "base" else seed
                    synthetic.cell(root / "eval", method, benchmark, setting, verdicts, seed=of, step=step, folder=name)
            if method != "base":
                folder = synthetic.training_run(root / "train", method, seed, 30)
                record = read_json(folder / "run.json", Run)
                write_json(folder / "run.json", record.model_copy(update={"hardware": {"cpu": "x"} | machine}))


def test_the_committed_seeds_stand_above_each_imitation(tmp_path):
    run_of(tmp_path / "miniature", 7)
    run_of(tmp_path / "arithmetic" / "plain", 6, arithmetic=PLAIN)
    rows = [r.replace("<br><sub>", " [").replace("</sub>", "]") for r in arithmetic.page_block(tmp_path).splitlines()]
    committed, plain = "the committed runs", "`ATEN_CPU_CAPABILITY=default`, `MKL_CBWR=COMPATIBLE`"
    # (4 + 2) / 16; (6 + 4) / 16 and (7 + 5) / 16 at T 1.0, in the imitation one sample of each 8 fewer; (8 + 6) / 16
    base = "37.50 [37.5 to 37.5] |  | 37.50 [37.5 to 37.5] |  |"
    assert f"| {committed} |  | Base model | {base}" in rows
    assert f"| {plain} |  | Base model | {base}" in rows
    for name, method, mean, less in ((committed, "GRPO", 62.5, 25.0), (committed, "STAPO", 75.0, 37.5),
                                     (plain, "GRPO", 50.0, 12.5), (plain, "STAPO", 62.5, 25.0)):  # fmt: skip
        (row,) = (r for r in rows if r.startswith(f"| {name} | 0 | {method} |"))
        assert f"| {mean:.2f} [" in row
        assert f"| +{less:.2f} [{less:.1f} to {less:.1f}] | 87.50 [" in row
        assert row.endswith("| +50.00 [50.0 to 50.0] |")
    assert f"| {plain} | 0 | JustRL | not run | not run | not run | not run |" in rows
    assert arithmetic.page_block(tmp_path / "miniature") == "Not run."


def cells_of(root: Path, name: str, method: str) -> list[str]:
    (row,) = (r for r in arithmetic.page_block(root).splitlines() if r.startswith(f"| {name}") and f"| {method} |" in r)
    return [c.strip().partition("<br>")[0] for c in row.strip("|").split("|")[1:]]


def test_what_is_missing_is_incomplete_and_what_is_not_there_not_run(tmp_path):
    run_of(tmp_path / "miniature", 7, seeds=(0, 1, 2))
    folder = tmp_path / "arithmetic" / "plain"
    run_of(folder, 6, seeds=(0, 1), arithmetic=PLAIN)
    shutil.rmtree(folder / "eval" / "grpo-s1")
    assert cells_of(tmp_path, "`ATEN", "GRPO") == ["0, 1", "GRPO", *["incomplete"] * 4]
    assert cells_of(tmp_path, "`ATEN", "20-Entropy") == ["0, 1", "20-Entropy", *["not run"] * 4]
    assert cells_of(tmp_path, "`ATEN", "STAPO") == ["0, 1", "STAPO", "62.50", "+25.00", "87.50", "+50.00"]
    assert cells_of(tmp_path, "the committed", "STAPO")[:3] == ["0, 1", "STAPO", "75.00"]
    # one sample of STAPO at 0.7 that the engine failed on; one benchmark of the base model at 1.0
    step = {"size": "mini", "seed": 1, "step": 30, "folder": "stapo-s1"}
    synthetic.cell(folder / "eval", "stapo", "mini-add", "t0.7", ["1" * 7 + "-", *["1" * 8] * 3], **step)
    for file in (folder / "eval").glob("base-s*/cells/*mini-add-hard*t1.0*"):
        file.unlink()
    assert cells_of(tmp_path, "`ATEN", "STAPO") == ["0, 1", "STAPO", "62.50", "incomplete", "incomplete", "incomplete"]


def test_a_run_that_differs_in_nothing_or_in_two_ways_is_refused(tmp_path):
    folder = tmp_path / "arithmetic" / "a"
    run_of(folder, 6)
    with pytest.raises(RecordError, match="one way"):
        arithmetic.page_block(tmp_path)
    base = read_json(folder / "train" / "stapo-s0" / "run.json", Run).model_copy(update={"kind": "base"})
    write_json(folder / "base" / "run.json", base.model_copy(update={"config": {"noise": 1e-6}}))
    run_of(tmp_path / "miniature", 7)
    assert "| noise of 1e-06 on every weight of the base model |" in arithmetic.page_block(tmp_path)
    run_of(folder, 6, seeds=(1,), arithmetic=PLAIN)
    with pytest.raises(RecordError, match="one way"):
        arithmetic.page_block(tmp_path)


def test_variables_that_choose_instructions_are_on_record(monkeypatch):
    for name in provenance.ARITHMETIC:
        monkeypatch.delenv(name, raising=False)
    assert "arithmetic" not in provenance.hardware()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert provenance.hardware()["arithmetic"] == {"MKL_CBWR": "COMPATIBLE"}
