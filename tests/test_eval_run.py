"""`stapo-eval run` from end to end on a random model: records, byte equality, kills, refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import eval_model
import pytest

from stapo_eval import run as running
from stapo_eval import sampling
from stapo_eval.cli import main
from stapo_eval.options import RunOptions
from stapo_eval.run import run
from stapo_results import store, targets
from stapo_results.errors import BadInput
from stapo_results.schema import CellRecord, Run, Sample, Timing, Verdict
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


def _files(out: Path) -> dict[str, bytes]:
    cells = {f"cells/{p.name}": p.read_bytes() for p in (out / "cells").iterdir()}
    return {n: (out / n).read_bytes() for n in PURE} | cells


def _without_code(files: dict[str, bytes]) -> dict[str, object]:
    """The same without the code's version, which may change under a test in a checkout that is worked in."""

    def strip(name: str, data: bytes) -> object:
        if not name.startswith("cells/"):
            return data
        return {k: v for k, v in json.loads(data).items() if k not in ("code_commit", "code_dirty")}

    return {n: strip(n, d) for n, d in files.items()}


def test_records_are_complete_and_valid(finished: Path) -> None:
    samples = list(store.read(finished / "samples.jsonl", Sample))
    verdicts = list(store.read(finished / "verdicts.jsonl", Verdict))
    times = list(store.read(finished / "timings.jsonl", Timing))
    record = store.read_json(finished / "run.json", Run)
    # 2 benchmarks x 6 problems x 4 samples x 2 settings
    assert len(samples) == len(verdicts) == 96
    keys = {(s.cell, s.problem_id, s.sample_index) for s in samples}
    assert keys == {(v.cell, v.problem_id, v.sample_index) for v in verdicts}
    assert len(keys) == 96
    assert {t.kind for t in times} == {"sample", "verdict", "judge"}
    assert record.status == "done"
    assert record.deterministic
    assert record.config["n"] == 0
    assert record.wall_seconds
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


def test_cells_hold_what_the_verdicts_say(finished: Path) -> None:
    verdicts = list(store.read(finished / "verdicts.jsonl", Verdict))
    paths = sorted((finished / "cells").iterdir())
    assert len(paths) == 4
    for path in paths:
        cell = store.read_json(path, CellRecord)
        assert path.name == cell.cell.slug + ".json"
        mine = {(v.problem_id, v.sample_index): v for v in verdicts if v.cell == cell.cell.id}
        assert cell.n == 4
        for p in cell.problems:
            assert p.verdicts == "".join("01"[mine[p.problem_id, i].correct] for i in range(4))
        assert cell.scored_by == "rule"
        assert "stand-in" in cell.judge_note
        assert cell.miniature
        assert cell.variant == ""
        assert sum(cell.finish_reasons.values()) == 24
        assert cell.no_answer == sum(v.reason == "no_answer" for v in mine.values())
    summary = json.loads((finished / "summary.json").read_text())
    for c in summary["cells"]:
        cells = [v for v in verdicts if v.cell == c["cell"]]
        assert c["accuracy"] == pytest.approx(sum(v.correct for v in cells) / 24)
        assert c["low"] <= c["accuracy"] <= c["high"]


def test_the_same_command_twice_gives_the_same_bytes(world: Path, finished: Path, tmp_path: Path) -> None:
    run(_options(world, tmp_path / "again"))
    assert _files(tmp_path / "again") == _files(finished)


def test_a_finished_run_returns_at_once(world: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*.json*")}
    monkeypatch.setattr(running, "make_engine", None)
    run(_options(world, finished))
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*.json*")} == before


def test_a_finished_run_makes_again_what_is_gone_or_damaged(
    world: Path, finished: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out", ignore=shutil.ignore_patterns(".lock")))
    o, whole = _options(world, out), _files(finished)
    cell = sorted((out / "cells").iterdir())[0]
    with monkeypatch.context() as patched:
        patched.setattr(running, "make_engine", None)  # all but samples is made from the samples
        for name in ("verdicts.jsonl", f"cells/{cell.name}", "summary.json", "cost.json"):
            (out / name).unlink()
            run(o)
            assert f"lacks {name}: made again" in capsys.readouterr().out
            assert _files(out) == whole
        shutil.rmtree(out / "cells")
        cost = (out / "cost.json").read_bytes()
        (out / "cost.json").write_text("{")
        run(o)
        assert _files(out) == whole
        assert json.loads((out / "cost.json").read_bytes())["samples"] == json.loads(cost)["samples"]
    lines = (out / "samples.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b'{"broken\n'
    del lines[10:12]
    (out / "samples.jsonl").write_bytes(b"".join(lines))
    capsys.readouterr()
    run(o)
    said = capsys.readouterr()
    assert "1 lines that are no Sample record (4)" in said.err
    assert "lacks 3 of 96 samples: made again" in said.out
    assert (out / "samples.jsonl.damaged").read_bytes() == b'{"broken\n'
    assert _files(out) == whole
    record = store.read_json(out / "run.json", Run)
    assert record.status == "done"
    assert any("made again after the run was finished" in n for n in record.notes)
    run(o)
    assert "nothing was done" in capsys.readouterr().out


@pytest.mark.parametrize("lines", [0, 7, 50, 95])
def test_cut_anywhere_and_resumed_it_ends_in_the_same_bytes(
    world: Path, finished: Path, tmp_path: Path, lines: int
) -> None:
    whole = (finished / "samples.jsonl").read_bytes().splitlines(keepends=True)
    run_json = json.loads((finished / "run.json").read_text()) | {"status": "running"}
    (tmp_path / "run.json").write_text(json.dumps(run_json))
    (tmp_path / "samples.jsonl").write_bytes(b"".join(whole[:lines]) + whole[lines][:33])
    run(_options(world, tmp_path))
    assert _files(tmp_path) == _files(finished)
    assert any("resumed" in n for n in store.read_json(tmp_path / "run.json", Run).notes)


def test_killed_and_started_again_it_ends_in_the_same_bytes(world: Path, finished: Path, tmp_path: Path) -> None:
    o = _options(world, tmp_path / "killed")
    command = [sys.executable, "-m", "stapo_eval.cli", "run"]
    for name in ("model", "benchmarks", "data_dir", "judge", "max_tokens", "batch_rows", "threads", "out"):
        command += [f"--{name.replace('_', '-')}", str(getattr(o, name))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = tmp_path / "killed" / "samples.jsonl"
    deadline = time.monotonic() + 120
    while not (samples.exists() and samples.stat().st_size > 2_000) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
    assert _without_code(_files(tmp_path / "killed")) == _without_code(_files(finished))


def test_other_parameters_in_the_same_folder_are_refused(world: Path, finished: Path) -> None:
    with pytest.raises(BadInput) as e:
        run(_options(world, finished, max_tokens=25, eval_seed=1))
    assert "max_tokens: 24 there, 25 now" in str(e.value)
    assert "eval_seed: 0 there, 1 now" in str(e.value)
    with pytest.raises(BadInput, match="model: 'weights"):
        run(_options(world, finished, model=str(world / "external"), method="justrl", size="mini", train_seed=3,
                     step="40"))  # fmt: skip


def test_a_copy_whose_prompts_differ_does_not_go_on(world: Path, finished: Path, tmp_path: Path) -> None:
    """The golds, and the texts but for white space, are those of the registry; the tokens of one prompt are not."""
    data = Path(shutil.copytree(world / "data", tmp_path / "data"))
    rows = (data / "sums.jsonl").read_text()
    assert rows.count("What is 2 + 2?") == 1
    (data / "sums.jsonl").write_text(rows.replace("What is 2 + 2?", "What is  2 + 2?"))
    with pytest.raises(BadInput, match="holds another run") as e:
        run(_options(world, finished, data_dir=str(data)))
    assert "data:sums: '6 rows, golds" in str(e.value)
    assert "longer-sums" not in str(e.value)


def test_two_writers_are_refused(world: Path, tmp_path: Path) -> None:
    with targets.one_writer(tmp_path, "--out"), pytest.raises(BadInput, match="another command"):
        run(_options(world, tmp_path))


def test_one_setting_alone_gives_the_samples_that_it_has_among_others(
    world: Path, finished: Path, tmp_path: Path
) -> None:
    run(_options(world, tmp_path, benchmarks="longer-sums", settings="t0.7", judge="none"))
    alone = (tmp_path / "samples.jsonl").read_text().splitlines()
    among = [x for x in (finished / "samples.jsonl").read_text().splitlines() if "/longer-sums/t0.7/" in x]
    assert alone == among
    verdicts = list(store.read(tmp_path / "verdicts.jsonl", Verdict))
    assert {v.judge for v in verdicts} == {"not_asked"}


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
    from stapo_results.benchmarks import registry_entry, write_registry

    data = tmp_path / "data"
    data.mkdir()
    rows = [{"id": "short", "problem": "1?", "answer": "1"}, {"id": "long", "problem": "2 " * 400, "answer": "2"}]
    (data / "two.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    write_registry(data / "registry.yaml", {"two": registry_entry(data / "two.jsonl", "two", samples=2)})
    summary = run(_options(world, tmp_path / "out", data_dir=str(data), benchmarks="two", settings="t1.0"))
    assert summary["cells"][0]["missing"] == 2
    assert summary["cells"][0]["accuracy"] is None
    assert "MISSING" in capsys.readouterr().out
    cell = store.read_json(next((tmp_path / "out" / "cells").iterdir()), CellRecord)
    assert {p.problem_id: p.verdicts for p in cell.problems}["long"] == "--"


def test_responses_that_the_models_context_cuts_are_named(world: Path, tmp_path: Path, capsys) -> None:
    """One of the two problems has more of the 512 positions than the other."""
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"id": "a", "problem": "1?", "answer": "1"}, {"id": "b", "problem": "2 2 2 2?", "answer": "2"}]
    (data / "two.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    o = _options(world, tmp_path / "out", data_dir=str(data), benchmarks=str(data / "two.jsonl"), settings="t1.0", n=1,
                 max_tokens=20_480, judge="none")  # fmt: skip
    summary = run(o)
    rooms = sorted(512 - s.prompt_tokens for s in store.read(tmp_path / "out" / "samples.jsonl", Sample))
    note = (
        "the model has 512 positions; responses to 2 problems could have at most "
        f"{rooms[0]} to {rooms[1]} of the 20,480 tokens"
    )
    assert summary["notes"] == [note]
    assert note in capsys.readouterr().err
    (tmp_path / "out" / "summary.json").unlink()
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
    record = store.read_json(tmp_path / "run.json", Run)
    assert record.status == "done"
    assert "samples that had failed are made again" in record.notes


def test_a_disk_without_room_is_refused_before_generating(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    usage = sampling.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(sampling.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    o = _options(world, tmp_path / "out")
    arguments = [f"--{k.replace('_', '-')}={getattr(o, k)}" for k in ("model", "benchmarks", "data_dir", "out")]
    assert main(["run", *arguments]) == 1
    assert "GiB free" in capsys.readouterr().err
    assert store.read_json(tmp_path / "out" / "run.json", Run).status == "failed"


def test_an_interrupted_run_says_so_and_goes_on(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = store.Journal.append

    def stop(journal, records):
        append(journal, records)
        if journal.path.name == "samples.jsonl":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(store.Journal, "append", stop)
    with pytest.raises(KeyboardInterrupt, match="nothing finished is lost; this goes on:"):
        run(_options(world, tmp_path))
    assert store.read_json(tmp_path / "run.json", Run).status == "interrupted"
    monkeypatch.setattr(store.Journal, "append", append)
    run(_options(world, tmp_path))
    assert _files(tmp_path) == _files(finished)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("benchmarks", "sums,nope", "unknown benchmark"),
        ("benchmarks", "SUMS", "did you mean sums"),
        ("benchmarks", "AIME24", "did you mean aime24"),
        ("benchmarks", "longersum", "did you mean longer-sums"),
        ("settings", "t2", "unknown decoding setting"),
        ("model", "/nowhere", "no such folder"),
        ("model", "./nowhere", "no such folder"),
        ("model", __file__, "is a file"),
        ("model", "org/nowhere", "neither a folder"),
        ("max_tokens", 0, "at least 1"),
        ("n", -1, "--n is negative\n.*-1\n  expected: 0 or more\n  next:     leave out --n"),
        ("grade_seconds", 0.0, "--grade-seconds is out of bounds"),
        ("data_dir", __file__, "data directory is a file"),
        ("preset", "sympy", "preset"),
        ("judge_scope", "everything", "scope"),
        ("judge_mode", "cot", "mode"),
        ("step", "last", "--step"),
        ("engine", "openai", "needs an address"),
        ("engine", "sglang", "does not exist"),
        ("url", ("http://127.0.0.1:1/v1",), "for the engine openai"),
        ("replicas", -1, "--replicas"),
        ("tensor_parallel", 2, "--tensor-parallel"),
    ],
)
def test_bad_options_are_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: object, message: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=message):
        run(_options(world, tmp_path / "out", **{option: value}))


def test_an_out_that_is_a_file_is_refused_before_any_work(world: Path, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    with pytest.raises(BadInput, match="--out is a file"):
        run(_options(world, tmp_path / "f"))
    with pytest.raises(BadInput, match="--out cannot be written"):
        run(_options(world, tmp_path / "f" / "x"))
    assert (tmp_path / "f").read_text() == "mine"


def test_weights_that_were_cut_off_and_a_missing_tokenizer_are_named(world: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(world / "external", tmp_path / "m"))
    o = _options(world, tmp_path / "out", model=str(folder), judge="none")
    weights = (folder / "model.safetensors").read_bytes()
    for kept in (len(weights) - 1, 200, 3, 0):
        (folder / "model.safetensors").write_bytes(weights[:kept])
        with pytest.raises(BadInput, match="safetensors is") as e:
            run(replace(o, out=str(tmp_path / f"out{kept}")))
        assert f"{kept:,} bytes" in str(e.value)
        assert "copy the file again" in str(e.value)
    (folder / "model.safetensors").write_bytes(weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(BadInput, match=r"no tokenizer\.json in"):
        run(o)


def test_a_judge_for_a_finished_run_is_pointed_to_the_command_that_adds_it(world: Path, tmp_path: Path) -> None:
    o = _options(world, tmp_path, benchmarks="sums", settings="t1.0", n=1, limit=1, judge="none")
    run(o)
    with pytest.raises(BadInput) as e:
        run(replace(o, judge=str(world / "judge")))
    assert f"stapo-eval judge --run {tmp_path} --judge {world / 'judge'}" in str(e.value)
    with pytest.raises(BadInput) as e:
        run(replace(o, judge=str(world / "judge"), n=2, model=str(world / "external")))
    assert "give another --out" in str(e.value)
    assert not re.search("[0-9a-f]{13}", str(e.value))


@pytest.mark.parametrize("command", [["grade"], ["run"]])
def test_a_reader_that_closes_early_sees_no_traceback(command: list[str]) -> None:
    process = subprocess.Popen([sys.executable, "-m", "stapo_eval.cli", *command, "--help"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)  # fmt: skip
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


def test_an_interrupt_while_the_program_loads_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from stapo_eval import cli

    def stop(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_command", stop)
    assert cli.main([]) == 130
    assert capsys.readouterr().err.startswith("interrupted: ")
    script = "import sys, stapo_eval.cli; print(any(m in sys.modules for m in ('tyro', 'pydantic', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_benchmarks_are_listed(world: Path, capsys) -> None:
    assert main(["benchmarks", "--data-dir", str(world / "data")]) == 0
    out = capsys.readouterr().out
    lines = {x.split()[0]: x.split()[1:4] for x in out.splitlines()}
    assert lines["olympiadbench"] == ["674", "4", "math,"]
    assert lines["longer-sums"] == ["6", "4", "integer"]
    (world / "data2").mkdir()
    (world / "data2" / "aime24.jsonl").write_text('{"id": "x", "problem": "p", "answer": "1"}\n')
    assert main(["benchmarks", "--data-dir", str(world / "data2")]) == 2
    out = capsys.readouterr().out
    assert "REFUSED" in out
    assert "rows 1" in out
    assert "rows 30" in out


@pytest.mark.parametrize("command", [[], ["run"], ["grade"], ["benchmarks"], ["judge"], ["compare"], ["export"]])
def test_help(command: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as e:
        main([*command, "--help"])
    assert e.value.code == 0
    assert "usage: stapo-eval" in capsys.readouterr().out


def test_idle_gpus_are_pointed_out(world: Path, tmp_path: Path) -> None:
    plan = running.make_plan(_options(world, tmp_path))
    hardware = plan.run.hardware | {"gpus": ["H100, 80 GB"] * 8}

    def said(**options) -> str:
        run = plan.run.model_copy(update={"hardware": hardware})
        return running._idle_gpus(replace(plan, run=run, options=replace(plan.options, **options)))

    assert said() == "7 of 8 GPUs stand idle: --replicas 8 uses them"
    assert said(tensor_parallel=2, replicas=2) == "4 of 8 GPUs stand idle: --replicas 4 uses them"
    assert said(replicas=8) == ""
    assert (
        running._idle_gpus(replace(plan, run=plan.run.model_copy(update={"hardware": hardware | {"gpus": []}}))) == ""
    )
