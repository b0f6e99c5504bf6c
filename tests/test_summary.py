"""The summary of one cell by hand, its tables, and what a run cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stapo_eval.decoding import Decoding
from stapo_eval.models import ModelFiles
from stapo_eval.options import RunOptions
from stapo_eval.plan import EvaluationPlan, PlannedCell
from stapo_eval.scores import averages, cell_record, flip_notes, looks_repeated, notes, summarise
from stapo_eval.show import cost, print_summary
from stapo_results import store
from stapo_results.benchmarks import FIELDS, Benchmark, Rows, checked, describe, problems_of
from stapo_results.schema import Cell, CellRecord, Labels, Run, Sample, Verdict

CELL = Cell(method="m", size="s", train_seed=0, step=1, benchmark="b", setting="t1.0")


def _run(**changed) -> Run:
    return Run(run_id="r", kind="eval", status="done", command=[], config={}, code_commit="c", code_dirty="",
               packages={}, revisions={}, hardware={"gpus": []}, seeds={}, deterministic=True, started="2000",
               ).model_copy(update=changed)  # fmt: skip


def _sample(problem: int, i: int, tokens: int = 10, finish: str = "stop", cell: str = CELL.id) -> Sample:
    return Sample(cell=cell, problem_id=f"q{problem}", sample_index=i, seed=0, response="x", finish_reason=finish,
                  prompt_tokens=1, response_tokens=tokens, logprob_sum=None, engine="hf",
                  error="too long" if finish == "error" else "")  # type: ignore[arg-type]  # fmt: skip


def _verdict(s: Sample, extracted: str | None, correct: bool) -> Verdict:
    return Verdict(cell=s.cell, problem_id=s.problem_id, sample_index=s.sample_index, extracted=extracted, rule=correct,
                   reason="match" if correct else "no_answer" if extracted is None else "mismatch", preset="ours",
                   grader_version="v", judge="not_asked", judge_model="", judge_revision="", correct=correct,
                   )  # fmt: skip


def _benchmark(problems: int, samples: int) -> Benchmark:
    found = [{"id": f"q{i}", "problem": f"{i}?", "answer": "1"} for i in range(problems)]
    rows = Rows(found, "b.jsonl", FIELDS)
    spec = describe(problems_of("b", None, rows), title="b", samples=samples)
    return checked("b", spec, rows)


def _made(rows: list[list[tuple[str | None, bool, int, str]]]) -> tuple[CellRecord, list[Sample], list[Verdict]]:
    """A record of (extracted, correct, tokens, finish reason) a sample."""
    samples = [_sample(q, i, t, f) for q, row in enumerate(rows) for i, (_, _, t, f) in enumerate(row)]
    answers = [(a, c) for row in rows for a, c, _, _ in row]
    verdicts = [_verdict(s, a, c) for s, (a, c) in zip(samples, answers, strict=True)]
    plan, cell = _plan(_benchmark(len(rows), len(rows[0])))
    return cell_record(plan, _run(), cell, samples, verdicts), samples, verdicts


def _plan(b: Benchmark) -> tuple[EvaluationPlan, PlannedCell]:
    cell = PlannedCell(CELL, b, Decoding(1.0, 1.0, 99), b.problems, b.spec.samples)
    labels = Labels(method="m", size="s", train_seed=0, step=1)
    model = ModelFiles("m", Path("m"), "m", "", "", "", None)
    return EvaluationPlan(RunOptions(model="m"), model, None, labels, (cell,), Path("out"), _run()), cell


# problem means .5, 1, 0
ROWS = [
    [("1", True, 10, "stop"), ("2", False, 20, "stop"), ("$1$", True, 30, "stop"), (None, False, 99, "length")],
    [("1", True, 10, "stop"), ("1.", True, 20, "stop"), ("1", True, 30, "stop"), ("1", True, 40, "length")],
    [("7", False, 10, "stop"), (None, False, 99, "length"), (None, False, 99, "length"), ("8", False, 20, "stop")],
]


def test_summary_by_hand() -> None:
    record, samples, verdicts = _made(ROWS)
    s = summarise(record, samples, verdicts)
    assert (s["correct"], s["samples"], s["missing"], s["n"], s["problems"]) == (6, 12, 0, 4, 3)
    assert s["accuracy"] == 0.5
    # squares .5; SE sqrt(.5 / 6) = .288675; t(.975, 2) = 4.30265: wider than the scale
    assert s["standard_error"] == pytest.approx(0.28867513)
    assert (s["low"], s["high"]) == (0.0, 1.0)
    # of 27 resamples the least (0 0 0) and the greatest (1 1 1) have 3.7 % each: both ends of a 95 % interval
    assert (s["bootstrap_low"], s["bootstrap_high"]) == (0.0, 1.0)
    # pass@1 the mean; pass@4 two of three
    assert s["pass_at"] == {"1": 0.5, "4": pytest.approx(2 / 3)}
    # maj@4: 1 has two votes ("1" and "$1$") against one for 2: right; right; 7 and 8 tie, both wrong
    assert s["majority_at"] == {"1": 0.5, "4": pytest.approx(2 / 3)}
    # within: variances 1/3 0 0; between: variance of the means .25 less (1/9) / 4
    assert s["variance_within"] == pytest.approx(1 / 9, abs=1e-8)
    assert s["variance_between"] == pytest.approx(0.25 - 1 / 36, abs=1e-8)
    assert (s["truncated"], s["no_answer"]) == (pytest.approx(4 / 12), 0.25)
    assert s["finish_reasons"] == {"correct": {"stop": 5, "length": 1}, "incorrect": {"stop": 3, "length": 3}}
    # correct: 10 10 20 30 30 40, incorrect: 10 20 20 99 99 99
    right, wrong = s["response_tokens"]["correct"], s["response_tokens"]["incorrect"]
    assert [right[k] for k in ("p25", "p50", "p75", "max")] == [12.5, 25, 30, 40]
    assert [wrong[k] for k in ("p25", "p50", "p75", "max")] == [20, 59.5, 99, 99]
    assert s["judge"] == {"correct": 0, "incorrect": 0, "invalid": 0}
    assert s["audit"]["asked"] == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\frac12", "0.50"),
        (r"\left(3\right)", "(3)"),
        (r"10,\!080", "10080"),
        (r"\text{13}", "13"),
        (r"90^\circ", "90"),
        (f"{10**300}", f"${10**300}$"),
    ],
)
def test_an_answer_typeset_in_two_ways_has_both_votes(first: str, second: str) -> None:
    """Two right votes stand against one wrong: maj@3 is 1. As three answers they would share it: 2/3."""
    row = [(answer, right, 10, "stop") for answer, right in ((first, True), (second, True), ("7", False))]
    record, samples, verdicts = _made([row])
    assert summarise(record, samples, verdicts)["majority_at"]["3"] == 1


def test_answers_that_the_judge_alone_sees_are_counted_and_noted_above_a_tenth() -> None:
    """Of eleven responses that the judge turns to right two have no box, one of them and no other is cut off."""
    row = [(None, False, 10, "length"), (None, False, 10, "stop"), *[("7", False, 10, "stop")] * 9]
    _, samples, verdicts = _made([row, [(None, False, 10, "length"), *[("1", True, 10, "stop")] * 10]])
    said = [{"judge": "correct", "correct": True}] * 11 + [{"judge": "incorrect"}] + [{}] * 10
    verdicts = [v.model_copy(update=more) for v, more in zip(verdicts, said, strict=True)]
    plan, cell = _plan(_benchmark(2, 11))
    record = cell_record(plan, _run(), cell, samples, verdicts).model_copy(update={"scored_by": "rule+judge"})
    s = summarise(record, samples, verdicts)
    assert [s["audit"][k] for k in ("flips_to_correct", "flips_without_answer", "flips_cut_off")] == [11, 2, 1]
    (note,) = flip_notes([s])
    assert re.findall(r" (\d+) ", note) == ["11", "2"]
    s["audit"]["flips_to_correct"] = 20  # two are a tenth
    assert flip_notes([s]) == flip_notes([s | {"scored_by": "rule"}]) == []


def test_missing_samples_are_loud_and_never_wrong() -> None:
    rows = [list(ROWS[0]), [("1", True, 10, "stop"), *[(None, False, 0, "error")] * 3]]
    record, samples, verdicts = _made(rows)
    assert [p.verdicts for p in record.problems] == ["1010", "1---"]
    s = summarise(record, samples, verdicts)
    # over those that are there: .5 and 1
    assert (s["missing"], s["accuracy"], s["correct"]) == (3, 0.75, 3)
    assert set(s["pass_at"].values()) == set(s["majority_at"].values()) == {None}
    assert s["variance_within"] is s["variance_between"] is None
    assert s["finish_reasons"]["incorrect"] == {"stop": 1, "length": 1}
    # cut off and without a box: 1 of the 5 that are there; their mean length (10 + 20 + 30 + 99 + 10) / 5
    assert (s["truncated"], s["no_answer"]) == (0.2, 0.2)
    assert record.mean_response_tokens == s["mean_response_tokens"] == 33.8
    (note,) = notes([record], samples)
    assert [part in note for part in ("3 samples", CELL.id, "too long")] == [True] * 3


def _cell(texts: list[list[str]], logprob: float | None) -> tuple[CellRecord, list[Sample]]:
    """A record of responses by problem, each as likely as `logprob` says."""
    _, samples, verdicts = _made([[("1", True, 10, "stop")] * len(row) for row in texts])
    said = [t for row in texts for t in row]
    samples = [s.model_copy(update={"response": t, "logprob_sum": logprob}) for s, t in zip(samples, said, strict=True)]
    plan, cell = _plan(_benchmark(len(texts), len(texts[0])))
    return cell_record(plan, _run(), cell, samples, verdicts), samples


@pytest.mark.parametrize(
    ("identical", "logprob", "by_chance", "alarm"),
    [
        (10, -50.0, 0.0, True),  # ten repeats of one text each
        (10, None, 0.0, True),
        (6, -50.0, 0.0, True),
        (5, -50.0, 0.0, False),  # not more than half
        (10, -0.01, 9.704, False),  # a model that is sure: exp(-.01 x 3) each
        (10, -0.3, 4.066, False),
        (10, -1.0, 0.498, True),
        (0, -50.0, 0.0, False),
    ],
)
def test_samples_that_are_one_text_alarm_where_their_probability_does_not_explain_them(
    identical: int, logprob: float | None, by_chance: float, alarm: bool
) -> None:
    texts = [[f"{q}"] * 4 for q in range(identical)] + [list("aaab")] * (10 - identical)
    record, samples = _cell(texts, logprob)
    assert (record.identical_problems, record.identical_by_chance) == (identical, by_chance)
    assert looks_repeated(record) == alarm
    assert len(notes([record], samples)) == alarm


def test_an_endpoints_log_probabilities_that_explain_less_are_no_alarm() -> None:
    record, samples = _cell([["same"] * 4] * 10, -15.0)
    (said,) = notes([record.model_copy(update={"engine": "openai tiny"})], samples)
    assert not said.startswith("ALARM")


def test_an_older_record_and_single_samples_say_nothing_of_identical_texts() -> None:
    record, _ = _cell([["a"], ["b"], ["c"]], -50.0)
    assert record.identical_problems == 0
    old = record.model_dump(mode="json")
    del old["identical_problems"], old["identical_by_chance"]
    assert CellRecord(**old).identical_problems is None
    assert not looks_repeated(CellRecord(**old))


def test_without_spread_the_bootstrap_gives_no_interval() -> None:
    record, samples, verdicts = _made([[("7", False, 5, "stop")] * 2] * 4)
    s = summarise(record, samples, verdicts)
    # 1 - .025 ** (1 / 4)
    assert (s["accuracy"], s["low"], s["high"]) == (0.0, 0.0, pytest.approx(0.60236, abs=1e-5))
    assert s["bootstrap_low"] is s["bootstrap_high"] is None
    assert s["response_tokens"]["correct"]["p50"] is None


def test_averages_are_by_setting_and_count_benchmarks_alike() -> None:
    record, _, _ = _made(ROWS)
    easy, _, _ = _made([[("1", True, 1, "stop")] * 4, [("1", True, 1, "stop")] * 3 + [("2", False, 1, "stop")]])
    other = easy.model_copy(update={"cell": CELL.model_copy(update={"setting": "t0.7"})})
    whole, alone = averages([record, easy, other])
    assert (whole["setting"], whole["benchmarks"], whole["accuracy"]) == ("t1.0", 2, pytest.approx((0.5 + 0.875) / 2))
    # SEs sqrt(.5 / 6) and .125: sqrt(.083333 + .015625) / 2
    assert whole["standard_error"] == pytest.approx(0.157288, abs=1e-6)
    assert (alone["setting"], alone["benchmarks"], alone["accuracy"]) == ("t0.7", 1, 0.875)


def test_the_tables_print_every_k_and_n_and_what_it_cost(tmp_path: Path, capsys) -> None:
    record, samples, verdicts = _made(ROWS)
    cells = [summarise(record, samples, verdicts)]
    summary: dict[str, Any] = {"model": "m", "cells": cells, "averages": averages([record]), "notes": ["careful"]}
    # 487 tokens of the twelve responses in 9 s; 8 GPUs for 90 s
    config = {"engine": "vllm", "replicas": 4, "tensor_parallel": 2}
    timed = _run(hardware={"gpus": ["H"] * 8}, config=config, generating_seconds=9.0, wall_seconds=90.0)
    store.write_json(tmp_path / "run.json", timed)
    print_summary(summary, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    score, response = (x.split() for x in lines if x.split()[:1] == ["b"])
    assert score == ["b", "t1.0", "4", "50.0", "28.9", "[0.0,", "100.0]", "[0.0,", "100.0]", "6/12", "66.7", "66.7"]
    assert response == ["b", "t1.0", "33.3", "25.0", "25", "/", "60", "38", "/", "99"]
    assert lines[-3:-1] == [
        "note: careful", "cost: 487 tokens in 9.0 s, 54 tokens per second, GPU hours 0.20"]  # fmt: skip
    for changed in ({"generating_seconds": None}, {"hardware": {"gpus": []}}, {"config": {"engine": "openai"}}):
        assert "not known" in cost(summary, timed.model_copy(update=changed))
