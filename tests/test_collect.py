"""Records to commit: what is read of a run, what was left out of it, and nothing of the machine."""

import hashlib
import json
from pathlib import Path

import pytest
import synthetic_records as synthetic
from token_logs import Others, Token, write_tokens
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from stapo_repro import paper
from stapo_repro.collect import RunTimes, collect, laid_over
from stapo_repro.run.stages import Stages, StageState
from stapo_repro.tokens.log import Vocabulary
from stapo_results import store, token_log
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Cut, Run, StepMetrics

KEPT = {"reward": 0.5, "val-t0.7/mini-add-hard/acc/mean@8": 0.5}


def make_run(folder: Path, **changes: object) -> None:
    values = {
        "run_id": "r", "kind": "train", "status": "done", "command": ["stapo-train", "run", f"run.out={folder}"],
        "config": {"run": {"out": str(folder)}}, "code_commit": "c", "code_dirty": "", "packages": {}, "revisions": {},
        "hardware": {}, "seeds": {}, "deterministic": True, "started": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    store.write_json(folder / "run.json", Run(**(values | changes)))  # type: ignore[arg-type]
    metrics = {"critic/rewards/mean": 0.5, "critic/score/mean": 0.5, "num_turns/max": 2.0, **KEPT}
    store.append(folder / "metrics.jsonl", [StepMetrics(step=k, values=metrics) for k in (1, 2)])
    (folder / "log.txt").write_text("stays behind")


def make_log(folder: Path, kind: str = "train", **options: object) -> None:
    make_run(folder, kind=kind)
    tokens = [Token("a", junk=True, step=s, batch=b, entropy=s / 8) for s in (1, 2, 3) for b in (1, 2)]
    write_tokens(folder, tokens, [Others(correct=5, step=s) for s in (1, 2, 3)], **options)  # type: ignore[arg-type]
    (folder / "token_log" / "tokenizer.json").write_text('{\n "é": [1]}')


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_record_says_what_was_left_out_of_it(tmp_path: Path) -> None:
    root, out = tmp_path / "run", tmp_path / "out"
    one = {"run": {"size": "a"}, "steps": [1], "trainer": {"test_freq": 5, "lr": 1e-6}}
    other = {"run": {"size": "b"}, "steps": [1], "trainer": {"test_freq": 5, "lr": 1}}
    make_run(root / "a", config=one)
    make_run(root / "b", config=other)
    make_run(root, kind="repro", config={"experiment": "miniature", "quick": False})
    collect(root, out)
    (whole,) = out.glob("whole/*")
    kept = ["a/metrics.jsonl", "a/run.json", "b/metrics.jsonl", "b/run.json", f"whole/{whole.name}"]
    assert files(out) == kept
    record = store.read_json(out / "b" / "run.json", Run)
    assert record.command == ["stapo-train", "run", "run.out=RUN/b"]
    assert [m.values for m in store.read(out / "b" / "metrics.jsonl", StepMetrics)] == [KEPT] * 2
    assert record.cut is not None
    assert record.cut.metrics == {"critic": 4, "num_turns": 2}
    # what is read, and what differs; the rest is that of the first run
    assert record.config == {"run": {"size": "b"}, "trainer": {"test_freq": 5, "lr": 1}}
    assert store.find_whole(out / "b", "config", record.cut.config_from) == whole
    assert json.loads(whole.read_text()) == one
    assert laid_over(one, record.config) == other
    text = json.dumps(other, indent=1, sort_keys=True) + "\n"
    assert record.cut.config == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(("changes", "found"), [({"status": "running"}, "running"), ({"cut": Cut()}, "cut already")])
def test_what_is_no_finished_run_is_refused(tmp_path: Path, changes: dict[str, object], found: str) -> None:
    make_run(tmp_path / "a", **changes)
    with pytest.raises(BadInput, match="not a finished run") as e:
        collect(tmp_path, tmp_path / "out")
    assert found in str(e.value.found)


def test_paths_are_taken_out_or_refused_by_name(tmp_path: Path) -> None:
    """Known elsewhere: weights in the hub's cache, benchmarks, a user's file of which the run has a copy."""
    cache, run = "/home/u/.cache/huggingface/hub/models--Qwen--Qwen3-8B-Base/snapshots/49e3", tmp_path / "run"
    given = [f"method={run}.yaml", "method=/h/my files/m.yml", "actor_rollout_ref.selector.name=/h/m.py:f", f"a={run}"]
    config = {"data_dir": "/mnt/b/", "model": {"path": cache}}
    make_run(run / "a", kind="eval", command=[*given, "/mnt/b/"], config=config, notes=["lost on /mnt/x/y.py: again"])
    collect(run, tmp_path / "out")
    copy = store.read_json(tmp_path / "out" / "a" / "run.json", Run)
    assert copy.config["model"]["path"] == "HUB/models--Qwen--Qwen3-8B-Base/snapshots/49e3"
    named = ["method=run.yaml", "method=m.yml", "actor_rollout_ref.selector.name=m.py:f", "a=RUN", "BENCHMARKS/"]
    assert (copy.command, copy.notes) == (named, ["lost on (path): again"])
    make_run(run / "b", config={"data": "/somewhere/else/train.parquet"})
    with pytest.raises(RecordError, match=r"/somewhere/else/train\.parquet"):
        collect(run, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_model_outside_the_run_keeps_its_own_name(tmp_path: Path) -> None:
    run, models = tmp_path / "run", {"model": "/h/qwen2.5-coder-0.5b/model", "judge": "/home/alice/model"}
    make_run(run / "a", kind="eval", command=["--model", models["model"], "--judge", models["judge"]], config=models)
    collect(run, tmp_path / "out")
    copy = store.read_json(tmp_path / "out" / "a" / "run.json", Run)
    assert copy.config == {"model": "qwen2.5-coder-0.5b/model", "judge": "model"}
    assert copy.command == ["--model", "qwen2.5-coder-0.5b/model", "--judge", "model"]


def test_what_the_run_no_longer_has_is_refused(tmp_path: Path) -> None:
    """A cell that was collected before, of a benchmark that the run's evaluation was made again without."""
    run, out = tmp_path / "run", tmp_path / "out"
    for benchmark in ("mini-add", "mini-add-hard"):
        cell = synthetic.cell(run, "stapo", benchmark, "t1.0", ["11"], folder="eval/stapo-s0")
    make_run(run / "eval" / "stapo-s0", kind="eval")
    collect(run, out)
    (out / "README.md").write_text("by hand")
    cell.unlink()
    before = files(out)
    with pytest.raises(RecordError, match=cell.name):
        collect(run, out)
    assert files(out) == before
    (out / "eval" / "stapo-s0" / "cells" / cell.name).unlink()
    collect(run, out)
    # another run's folder beside it is left alone, and its configuration is written from the same whole one
    for name in ("second", "third"):
        make_run(tmp_path / name / name, config={"run": {"size": name}})
        collect(tmp_path / name, out)
    assert len(list(out.glob("whole/config-*.json"))) == 1


def test_another_evaluation_of_one_model_is_another_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, n, judge in (("first", 32, "a"), ("again", 32, "b"), ("other", 2, "a")):
        revisions = {"model": "weights", "judge": judge}
        make_run(tmp_path / name / "eval", kind="eval", config={"n": n}, revisions=revisions)
    collect(tmp_path / "first", out)
    collect(tmp_path / "again", out)
    with pytest.raises(RecordError, match="records of other runs"):
        collect(tmp_path / "other", out)


def test_an_evaluation_that_was_moved_alone_is_taken(tmp_path: Path) -> None:
    made = tmp_path / "runs" / "base-math500"
    make_run(tmp_path / "all" / "eval" / "base", kind="eval", config={"out": f"{made}"}, command=[f"--out={made}"])
    collect(tmp_path / "all", tmp_path / "out")
    copy = store.read_json(tmp_path / "out" / "eval" / "base" / "run.json", Run)
    assert (copy.config, copy.command) == ({"out": "RUN/eval/base"}, ["--out=RUN/eval/base"])


def test_a_run_that_was_moved_and_one_under_the_name_of_another(tmp_path: Path) -> None:
    made, moved, out = tmp_path / "made", tmp_path / "moved", tmp_path / "out"
    make_run(made / "eval" / "a", kind="eval", config={"out": f"{made}/eval/a", "data_dir": f"{made}/benchmarks"})
    make_run(made / "train" / "b")
    made.rename(moved)
    collect(moved, out)
    copies = [store.read_json(out / name / "run.json", Run) for name in ("eval/a", "train/b")]
    assert [c.config for c in copies] == [
        {"out": "RUN/eval/a", "data_dir": "RUN/benchmarks"},
        {"run": {"out": "RUN/train/b"}},
    ]
    collect(moved / "eval" / "a", tmp_path / "alone")
    make_run(tmp_path / "relative" / "eval", kind="eval", config={"out": "eval"}, notes=["evaluated"])
    collect(tmp_path / "relative", tmp_path / "left")
    assert store.read_json(tmp_path / "left" / "eval" / "run.json", Run).config == {"out": "eval"}
    before = files(out)
    make_run(moved / "eval" / "a", kind="eval", run_id="judged again")
    collect(moved, out)
    make_run(moved / "eval" / "a", kind="eval", revisions={"model": "another"})
    make_run(moved / "train" / "b", run_id="another")
    with pytest.raises(RecordError, match=r"rm -r \S+/eval/a \S+/train/b"):
        collect(moved, out)
    assert files(out) == before


@pytest.mark.parametrize("kind", ["train", "probe"])
def test_the_token_log_is_one_pair_of_files_and_its_tokenizer_one_for_all(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("a", "b"):
        make_log(tmp_path / "run" / name, kind, left_out=2)
    collect(tmp_path / "run", out)
    (tokenizer,) = out.glob("whole/tokenizer-*.json")
    assert tokenizer.read_text(encoding="utf-8") == '{"é":[1]}'
    logged = ["token_log/00000001.parquet", "token_log/histogram/00000001.parquet"]
    assert [f for f in files(out / "a") if f.startswith("token_log")] == logged
    assert [token_log.tokenizer_file(out / name) for name in ("a", "b")] == [tokenizer] * 2
    assert token_log.read(tmp_path / "run" / "a") == token_log.read(out / "a")
    for damage in (lambda: tokenizer.write_text('{"e":[1]}'), tokenizer.unlink):
        damage()
        with pytest.raises(RecordError, match="its tokenizer was left out"):
            token_log.tokenizer_file(out / "a")


# what a run took

MACHINE = {"cpu": "Some CPU", "cores": 2, "memory_gib": 15.6, "gpus": []}


def driven(folder: Path, *took: tuple[str, float, int], quick: bool = False, failed: str = "") -> Path:
    """A driver's folder with one finished training; of each stage name, seconds and attempts."""
    make_run(folder / "train" / "stapo-s0", hardware=MACHINE)
    make_run(folder, kind="repro", config={"experiment": "miniature", "quick": quick, "data_dir": "/a/machine"})
    states = [
        StageState(name=n, seconds=s, peak_mib=3900, attempts=a, code="d" * 40, command=("/a/machine/x",),
                   status="failed" if n == failed else "done") for n, s, a in took
    ]  # fmt: skip
    store.write_json(folder / "stages.json", Stages(stages=states))
    return folder


def test_times_of_collected_runs_by_hand(tmp_path: Path) -> None:
    out = tmp_path / "records" / "miniature"
    base, first = ("base", 50.0, 1), [("train/stapo-s0", 330.25, 3), ("eval/base", 61.5, 1), ("tables", 2.0, 1)]
    collect(driven(tmp_path / "first", base, *first, failed="tables"), out)
    found = store.read_json(out / "stages.json", RunTimes)
    assert (found.kind, found.quick, found.seconds, found.hardware) == ("miniature", False, 441.75, [MACHINE])
    assert found.stages[1] == StageState(
        name="train/stapo-s0", seconds=330.25, peak_mib=3900, attempts=3, code="d" * 40
    )
    assert "/a/machine" not in (out / "stages.json").read_text()
    assert found.unfinished == ("tables",)
    # a second run into the same records: the base as it took it, 330.25 + 61.5 of the first, 330.25 + 5 of its own
    collect(driven(tmp_path / "second", base, ("train/stapo-s1", 330.25, 1), ("tables", 5.0, 1)), out)
    found = store.read_json(out / "stages.json", RunTimes)
    assert [s.name for s in found.stages] == ["train/stapo-s0", "eval/base", "base", "train/stapo-s1", "tables"]
    assert (found.seconds, found.hardware, found.unfinished) == (777.0, [MACHINE], ())
    with pytest.raises(RecordError, match="another kind of run"):
        collect(driven(tmp_path / "quick", base, quick=True), out)


def test_a_tokenizer_is_kept_without_its_merges_and_reads_the_same_ids(tmp_path: Path) -> None:
    learner = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    lines = (paper.checkout() / "README.md").read_text().splitlines()
    whole.train_from_iterator(lines, learner)
    make_log(tmp_path / "run" / "a")
    given = tmp_path / "run" / "a" / "token_log" / "tokenizer.json"
    whole.save(str(given))
    assert json.loads(given.read_bytes())["model"]["merges"]
    collect(tmp_path / "run", tmp_path / "out")
    kept = token_log.tokenizer_file(tmp_path / "out" / "a")
    assert json.loads(kept.read_bytes())["model"]["merges"] == []
    one, other = Vocabulary(kept), Vocabulary(given)
    ids = [[i, i + 1, 600 - i] for i in range(1, 598)]
    assert [one.several(t) for t in ids] == [other.several(t) for t in ids]


def test_no_committed_record_names_a_folder_of_a_machine() -> None:
    records = Path(__file__).resolve().parents[1] / "results" / "records"
    files = [f for f in records.rglob("*.json*") if not f.name.startswith("tokenizer")]
    assert len(files) > 100
    assert [str(f) for f in files if any(p in f.read_bytes() for p in (b'"/tmp/', b'"/home/', b'"/root/'))] == []
