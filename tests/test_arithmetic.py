"""The miniature with other last digits: noise on the base model, the variables on record, the page's table."""

from __future__ import annotations

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
    """Of GRPO and STAPO on mini-add: `right` of 8 at T 1.0, all at 0.7; of GRPO one fewer."""
    for seed in seeds:
        for method, count in (("grpo", right - 1), ("stapo", right)):
            name = f"{method}-s{seed}"
            for setting, k in (("t1.0", count), ("t0.7", 8)):
                verdicts = ["1" * k + "0" * (8 - k)] * 4
                synthetic.cell(root / "eval", method, "mini-add", setting, verdicts, seed=seed, step=30, folder=name)
            folder = synthetic.training_run(root / "train", method, seed, 30)
            record = read_json(folder / "run.json", Run)
            write_json(folder / "run.json", record.model_copy(update={"hardware": {"cpu": "x"} | machine}))


def test_the_committed_seeds_stand_above_each_imitation(tmp_path):
    run_of(tmp_path / "miniature", 7, seeds=(0, 1))
    run_of(tmp_path / "arithmetic" / "plain", 6, arithmetic=PLAIN)
    rows = arithmetic.page_block(tmp_path).splitlines()[2:]
    # 6 of 8 and 7 of 8; in the imitation 5 and 6
    assert [r for r in rows if "GRPO" in r or "STAPO" in r] == [
        "| the committed runs | 0 | GRPO | 75.00 (100.00) | not run (not run) |",
        "| the committed runs | 0 | STAPO | 87.50 (100.00) | not run (not run) |",
        "| `ATEN_CPU_CAPABILITY=default`, `MKL_CBWR=COMPATIBLE` | 0 | GRPO | 62.50 (100.00) | not run (not run) |",
        "| `ATEN_CPU_CAPABILITY=default`, `MKL_CBWR=COMPATIBLE` | 0 | STAPO | 75.00 (100.00) | not run (not run) |",
    ]
    assert arithmetic.page_block(tmp_path / "miniature") == "Not run."


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
