"""`stapo-eval judge` and the judge inside a run, with a real model: same bytes either way, nothing asked twice."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import eval_model
import hostile_folder
import judge_model
import pytest
from endpoint_server import KEY, Server
from eval_model import pure_files
from forked import forked

from stapo_eval import verdicts
from stapo_eval.cli import main
from stapo_eval.judge import published
from stapo_eval.judge.asking import scored
from stapo_eval.judge.published import JudgePrompt, PublishedPrompt
from stapo_eval.options import Judging, RunOptions
from stapo_eval.run import judge_again, run
from stapo_eval.verdicts import OTHER_JUDGE, OTHER_RULE, UNPUBLISHED
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import CellRecord, Judgement, Run, Sample, Verdict


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    eval_model.build(root / "model", labels={"method": "justrl", "train_seed": 3, "step": 40})
    path = root / "model" / "generation_config.json"  # with more ends, so that about half are not cut off
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [2, *range(3, 10)]}))
    judge_model.build(root / "judge")
    judge_model.build(root / "other-judge", seed=5)
    eval_model.benchmarks(root / "data", problems=4, samples=10)
    (root / "prompt.txt").write_text(judge_model.PROMPT)
    return root


def _judge(world: Path, **more) -> dict:
    prompt = {"judge_prompt": str(world / "prompt.txt"), "judge_prompt_unpublished": True}
    return {"judge": str(world / "judge")} | prompt | more


def _run(world: Path, out: Path, **more) -> Path:
    known = {
        "model": str(world / "model"),
        "benchmarks": "sums,longer-sums",
        "data_dir": str(world / "data"),
        "max_tokens": 24,
        "threads": 1,
        "batch_rows": 16,
    }
    run(RunOptions(**(known | {"out": str(out)} | more)))
    return out


def _again(world: Path, folder: Path, more: dict | None = None, **where) -> dict:
    return judge_again(folder, Judging(**_judge(world, **(more or {}))), **where)


@pytest.fixture(scope="module")
def judged(world: Path) -> Path:
    """A run with the judge from the start."""
    return _run(world, world / "judged", **_judge(world))


@pytest.fixture(scope="module")
def unjudged(world: Path) -> Path:
    return _run(world, world / "unjudged")


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock")))


def _record(out: Path) -> Run:
    return store.read_json(out / "run.json", Run)


def _judgements(out: Path) -> list[Judgement]:
    return list(store.read(out / "judgements.jsonl", Judgement))


def _cells(out: Path) -> list[CellRecord]:
    return [store.read_json(p, CellRecord) for p in sorted((out / "cells").iterdir())]


def _question(s: Sample, said: Verdict | Judgement) -> tuple[str, str | None, str | None]:
    alone = said.extracted is None or s.finish_reason == "length"
    return s.problem_id, said.extracted, s.response if alone else None


def test_each_distinct_question_is_asked_once_and_its_word_counts(judged: Path) -> None:
    sample_of = {(s.cell, s.problem_id, s.sample_index): s for s in store.read(judged / "samples.jsonl", Sample)}
    verdicts = {(v.cell, v.problem_id, v.sample_index): v for v in store.read(judged / "verdicts.jsonl", Verdict)}
    judgements = _judgements(judged)
    assert len({j.key for j in judgements}) == len(judgements)
    # by rule wrong: each answer to a problem once over both settings, each response without one or cut off by itself
    wrong = [(sample_of[key], v) for key, v in verdicts.items() if not v.rule]
    questions = {_question(s, v) for s, v in wrong}
    assert len({q for q in questions if q[2] is None}) < sum(_question(s, v)[2] is None for s, v in wrong)
    assert len(judgements) == len(questions) < len(wrong)
    assert {j.letter for j in judgements} == {"A", "B", "C"}
    by_question = {_question(sample_of[j.cell, j.problem_id, j.sample_index], j): j for j in judgements}
    meaning = {"A": "correct", "B": "incorrect", "C": "invalid"}
    for key, v in verdicts.items():
        assert v.correct == scored(v.rule, v.judge)
        assert v.judge == ("not_asked" if v.rule else meaning[by_question[_question(sample_of[key], v)].letter])
    assert any(v.correct and not v.rule for v in verdicts.values())


def test_judging_afterwards_gives_the_bytes_of_a_run_with_the_judge(
    world: Path, judged: Path, unjudged: Path, tmp_path: Path, capsys
) -> None:
    folder = _copy(unjudged, tmp_path / "run")
    shutil.move(world / "model", world / "moved")  # the evaluated model need not be there
    flags = ["--judge", str(world / "judge"), "--judge-prompt", str(world / "prompt.txt"), "--judge-prompt-unpublished"]
    assert main(["judge", "--run", str(folder), *flags]) == 0
    shutil.move(world / "moved", world / "model")
    assert pure_files(folder) == pure_files(judged)
    # 4 problems with 10 samples, by the rule and with the judge
    share = capsys.readouterr().out.partition("the judge's share")[2].splitlines()
    row = next(x.split() for x in share if x.split()[:2] == ["sums", "t1.0"])
    cell = next(c for c in _cells(folder) if (c.cell.benchmark, c.cell.setting) == ("sums", "t1.0"))
    rule, scores = ("".join(getattr(p, k) for p in cell.problems).count("1") for k in ("rule", "verdicts"))
    assert row[2:4] == [f"{rule / 0.4:.1f}", f"{scores / 0.4:.1f}"]
    assert row[-2:] == [f"{scores - rule}/0", f"{(scores - rule) / (40 - rule) * 100:.1f}"]
    before, after = _record(judged), _record(folder)
    assert (after.run_id, after.revisions, after.status) == (before.run_id, before.revisions, "done")
    (resumption,) = after.resumptions
    assert resumption.start.startswith("judged by ")
    # the folder is now the run with the judge: its command and the same judge find nothing to do
    record = (folder / "run.json").read_bytes()
    _run(world, folder, **_judge(world))
    _again(world, folder)
    assert (folder / "run.json").read_bytes() == record
    assert pure_files(folder) == pure_files(judged)


def test_what_judging_again_changes_is_on_record(world: Path, unjudged: Path, tmp_path: Path) -> None:
    folder = _copy(unjudged, tmp_path / "run")
    text = (folder / "verdicts.jsonl").read_text()
    (folder / "verdicts.jsonl").write_text(re.sub(r"rules \d+", "rules 1", text))  # an earlier suite's
    judge_again(folder, Judging(judge="none"))
    assert (folder / "verdicts.jsonl").read_text() == text
    assert len(_record(folder).resumptions) == 1


@pytest.mark.slow
def test_no_module_of_the_current_folder_runs_while_it_samples_and_judges(world: Path, tmp_path: Path) -> None:
    """By math-verify, which needs a grading process for every answer."""
    folder, out = hostile_folder.build(tmp_path / "here"), tmp_path / "run"
    where = ["--model", world / "model", "--benchmarks", "sums,longer-sums", "--data-dir", world / "data"]
    how = ["--max-tokens", 24, "--threads", 1, "--batch-rows", 16, "--preset", "math-verify"]
    hostile_folder.run(folder, "stapo-eval", "run", "--out", out, *where, *how)
    judge = ["--judge", world / "judge", "--judge-prompt", world / "prompt.txt", "--judge-prompt-unpublished"]
    hostile_folder.run(folder, "stapo-eval", "judge", "--run", out, *judge)
    assert pure_files(out) == pure_files(_run(world, tmp_path / "alone", preset="math-verify", **_judge(world)))


def test_a_wider_scope_asks_only_what_is_new(world: Path, judged: Path, tmp_path: Path) -> None:
    folder = _copy(judged, tmp_path / "run")
    summary = _again(world, folder, {"judge_scope": "all"})
    before, after = (f.joinpath("judgements.jsonl").read_bytes() for f in (judged, folder))
    assert after.startswith(before)
    new = [Judgement.model_validate_json(x) for x in after[len(before) :].splitlines()]
    verdicts = list(store.read(folder / "verdicts.jsonl", Verdict))
    samples = store.read(folder / "samples.jsonl", Sample)
    right = {_question(s, v) for s, v in zip(samples, verdicts, strict=True) if v.rule}
    assert {(j.problem_id, j.extracted) for j in new} == {q[:2] for q in right}
    assert len(new) == len(right)
    assert any(v.rule and not v.correct for v in verdicts)
    assert all(v.correct == (v.judge == "correct") for v in verdicts)
    total = Counter()
    for c in summary["cells"]:
        for row, said in c["audit"]["confusion"].items():
            total.update({(row, k): n for k, n in said.items()})
    assert +total == Counter(("rule_correct" if v.rule else "rule_incorrect", v.judge) for v in verdicts)


def test_another_judge_prompt_or_mode_is_asked_anew_and_what_is_on_record_is_not(
    world: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = _copy(judged, tmp_path / "run"), tmp_path / "other.txt"
    other.write_text(judge_model.PROMPT.replace("LETTER", "WELL?"))
    used = JudgePrompt(other.read_text())
    with pytest.raises(BadInput, match=used.sha256):
        _again(world, folder, {"judge_prompt": str(other), "judge_prompt_unpublished": False})
    _again(world, folder, {"judge_prompt": str(other)})
    after = _record(folder)
    assert after.revisions["judge prompt"] == f"sha256:{used.sha256} not published"
    assert after.run_id != _record(judged).run_id
    assert {c.judge_note for c in _cells(folder)} == {f"{UNPUBLISHED}; {OTHER_JUDGE}"}
    _again(world, folder, {"judge": str(world / "other-judge")})
    source = PublishedPrompt("", "", "", "", JudgePrompt(judge_model.PROMPT).sha256)
    monkeypatch.setitem(published.PUBLISHED, "justrl-exact", (source,))
    _again(world, folder, {"judge_mode": "justrl-exact", "judge_prompt_unpublished": False})
    assert {c.judge_note for c in _cells(folder)} == {f"{OTHER_JUDGE}; {OTHER_RULE}"}
    judgements = _judgements(folder)
    kinds = Counter((j.judge_model, j.judge_mode, j.prompt_sha256 == used.sha256) for j in judgements)
    first = kinds["judge", "compass", False]
    assert kinds["judge", "compass", True] == kinds["other-judge", "compass", False] == first
    # every response that the rule calls wrong is shown whole
    wrong = [v for v in store.read(folder / "verdicts.jsonl", Verdict) if not v.rule]
    assert first < kinds["judge", "justrl-exact", False] <= len(wrong)
    _again(world, folder)
    assert len(_judgements(folder)) == len(judgements)
    assert pure_files(folder)["verdicts.jsonl"] == pure_files(judged)["verdicts.jsonl"]


def test_a_judge_that_answers_in_another_form_scores_nothing_and_another_goes_on(
    world: Path, unjudged: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_model.build(tmp_path / "odd", says="ABxy")
    folder, odd = _copy(unjudged, tmp_path / "run"), {"judge": str(tmp_path / "odd")}
    with pytest.raises(RunFailed, match="no known form"):
        _again(world, folder, odd)
    known, unknown = {("A", "A", "letter"), ("B", "B", "letter")}, {("x", "", ""), ("y", "", "")}
    assert (read := {(j.reply, j.letter, j.form) for j in _judgements(folder)}) <= known | unknown
    assert read & unknown
    assert len(_judgements(folder)) < len(_judgements(judged))  # the others were not put
    assert (folder / "verdicts.jsonl").read_bytes() == (unjudged / "verdicts.jsonl").read_bytes()
    assert _record(folder).status == "failed"
    with monkeypatch.context() as m:
        m.setattr(verdicts, "make_engine", None)  # what is on record is enough
        with pytest.raises(RunFailed, match="no known form"):
            _again(world, folder, odd)
    judge_again(folder, Judging(judge="none"))
    assert _record(folder).status == "done"
    for name in ("verdicts.jsonl", "summary.json", *(f"cells/{p.name}" for p in (unjudged / "cells").iterdir())):
        assert (folder / name).read_bytes() == (unjudged / name).read_bytes()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 11))])
def test_killed_while_judging_it_ends_in_the_same_bytes(
    world: Path, unjudged: Path, judged: Path, tmp_path: Path, seed: int
) -> None:
    draw, folder = random.Random(seed), _copy(unjudged, tmp_path / "run")
    path, met, recorded = folder / "judgements.jsonl", 0, b""
    size = (judged / "judgements.jsonl").stat().st_size
    for _ in range(2):
        bar = draw.uniform(0, size)
        with forked(lambda: _again(world, folder)) as process:
            met += process.kill_when(lambda bar=bar: path.exists() and path.stat().st_size > bar)
        record = _record(folder)
        assert (record.status, record.config["judge"]) == ("running", str(world / "judge"))
        now = path.read_bytes() if path.exists() else b""
        assert now.startswith(recorded)  # nothing that was on record is gone or made again
        recorded = now[: now.rfind(b"\n") + 1]
    _again(world, folder)
    assert pure_files(folder) == pure_files(judged)
    assert met


def test_a_judge_at_an_endpoint_says_what_it_says_here_and_is_asked_again_with_its_key(
    world: Path, unjudged: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _copy(unjudged, tmp_path / "run")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("MY_KEY", KEY)
    with Server(world / "judge", name="verifier", key=KEY) as server:
        endpoint = {"judge": "verifier", "judge_url": (server.url,)}
        _again(world, folder, endpoint, key_variable="MY_KEY")
        for _ in range(2):
            # the engine's own check at the start is not greedy
            asked = [x for x in server.asked if x["temperature"] == 0]
            here, there = ({j.key: j.letter for j in _judgements(f)} for f in (judged, folder))
            assert len(asked) == len(there)
            assert there == here
            config = _record(folder).config
            assert (config["judge_url"], config["key_variable"]) == ([server.url], "MY_KEY")
            _again(world, folder, endpoint)  # the name of the key's variable is on record, and nothing is asked
        assert not [p for p in folder.rglob("*.json*") if KEY in p.read_text()]
        # a record of an older version hides the variable's name
        hidden = json.loads((folder / "run.json").read_text())
        hidden["config"]["key_variable"] = "(redacted)"
        (folder / "run.json").write_text(json.dumps(hidden))
        wider = endpoint | {"judge_scope": "all"}
        with pytest.raises(BadInput, match="--key-variable"):
            _again(world, folder, wider)
        _again(world, folder, wider, key_variable="MY_KEY")
    assert {c.judge.partition(" as ")[0] for c in _cells(folder)} == {"verifier"}
    assert {v.judge for v in store.read(folder / "verdicts.jsonl", Verdict)} <= {"correct", "incorrect", "invalid"}


def test_a_judge_that_nothing_fits_scores_nothing_and_with_more_positions_is_asked(
    world: Path, unjudged: Path, tmp_path: Path, capsys
) -> None:
    folder, prompt = _copy(unjudged, tmp_path / "run"), tmp_path / "long.txt"
    prompt.write_text(". " * 230 + judge_model.PROMPT)
    with Server(world / "judge", name="verifier", key=KEY) as server:
        flags = ["--judge", "verifier", "--judge-url", server.url, "--judge-prompt", str(prompt)]
        command = ["judge", "--run", str(folder), *flags, "--judge-prompt-unpublished", "--key-variable", "MY_KEY"]
        whole, server.engine.context = server.engine.context, 512
        with pytest.MonkeyPatch.context() as m:
            m.setenv("MY_KEY", KEY)
            assert main(command) == 1
            assert "512 positions" in capsys.readouterr().err
            assert ({j.status for j in _judgements(folder)}, _record(folder).status) == ({"too_long"}, "failed")
            assert {c.scored_by for c in _cells(folder)} == {"rule"}
            server.engine.context = whole
            assert main(command) == 0
    questions = {j.key for j in _judgements(folder)}
    assert {j.key for j in _judgements(folder) if j.status == "answered"} == questions
    assert {c.scored_by for c in _cells(folder)} == {"rule+judge"}


def test_a_benchmark_that_was_given_as_a_file_is_given_again(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f'{{"id": "m-{i}", "problem": "{i}?", "answer": "{i}"}}\n' for i in range(4)))
    whole = _run(world, tmp_path / "whole", benchmarks=str(path), n=3, **_judge(world))
    folder = _run(world, tmp_path / "run", benchmarks=str(path), n=3)
    with pytest.raises(BadInput, match="mine"):
        _again(world, folder)
    _again(world, folder, benchmarks=str(path))
    assert pure_files(folder) == pure_files(whole)
    path.write_text(path.read_text().replace("1?", "What is 1?"))
    with pytest.raises(BadInput, match="data:mine"):
        _again(world, folder, benchmarks=str(path))


def test_what_cannot_be_judged_is_refused(world: Path, unjudged: Path, tmp_path: Path, capsys) -> None:
    assert main(["judge", "--run", str(tmp_path / "nowhere"), "--judge", "x"]) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    with pytest.raises(BadInput, match="no folder /none"):
        _again(world, unjudged, {"judge": "/none", "judge_prompt": ""})
    short = _copy(unjudged, tmp_path / "short")
    lines = (short / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (short / "samples.jsonl").write_bytes(b"".join(lines[:-3]))
    with pytest.raises(BadInput, match="157 of 160"):
        _again(world, short)
    eval_model.benchmarks(tmp_path / "data", problems=11)
    with pytest.raises(BadInput, match="data:sums"):
        _again(world, unjudged, data_dir=str(tmp_path / "data"))
