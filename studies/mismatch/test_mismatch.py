"""The table of mismatches: what was not run, and what a log does not know."""

from __future__ import annotations

from pathlib import Path

import token_logs as logs
from test_mismatch import ROWS

from stapo_repro.read import TrainingRun
from studies.mismatch.page import came_out_alike, mismatches


def test_the_table_names_what_was_not_run_and_what_a_log_does_not_know(tmp_path: Path) -> None:
    logs.write(tmp_path / "a", ROWS)
    logs.write(tmp_path / "b", [logs.row()])
    runs = [TrainingRun("stapo", "mini", s, "", "done", [], folder=tmp_path / n) for s, n in enumerate("abc")]
    _, _, *lines = mismatches(runs)
    stapo, *others = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    assert stapo[:2] == ["STAPO, seed 0 (miniature)", "3"]
    assert stapo[3] == "66.7 % (50.0 to 100.0); by chance 75.0 %, at least 66.7 %"
    assert others[0][1].startswith("no sampler's probability")
    assert [o[1].strip(" |") for o in others[1:]] == ["no token log on record", "not run", "not run"]


def test_trainings_of_the_same_bytes_are_named(tmp_path: Path) -> None:
    made = [("tis", b"1"), ("icepop", b"1"), ("stapo", b"2"), ("justrl", b"2")]  # of JustRL nothing is asked
    for method, metrics in made:
        (tmp_path / method).mkdir()
        (tmp_path / method / "metrics.jsonl").write_bytes(metrics)
    runs = [TrainingRun(m, "mini", 0, "", "done", [], folder=tmp_path / m) for m, _ in made]
    (said,) = filter(None, came_out_alike(runs))
    assert ["TIS" in said, "IcePop" in said, "STAPO" in said] == [True, True, False]
