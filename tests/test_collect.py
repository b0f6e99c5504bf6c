"""Records to commit: what a table needs, and nothing of the machine."""

from pathlib import Path

import pytest
import synthetic_records as synthetic
from synthetic_log import Others, Token, write

from stapo_repro.collect import collect
from stapo_results import store, token_log
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Run, StepMetrics


def make_run(folder: Path, **changes: object) -> None:
    values = {
        "run_id": "r", "kind": "train", "status": "done", "command": ["stapo-train", "run", f"run.out={folder}"],
        "config": {"run": {"out": str(folder)}}, "code_commit": "c", "code_dirty": "", "packages": {}, "revisions": {},
        "hardware": {}, "seeds": {}, "deterministic": True, "started": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    store.write_json(folder / "run.json", Run(**(values | changes)))  # type: ignore[arg-type]
    store.append(folder / "metrics.jsonl", [StepMetrics(step=1, values={"reward": 0.5})])
    (folder / "log.txt").write_text("stays behind")


def test_records_come_along_with_the_run_folder_as_RUN(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "mini"
    make_run(root / "train" / "stapo-s0")
    written = collect(root, tmp_path / "records")
    assert sorted(p.relative_to(tmp_path / "records").as_posix() for p in written) == [
        "train/stapo-s0/metrics.jsonl", "train/stapo-s0/run.json"]  # fmt: skip
    copy = store.read_json(tmp_path / "records" / "train" / "stapo-s0" / "run.json", Run)
    assert copy.command[-1] == "run.out=RUN/train/stapo-s0"
    assert copy.config == {"run": {"out": "RUN/train/stapo-s0"}}
    assert str(tmp_path) not in (tmp_path / "records" / "train" / "stapo-s0" / "run.json").read_text()


def test_the_base_models_record_comes_along_and_the_drivers_stays(tmp_path: Path) -> None:
    make_run(tmp_path / "run" / "base", kind="base", config={"noise": 1e-6})
    make_run(tmp_path / "run", kind="repro", config={"experiment": "miniature", "quick": False})
    collect(tmp_path / "run", tmp_path / "out")
    assert sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("run.json")) == [
        "base/run.json"
    ]


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "a", status="running")
    with pytest.raises(BadInput, match="not a finished run"):
        collect(tmp_path, tmp_path / "out")


def test_a_path_of_the_machine_is_refused_by_name(tmp_path: Path) -> None:
    make_run(tmp_path / "run" / "a", config={"data": "/somewhere/else/train.parquet"})
    with pytest.raises(RecordError, match=r"/somewhere/else/train\.parquet"):
        collect(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_known_elsewhere_is_named_and_not_refused(tmp_path: Path) -> None:
    """Weights in the hub's cache (by id and commit), benchmarks in a folder of their own (by hashes), notes."""
    cache = "/home/u/.cache/huggingface/hub/models--Qwen--Qwen3-8B-Base/snapshots/49e3"
    make_run(
        tmp_path / "run" / "a", kind="eval", command=["stapo-eval", "--data-dir", "/mnt/b/"],
        config={"data_dir": "/mnt/b/", "model": {"path": cache}}, notes=["lost on /mnt/x/y.py: went on"],
    )  # fmt: skip
    collect(tmp_path / "run", tmp_path / "out")
    copy = store.read_json(tmp_path / "out" / "a" / "run.json", Run)
    assert copy.config["model"]["path"] == "HUB/models--Qwen--Qwen3-8B-Base/snapshots/49e3"
    assert copy.command[-1].startswith("BENCHMARKS")
    assert copy.notes == ["lost on (path): went on"]


def test_a_file_of_ones_own_is_recorded_by_its_name(tmp_path: Path) -> None:
    """It may stand anywhere, beside the run too: the run has its own copy and its hash."""
    run = tmp_path / "mine"
    given = [f"method={run}.yaml", "method=/h/my files/m.yml", "actor_rollout_ref.selector.name=/h/m.py:f", f"a={run}"]
    make_run(run / "a", command=given)
    collect(run, tmp_path / "out")
    kept = ["method=mine.yaml", "method=m.yml", "actor_rollout_ref.selector.name=m.py:f", "a=RUN"]
    assert store.read_json(tmp_path / "out" / "a" / "run.json", Run).command == kept


def test_what_was_set_aside_is_left_behind(tmp_path: Path) -> None:
    make_run(tmp_path / "run" / "train" / "stapo-s0")
    make_run(tmp_path / "run" / "set-aside" / "train" / "stapo-s0.1", status="failed")
    broken = tmp_path / "run" / "set-aside" / "train" / "stapo-s0.2" / "run.json"
    broken.parent.mkdir()
    broken.write_text('{"run_id": "ha')
    assert len(collect(tmp_path / "run", tmp_path / "out")) == 2


def test_what_the_run_no_longer_has_is_refused(tmp_path: Path) -> None:
    """A cell that was collected before, of a benchmark that the run's evaluation was made again without."""
    run, out = tmp_path / "run", tmp_path / "out"
    for benchmark in ("mini-add", "mini-add-hard"):
        cell = synthetic.cell(run, "stapo", benchmark, "t1.0", ["11"], folder="eval/stapo-s0")
    make_run(run / "eval" / "stapo-s0", kind="eval")
    collect(run, out)
    (out / "README.md").write_text("by hand")
    cell.unlink()
    before = sorted(out.rglob("*"))
    with pytest.raises(RecordError) as e:
        collect(run, out)
    assert cell.name in str(e.value.found)
    assert sorted(out.rglob("*")) == before
    (out / "eval" / "stapo-s0" / "cells" / cell.name).unlink()
    collect(run, out)
    # another run's folder beside it is left alone
    make_run(tmp_path / "second" / "train" / "stapo-s1")
    assert len(collect(tmp_path / "second", out)) == 2


def make_log(folder: Path, **options: object) -> None:
    make_run(folder)
    tokens = [Token("a", junk=True, step=s, batch=b, entropy=s / 8) for s in (1, 2, 3) for b in (1, 2)]
    write(folder, tokens, [Others(correct=5, step=s) for s in (1, 2, 3)], **options)  # type: ignore[arg-type]
    (folder / "token_log" / "tokenizer.json").write_text('{\n "é": [1]}')


@pytest.mark.parametrize("kind", ["train", "probe"])
def test_the_token_log_comes_along_as_one_pair_of_files(kind: str, tmp_path: Path) -> None:
    make_log(tmp_path / "run" / "train" / "stapo-s0", left_out=2)
    make_run(tmp_path / "run" / "train" / "stapo-s0", kind=kind)
    collect(tmp_path / "run", tmp_path / "out")
    copy = tmp_path / "out" / "train" / "stapo-s0"
    assert sorted(p.relative_to(copy).as_posix() for p in (copy / "token_log").rglob("*.*")) == [
        "token_log/00000001.parquet", "token_log/histogram/00000001.parquet", "token_log/tokenizer.json"]  # fmt: skip
    assert (copy / "token_log" / "tokenizer.json").read_text(encoding="utf-8") == '{"é":[1]}'
    one, other = token_log.read(tmp_path / "run" / "train" / "stapo-s0"), token_log.read(copy)
    assert one is not None
    assert other is not None
    assert one == other
    assert (other.header.left_out, other.tokens["step"].to_pylist()) == (6, [1, 1, 2, 2, 3, 3])


def test_a_damaged_log_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    make_log(tmp_path / "run")
    (tmp_path / "run" / "token_log" / "00000002.parquet").write_bytes(b"half a fi")
    with pytest.raises(RecordError, match=r"00000002\.parquet: not a file of the token log"):
        collect(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
