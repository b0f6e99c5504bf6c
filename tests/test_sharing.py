"""Bundles: the same bytes each time, nothing of the machine, merged without overwriting, whole after any kill."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import synthetic_records as synthetic
from bundles import contents, members, run_folder

from stapo_repro.sharing.pack import pack
from stapo_repro.sharing.unpack import check, unpack
from stapo_results import store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Cell, Run, Sample

FILES = [
    "mini/eval/stapo-s0/cells/stapo_mini_s0_step40_toy_t0.7_e0.json",
    "mini/eval/stapo-s0/cells/stapo_mini_s0_step40_toy_t1.0_e0.json",
    "mini/eval/stapo-s0/run.json",
    "mini/eval/stapo-s0/samples.jsonl",
    "mini/eval/stapo-s0/verdicts.jsonl",
    "mini/train/stapo-s0/metrics.jsonl",
    "mini/train/stapo-s0/run.json",
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "runs" / "mini")


@pytest.fixture
def bundle(run: Path, tmp_path: Path) -> Path:
    pack([run], tmp_path / "a.zip")
    return tmp_path / "a.zip"


def test_what_is_packed(bundle: Path) -> None:
    there = members(bundle)
    assert list(there) == ["manifest.json", *FILES]
    assert [f["path"] for f in json.loads(there["manifest.json"])["files"]] == FILES


def test_unpacked_it_is_what_was_packed(run: Path, bundle: Path, tmp_path: Path) -> None:
    into = tmp_path / "shared"
    assert unpack(bundle, into)[1] == ["mini"]
    assert sorted(contents(into)) == FILES
    for name in ("samples.jsonl", "verdicts.jsonl"):
        same = "eval/stapo-s0/" + name
        assert (into / "mini" / same).read_bytes() == (run / same).read_bytes()
    # and packed again it is the same bundle
    pack([into / "mini"], tmp_path / "c.zip")
    assert (tmp_path / "c.zip").read_bytes() == bundle.read_bytes()


def test_nothing_of_the_machine_is_packed(run: Path, tmp_path: Path) -> None:
    folder = run / "eval" / "stapo-s0"
    cell = Cell(method="stapo", size="mini", train_seed=0, step=40, benchmark="toy", setting="t0.7")
    lines = list(store.read(folder / "samples.jsonl", Sample))
    broken = [s.model_copy(update={"error": f"no file {run}/models/x, nor /usr/lib/python3/x.py: stop"})
              if s.finish_reason == "error" else s for s in lines]  # fmt: skip
    assert sum(s.cell == cell.id and s.finish_reason == "error" for s in broken) == 1
    (folder / "samples.jsonl").write_text("".join(store.to_line(s) + "\n" for s in broken))
    pack([run], tmp_path / "a.zip")
    there = members(tmp_path / "a.zip")
    assert not [name for name, data in there.items() if str(tmp_path).encode() in data or b"/usr/lib" in data]
    assert b"no file RUN/models/x, nor (path): stop" in there[FILES[3]]


def test_what_cannot_be_packed(run: Path, bundle: Path, tmp_path: Path) -> None:
    for given, name in (([run], "a.zip"), ([run, run], "b.zip"), ([run], "b.tar"), ([], "b.zip")):
        with pytest.raises(BadInput):
            pack(given, tmp_path / name)
    cell = run / "eval" / "stapo-s0" / "cells" / Path(FILES[0]).name
    whole = cell.read_text()
    cell.write_text(whole.replace('"top_p": 0.9', '"top_p": 1.0'))
    with pytest.raises(RecordError) as e:
        pack([run], tmp_path / "b.zip")
    assert FILES[0] in e.value.what
    cell.write_text(whole)
    record = store.read_json(run / "train" / "stapo-s0" / "run.json", Run)
    store.write_json(run / "train" / "stapo-s0" / "run.json", record.model_copy(update={"status": "running"}))
    with pytest.raises(BadInput, match=r"train/stapo-s0/run\.json"):
        pack([run], tmp_path / "b.zip")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zip", "runs"]  # no half bundle, no folder of its own


@pytest.mark.parametrize("name", ["runs (1)", "läufe", ".hidden"])
def test_a_name_that_unpack_would_refuse_is_not_packed(run: Path, tmp_path: Path, name: str) -> None:
    (run / "eval" / "stapo-s0").rename(run / "eval" / name)
    other = run_folder(tmp_path / "runs" / name)
    for given in (run, other):
        with pytest.raises(BadInput) as e:
            pack([given], tmp_path / "x.zip")
        assert name in str(e.value.found)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_second_time_everything_is_there_already(bundle: Path, tmp_path: Path) -> None:
    unpack(bundle, tmp_path / "shared")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "shared").rglob("*")}
    assert unpack(bundle, tmp_path / "shared")[1] == []
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "shared").rglob("*")} == before


def test_a_differing_file_is_refused_by_name_and_nothing_is_written(bundle: Path, tmp_path: Path) -> None:
    into = tmp_path / "shared"
    unpack(bundle, into)
    for change in ((into / FILES[2]).unlink, lambda: (into / FILES[2]).write_text("other")):
        change()
        before = contents(into)
        with pytest.raises(RecordError, match=FILES[2]):
            unpack(bundle, into)
        assert contents(into) == before


def test_a_record_that_contradicts_another_place_is_refused(bundle: Path, tmp_path: Path) -> None:
    into = tmp_path / "shared"
    # the same cell elsewhere in the folder, with other verdicts
    synthetic.cell(into / "other", "stapo", "toy", "t1.0", ["1111", "1111", "1111"])
    before = contents(into)
    with pytest.raises(RecordError, match="contradict each other"):
        unpack(bundle, into)
    assert contents(into) == before
    assert not list(tmp_path.glob(".shared.unpacking*"))


def test_a_link_in_the_target_is_not_followed(bundle: Path, tmp_path: Path) -> None:
    into, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    into.mkdir()
    elsewhere.mkdir()
    (into / "mini").symlink_to(elsewhere)
    with pytest.raises(RecordError, match="symbolic link"):
        unpack(bundle, into)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_the_commands(run: Path, tmp_path: Path) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "stapo_repro.cli", *words], capture_output=True, text=True,
                              cwd=tmp_path)  # fmt: skip

    packed = call("pack", str(run), "--out", "x.zip")
    assert packed.returncode == 0, packed.stderr
    assert "x.zip: 7 files of 1 runs" in packed.stdout
    assert store.sha256_file(tmp_path / "x.zip") in packed.stdout
    looked = call("unpack", "x.zip")
    assert "x.zip is whole: 7 files" in looked.stdout
    assert "  stapo/mini/s0/step40/toy/t1.0/e0" in looked.stdout
    done = call("unpack", "x.zip", "--into", "shared")
    assert done.stdout == "1 runs written below shared, 0 were there already with the same content\n"
    nothing = call("unpack", "y.zip")
    assert (nothing.returncode, nothing.stdout) == (2, "")


def _large(tmp_path: Path) -> Path:
    """A bundle of a run with many responses, so that unpacking takes a while."""
    run = run_folder(tmp_path / "runs" / "large")
    for i in range(40):
        folder = run / "eval" / f"copy-{i:02}"
        folder.mkdir()
        record = store.read_json(run / "eval" / "stapo-s0" / "run.json", Run)
        store.write_json(folder / "run.json", record)
        sample = next(iter(store.read(run / "eval" / "stapo-s0" / "samples.jsonl", Sample)))
        store.append(folder / "samples.jsonl", [sample.model_copy(update={"response": "x" * 5000})] * 40)
    pack([run], tmp_path / "large.zip")
    return tmp_path / "large.zip"


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_whole_runs_and_goes_on(tmp_path: Path) -> None:
    bundle = _large(tmp_path)
    names = {f.path for f in check(bundle)[0].files}
    into, draw = tmp_path / "shared", random.Random(0)
    (into / "mine").mkdir(parents=True)  # the target is there: its runs are moved in, not the whole of it
    work, hits = tmp_path / ".shared.unpacking", 0
    command = [sys.executable, "-m", "stapo_repro.cli", "unpack", str(bundle), "--into", str(into)]
    for _ in range(8):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and not work.exists():
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        hits += process.wait() == -signal.SIGKILL
        found = set(contents(into))
        assert found in (set(), names)
        if found:
            break
    assert hits >= 1
    last = subprocess.run(command, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert set(contents(into)) == names
    assert not work.exists()
    assert unpack(bundle, into)[1] == []  # equal, hash by hash
