"""What a run of the driver took: its record from a ledger by hand, and the README's sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import synthetic_records as synthetic

from stapo_repro.collect import collect
from stapo_repro.driver import times
from stapo_repro.driver.stages import StageEvent
from stapo_repro.driver.times import RunTimes, StageTime
from stapo_results import store
from stapo_results.errors import RecordError
from stapo_results.provenance import new_run
from stapo_results.schema import Run

MACHINE = {"cpu": "Some CPU", "cores": 2, "memory_gib": 15.6, "gpus": []}


def event(
    stage: str, kind: Literal["start", "done", "failed", "interrupted"], seconds: float | None = None,
    peak: int | None = None, code: str = "c" * 40,
) -> StageEvent:  # fmt: skip
    return StageEvent(stage=stage, event=kind, command=["/a/machine/x"], code=code, seconds=seconds, peak_mib=peak,
                      at="2026-01-01T00:00:00+00:00")  # fmt: skip


EVENTS = [
    event("base", "start"), event("base", "done", 50.0, 900),
    # killed, then interrupted, then done: 30 + 300 s, and what the killed one took is not on record
    event("train/stapo-s0", "start"),
    event("train/stapo-s0", "start"), event("train/stapo-s0", "interrupted", 30.0, 3900),
    event("train/stapo-s0", "start"), event("train/stapo-s0", "done", 300.25, 3700, "d" * 40 + "+abc"),
    event("eval/base", "start"), event("eval/base", "done", 61.5, 1000),
    event("tables", "start"), event("tables", "failed", 2.0, 100),
]  # fmt: skip


def run(folder: Path) -> Path:
    """A run folder of the driver with one finished training."""
    path = synthetic.training_run(folder / "train", "stapo") / "run.json"
    store.write_json(path, store.read_json(path, Run).model_copy(update={"hardware": MACHINE}))
    config = {"experiment": "miniature", "quick": False, "data_dir": "/a/machine"}
    store.write_json(folder / "run.json", new_run("repro", config, seeds={}, deterministic=True))
    store.append(folder / "stages.jsonl", EVENTS)
    return folder


def test_a_ledger_by_hand(tmp_path: Path) -> None:
    collect(run(tmp_path / "run"), tmp_path / "out")
    found = store.read_json(tmp_path / "out" / "stages.json", RunTimes)
    assert (found.kind, found.quick, found.seconds, found.unfinished) == ("miniature", False, 441.75, ["tables"])
    assert found.hardware == [MACHINE]
    assert found.stages == [
        StageTime(name="base", seconds=50.0, peak_mib=900, attempts=1, code="c" * 40),
        StageTime(name="train/stapo-s0", seconds=330.25, peak_mib=3900, attempts=3, code="d" * 40 + "+abc"),
        StageTime(name="eval/base", seconds=61.5, peak_mib=1000, attempts=1, code="c" * 40),
    ]
    assert "machine" not in (tmp_path / "out" / "stages.json").read_text()


def test_a_stage_that_was_made_again_counts_as_it_was_made_last() -> None:
    made = [event("tables", "start"), event("tables", "done", 5.0, 100)]
    cut = [event("tables", "start"), event("tables", "interrupted", 2.0, 300)]
    # of a making that was given up, its command changed
    other = [e.model_copy(update={"command": ["y"]}) for e in cut]
    # or what it reads did
    read = [e.model_copy(update={"inputs": "i"}) for e in cut]
    for events, seconds, attempts in ((made * 3, 5.0, 1), (made + cut + made, 7.0, 2), (other + made, 5.0, 1),
                                      (read + made, 5.0, 1)):  # fmt: skip
        (stage,), unfinished = times.of_ledger(events)
        assert (stage.seconds, stage.attempts, unfinished) == (seconds, attempts, [])


def test_runs_that_are_collected_into_one_folder_are_all_counted(tmp_path: Path) -> None:
    out, second = tmp_path / "out", run(tmp_path / "second")
    collect(run(tmp_path / "run"), out)
    events = [e.model_copy(update={"stage": e.stage.replace("-s0", "-s1")}) for e in EVENTS if e.stage != "eval/base"]
    (second / "stages.jsonl").unlink()
    store.append(second / "stages.jsonl", [*events[:-1], event("tables", "done", 5.0, 100)])
    collect(second, out)
    found = store.read_json(out / "stages.json", RunTimes)
    # the base as the second took it, 50 s once; 330.25 + 61.5 of the first, 330.25 + 5 of the second
    assert [s.name for s in found.stages] == ["train/stapo-s0", "eval/base", "base", "train/stapo-s1", "tables"]
    assert (found.seconds, found.unfinished, found.hardware) == (777.0, [], [MACHINE])
    # the same run again, from another machine: nothing of the first is left
    collect(second, tmp_path / "again")
    other = MACHINE | {"cpu": "Another CPU"}
    path = next(second.glob("train/*/run.json"))
    store.write_json(path, store.read_json(path, Run).model_copy(update={"hardware": other}))
    collect(second, tmp_path / "again")
    assert store.read_json(tmp_path / "again" / "stages.json", RunTimes).hardware == [other]
    collect(second, out)
    assert store.read_json(out / "stages.json", RunTimes).hardware == [MACHINE, other]
    quick = store.read_json(second / "run.json", Run)
    store.write_json(second / "run.json", quick.model_copy(update={"config": quick.config | {"quick": True}}))
    with pytest.raises(RecordError, match="another kind of run"):
        collect(second, out)


def test_folders_without_a_driver_have_no_times(tmp_path: Path) -> None:
    (run(tmp_path / "run") / "run.json").unlink()
    collect(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out" / "stages.json").exists()


def test_the_readmes_sentences(tmp_path: Path) -> None:
    collect(run(tmp_path / "run"), tmp_path / "records" / "miniature")
    assert times.page_block(tmp_path / "records", "miniature", "miniature") == (
        "The committed miniature took 7 min 22 s on 2 cores of Some CPU with 15.6 GiB: 1 training, 1 evaluation, "
        "peak memory 3.8 GiB, code cccccccccccc, dddddddddddd with uncommitted changes. Attempts that did not end: 2; "
        "what a killed one took is not counted. NOT FINISHED: tables."
    )
    assert times.page_block(tmp_path / "none", "miniature", "miniature") == "The miniature: not run."


def test_the_committed_records_give_the_readmes_block() -> None:
    root = Path(__file__).resolve().parents[1]
    readme = (root / "README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- generated:times -->\n")[1].split("\n<!-- /generated:times -->")[0]
    assert block == times.page_block(root / "results" / "records", "miniature", "miniature")
