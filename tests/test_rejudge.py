"""`stapo-eval judge` and the judge inside a run, with a real model: same bytes either way, nothing asked twice."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import eval_model
import judge_model
import pytest
from endpoint_server import KEY, Server
from forked import forked

from stapo_eval import run as running
from stapo_eval import verdicts
from stapo_eval.cli import main
from stapo_eval.judge import asking, published
from stapo_eval.judge.asking import scored
from stapo_eval.judge.published import Prompt, Source
from stapo_eval.judge.rejudge import rejudge
from stapo_eval.options import JudgeOptions, RunOptions
from stapo_eval.run import run
from stapo_eval.verdicts import OTHER_RULE, UNPUBLISHED
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import CellRecord, Judgement, Run, Sample, Timing, Verdict

PURE = ("samples.jsonl", "judgements.jsonl", "verdicts.jsonl", "summary.json")


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


def _prompt(world: Path, flag: str = "") -> dict:
    return {f"{flag}prompt": str(world / "prompt.txt"), f"{flag}prompt_unpublished": True}


def _run(world: Path, out: Path, **more) -> Path:
    known = {
        "model": str(world / "model"),
        "benchmarks": "sums,longer-sums",
        "data_dir": str(world / "data"),
        "max_tokens": 24,
        "threads": 1,
        "batch_rows": 16,
    }
    run(RunOptions(**(known | _prompt(world, "judge_") | {"out": str(out)} | more)))
    return out


@pytest.fixture(scope="module")
def judged(world: Path) -> Path:
    """A run with the judge from the start."""
    return _run(world, world / "judged", judge=str(world / "judge"))


@pytest.fixture(scope="module")
def unjudged(world: Path) -> Path:
    return _run(world, world / "unjudged")


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock"))
    return target


def _files(out: Path) -> dict[str, bytes]:
    names = [*PURE, *(f"cells/{p.name}" for p in (out / "cells").iterdir())]
    return {n: (out / n).read_bytes() for n in names}


def _options(world: Path, folder: Path, **more) -> JudgeOptions:
    return JudgeOptions(**({"run": str(folder), "judge": str(world / "judge")} | _prompt(world) | more))


def _question(s: Sample, said: Verdict | Judgement) -> tuple[str, str | None, str | None]:
    alone = said.extracted is None or s.finish_reason == "length"
    return s.problem_id, said.extracted, s.response if alone else None


def test_each_distinct_question_is_asked_once_and_its_word_counts(judged: Path) -> None:
    samples = list(store.read(judged / "samples.jsonl", Sample))
    verdicts = {(v.cell, v.problem_id, v.sample_index): v for v in store.read(judged / "verdicts.jsonl", Verdict)}
    judgements = list(store.read(judged / "judgements.jsonl", Judgement))
    assert len({j.key for j in judgements}) == len(judgements)
    # by rule wrong: each answer to a problem once over both settings, each response without one or cut off by itself
    wrong = [(s, verdicts[s.cell, s.problem_id, s.sample_index]) for s in samples]
    wrong = [(s, v) for s, v in wrong if not v.rule]
    questions = {_question(s, v) for s, v in wrong}
    assert len({q for q in questions if q[2] is None}) < sum(_question(s, v)[2] is None for s, v in wrong)
    assert len(judgements) == len(questions) < len(wrong)
    assert {j.letter for j in judgements} == {"A", "B", "C"}
    sample_of = {(s.cell, s.problem_id, s.sample_index): s for s in samples}
    shown = [sample_of[j.cell, j.problem_id, j.sample_index] for j in judgements]
    by_question = {_question(s, j): j for s, j in zip(shown, judgements, strict=True)}
    meaning = {"A": "correct", "B": "incorrect", "C": "invalid"}
    for key, v in verdicts.items():
        assert v.correct == scored(v.rule, v.judge)
        assert (v.judge == "not_asked") == v.rule
        if not v.rule:
            assert v.judge == meaning[by_question[_question(sample_of[key], v)].letter]
    assert any(v.correct and not v.rule for v in verdicts.values())
    times = [t for t in store.read(judged / "timings.jsonl", Timing) if t.kind == "judge"]
    assert len(times) == len(judgements)
    assert all(t.elapsed and t.elapsed > 0 for t in times)


def test_judging_afterwards_gives_the_bytes_of_a_run_with_the_judge(
    world: Path, judged: Path, unjudged: Path, tmp_path: Path
) -> None:
    folder = _copy(unjudged, tmp_path / "run")
    rejudge(_options(world, folder))
    assert _files(folder) == _files(judged)
    before, after = (store.read_json(f / "run.json", Run) for f in (judged, folder))
    assert (after.run_id, after.revisions, after.status) == (before.run_id, before.revisions, "done")
    assert "judge weights" in after.resumptions[-1].start
    # the folder is now the run with the judge: its command goes on with it, and finds nothing to do
    scores = json.loads((folder / "summary.json").read_text())
    _run(world, folder, judge=str(world / "judge"))
    assert json.loads((folder / "summary.json").read_text()) == scores


def test_a_wider_scope_asks_only_what_is_new(world: Path, judged: Path, tmp_path: Path) -> None:
    folder = _copy(judged, tmp_path / "run")
    rejudge(_options(world, folder, scope="all"))
    before, after = (f.joinpath("judgements.jsonl").read_bytes() for f in (judged, folder))
    assert after.startswith(before)
    new = [Judgement.model_validate_json(x) for x in after[len(before) :].splitlines()]
    verdicts = list(store.read(folder / "verdicts.jsonl", Verdict))
    samples = store.read(folder / "samples.jsonl", Sample)
    right = {_question(s, v) for s, v in zip(samples, verdicts, strict=True) if v.rule}
    assert {(j.problem_id, j.extracted) for j in new} == {q[:2] for q in right}
    assert len(new) == len(right)
    assert {v.judge for v in verdicts} <= {"correct", "incorrect", "invalid"}
    assert any(v.rule and not v.correct for v in verdicts)
    for v in verdicts:
        assert v.correct == (v.judge == "correct")
    summary = json.loads((folder / "summary.json").read_text())
    total = Counter()
    for c in summary["cells"]:
        for row, said in c["audit"]["confusion"].items():
            total.update({(row, k): n for k, n in said.items()})
    expected = Counter(("rule_correct" if v.rule else "rule_incorrect", v.judge) for v in verdicts)
    assert +total == expected


def test_another_judge_and_the_mode_of_justrl_are_asked_anew(
    world: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, source = _copy(judged, tmp_path / "run"), Source("", "", "", "", Prompt(judge_model.PROMPT).sha256)
    rejudge(_options(world, folder, judge=str(world / "other-judge")))
    monkeypatch.setitem(published.PUBLISHED, "justrl-exact", (source,))
    rejudge(_options(world, folder, mode="justrl-exact", prompt_unpublished=False))
    judgements = list(store.read(folder / "judgements.jsonl", Judgement))
    kinds = Counter((j.judge_model, j.judge_mode) for j in judgements)
    first = kinds["judge", "compass"]
    assert kinds["other-judge", "compass"] == first
    # every response that the rule calls wrong is shown whole
    wrong = [v for v in store.read(folder / "verdicts.jsonl", Verdict) if not v.rule]
    assert first < kinds["judge", "justrl-exact"] <= len(wrong)
    cell = store.read_json(next((folder / "cells").iterdir()), CellRecord)
    assert cell.judge.endswith("mode justrl-exact")
    assert cell.judge_note == OTHER_RULE
    # and back: all of it is on record
    rejudge(_options(world, folder))
    assert len(list(store.read(folder / "judgements.jsonl", Judgement))) == len(judgements)
    assert _files(folder)["verdicts.jsonl"] == _files(judged)["verdicts.jsonl"]


def test_a_judge_that_answers_in_another_form_scores_nothing_and_another_goes_on(
    world: Path, unjudged: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_model.build(tmp_path / "odd", says="ABxy")
    folder = _copy(unjudged, tmp_path / "run")
    before = (folder / "verdicts.jsonl").read_bytes()
    with pytest.raises(RunFailed, match="no known form"):
        rejudge(_options(world, folder, judge=str(tmp_path / "odd")))
    replies = list(store.read(folder / "judgements.jsonl", Judgement))
    known, unknown = {("A", "A", "letter"), ("B", "B", "letter")}, {("x", "", ""), ("y", "", "")}
    assert (read := {(j.reply, j.letter, j.form) for j in replies}) <= known | unknown
    assert read & unknown
    assert len(replies) < len(list(store.read(judged / "judgements.jsonl", Judgement)))  # the others were not put
    assert (folder / "verdicts.jsonl").read_bytes() == before
    assert store.read_json(folder / "run.json", Run).status == "failed"
    with monkeypatch.context() as m:
        m.setattr(verdicts, "_open_judge", None)  # what is on record is enough
        with pytest.raises(RunFailed, match="no known form"):
            rejudge(_options(world, folder, judge=str(tmp_path / "odd")))
    rejudge(_options(world, folder, judge="none"))
    assert store.read_json(folder / "run.json", Run).status == "done"
    for name in ("verdicts.jsonl", "summary.json", *(f"cells/{p.name}" for p in (unjudged / "cells").iterdir())):
        assert (folder / name).read_bytes() == (unjudged / name).read_bytes()
    rejudge(_options(world, folder))
    assert _files(folder)["verdicts.jsonl"] == _files(judged)["verdicts.jsonl"]


def test_another_prompt_is_another_judge_and_one_that_is_not_published_is_said(
    world: Path, judged: Path, tmp_path: Path
) -> None:
    folder, other = _copy(judged, tmp_path / "run"), tmp_path / "other.txt"
    other.write_text(judge_model.PROMPT.replace("LETTER", "WELL?"))
    with pytest.raises(BadInput, match=r"other\.txt") as refused:
        rejudge(_options(world, folder, prompt=str(other), prompt_unpublished=False))
    used = Prompt(other.read_text())
    assert used.sha256 in str(refused.value)
    before = store.read_json(folder / "run.json", Run)
    rejudge(_options(world, folder, prompt=str(other)))
    replies = Counter(j.prompt_sha256 for j in store.read(folder / "judgements.jsonl", Judgement))
    assert set(replies) == {Prompt(judge_model.PROMPT).sha256, used.sha256}
    assert len(set(replies.values())) == 1
    after = store.read_json(folder / "run.json", Run)
    assert after.revisions["judge prompt"] == f"sha256:{used.sha256} not published"
    assert after.run_id != before.run_id
    assert all(store.read_json(p, CellRecord).judge_note == UNPUBLISHED for p in (folder / "cells").iterdir())


def test_the_same_judge_asked_twice_is_one_resumption(world: Path, unjudged: Path, tmp_path: Path) -> None:
    folder = _copy(unjudged, tmp_path / "run")
    rejudge(_options(world, folder))
    before = (folder / "run.json").read_bytes()
    rejudge(_options(world, folder))
    assert (folder / "run.json").read_bytes() == before
    (resumption,) = store.read_json(folder / "run.json", Run).resumptions
    assert resumption.start.startswith("judged by ")


def test_an_interrupted_judge_leaves_a_true_record(
    world: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _copy(judged, tmp_path / "run")
    other = _options(world, folder, judge=str(world / "other-judge"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(running, "verdicts_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rejudge(other)
    record = store.read_json(folder / "run.json", Run)
    assert (record.status, Path(record.config["judge"]).name) == ("interrupted", "other-judge")
    rejudge(other)
    record = store.read_json(folder / "run.json", Run)
    assert (record.status, Path(record.config["judge"]).name) == ("done", "other-judge")
    assert {j.judge_model for j in store.read(folder / "judgements.jsonl", Judgement)} == {"judge", "other-judge"}


def test_cut_anywhere_and_judged_again_it_ends_in_the_same_bytes(world: Path, judged: Path, tmp_path: Path) -> None:
    lines = 23
    folder = _copy(judged, tmp_path / "run")
    whole = (judged / "judgements.jsonl").read_bytes().splitlines(keepends=True)
    assert len(whole) > lines
    (folder / "judgements.jsonl").write_bytes(b"".join(whole[:lines]) + whole[lines][:50])
    rejudge(_options(world, folder))
    assert _files(folder) == _files(judged)


def test_a_judge_at_an_endpoint_says_what_it_says_here(
    world: Path, unjudged: Path, judged: Path, tmp_path: Path
) -> None:
    folder = _copy(unjudged, tmp_path / "run")
    with Server(world / "judge", name="verifier") as server:
        rejudge(_options(world, folder, judge="verifier", url=(server.url,)))
        # the engine's own check at the start is not greedy; each question is asked once
        asked = [x for x in server.asked if x["temperature"] == 0]
        here = {j.key: j for j in store.read(judged / "judgements.jsonl", Judgement)}
        there = {j.key: j for j in store.read(folder / "judgements.jsonl", Judgement)}
        assert len(asked) == len(there) == len(here)
        assert {k: j.letter for k, j in there.items()} == {k: j.letter for k, j in here.items()}
        cell = store.read_json(next((folder / "cells").iterdir()), CellRecord)
        assert cell.judge.startswith("verifier as an endpoint")
        # all of it is on record
        rejudge(_options(world, folder, judge="verifier", url=(server.url,)))
        assert len([x for x in server.asked if x["temperature"] == 0]) == len(asked)
    run_record = store.read_json(folder / "run.json", Run)
    assert run_record.config["judge_url"] == [server.url]


def test_a_judge_at_an_endpoint_with_a_key_is_asked_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("MY_KEY", KEY)
    with Server(world / "judge", name="verifier", key=KEY) as server:
        asked = {"judge": "verifier", "judge_url": (server.url,), "key_variable": "MY_KEY"}
        folder = _run(world, tmp_path / "run", benchmarks="sums", settings="t1.0", n=2, **asked)
        again = _options(world, folder, judge="verifier", url=(server.url,), scope="all")
        rejudge(again)
        assert store.read_json(folder / "run.json", Run).config["key_variable"] == "MY_KEY"
        assert {v.judge for v in store.read(folder / "verdicts.jsonl", Verdict)} <= {"correct", "incorrect", "invalid"}
        assert not [p for p in folder.rglob("*.json*") if KEY in p.read_text()]
        # a record of an older version hides the variable's name
        hidden = json.loads((folder / "run.json").read_text())
        hidden["config"]["key_variable"] = "(redacted)"
        (folder / "run.json").write_text(json.dumps(hidden))
        with pytest.raises(BadInput, match="--key-variable"):
            rejudge(again)
        (folder / "judgements.jsonl").unlink()
        rejudge(replace(again, key_variable="MY_KEY", scope="rule-negatives"))
        assert store.read_json(folder / "run.json", Run).config["key_variable"] == "MY_KEY"


def test_a_benchmark_that_was_given_as_a_file_is_given_again(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f'{{"id": "m-{i}", "problem": "{i}?", "answer": "{i}"}}\n' for i in range(4)))
    whole = _run(world, tmp_path / "whole", benchmarks=str(path), n=3, judge=str(world / "judge"))
    folder = _run(world, tmp_path / "run", benchmarks=str(path), n=3)
    with pytest.raises(BadInput, match="mine"):
        rejudge(_options(world, folder))
    rejudge(_options(world, folder, benchmarks=str(path)))
    assert _files(folder) == _files(whole)
    path.write_text(path.read_text().replace("1?", "What is 1?"))
    with pytest.raises(BadInput, match="mine"):
        rejudge(_options(world, folder, benchmarks=str(path)))


def test_what_cannot_be_judged_is_refused(world: Path, unjudged: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=str(tmp_path)):
        rejudge(_options(world, tmp_path))
    short = _copy(unjudged, tmp_path / "short")
    lines = (short / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (short / "samples.jsonl").write_bytes(b"".join(lines[:-3]))
    with pytest.raises(BadInput, match="157 of 160"):
        rejudge(_options(world, short))
    eval_model.benchmarks(tmp_path / "data", problems=11)
    with pytest.raises(BadInput, match="sums"):
        rejudge(_options(world, unjudged, data_dir=str(tmp_path / "data")))
    with pytest.raises(BadInput, match="--judge-scope"):
        rejudge(_options(world, unjudged, scope="all", mode="justrl-exact"))


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
        with forked(lambda: rejudge(_options(world, folder))) as process:
            met += process.kill_when(lambda bar=bar: path.exists() and path.stat().st_size > bar)
        now = path.read_bytes() if path.exists() else b""
        assert now.startswith(recorded)  # nothing that was on record is gone or made again
        recorded = now[: now.rfind(b"\n") + 1]
    rejudge(_options(world, folder))
    assert _files(folder) == _files(judged)
    assert met


def test_the_command_line_judges_and_prints_the_judges_share(
    world: Path, unjudged: Path, tmp_path: Path, capsys
) -> None:
    folder = _copy(unjudged, tmp_path / "run")
    flags = ["--prompt", str(world / "prompt.txt"), "--prompt-unpublished"]
    assert main(["judge", "--run", str(folder), "--judge", str(world / "judge"), *flags]) == 0
    out = capsys.readouterr().out
    share = out[out.index("the judge's share") :]
    row = next(x.split() for x in share.splitlines() if x.split()[:2] == ["sums", "t1.0"])
    (cell,) = (store.read_json(p, CellRecord) for p in (folder / "cells").glob("*_sums_t1.0_*"))
    rule, scores = ("".join(getattr(p, k) for p in cell.problems).count("1") for k in ("rule", "verdicts"))
    assert row[2:4] == [f"{rule / 0.4:.1f}", f"{scores / 0.4:.1f}"]
    assert row[-2:] == [f"{scores - rule}/0", f"{(scores - rule) / (40 - rule) * 100:.1f}"]
    assert main(["judge", "--run", str(tmp_path / "nowhere"), "--judge", "x"]) == 2


def test_a_judge_that_has_no_room_for_any_question_leaves_the_rule(
    world: Path, unjudged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "fitted_prompt", lambda *_: None)
    out = _copy(unjudged, tmp_path / "run")
    summary = rejudge(_options(world, out))
    note = summary["notes"][-1]
    count = len(list(store.read(out / "judgements.jsonl", Judgement)))
    assert note.startswith(f"{count} of {count} questions")
    assert all(v.correct == v.rule and v.judge == "not_asked" for v in store.read(out / "verdicts.jsonl", Verdict))
    for c in summary["cells"]:
        assert c["judge_unanswered"] == {"too_long": c["samples"] - c["correct"]}
