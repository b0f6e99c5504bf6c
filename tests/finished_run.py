"""A finished run of one toy benchmark in two settings, written record by record: every number is known by hand."""

from __future__ import annotations

import json
from pathlib import Path

from stapo_results import benchmarks, store
from stapo_results.schema import SETTINGS, Cell, CellRecord, ProblemResult, Run, Sample, Verdict

PROBLEMS = [
    {"id": "toy-a", "problem": "One plus one?", "answer": "2"},
    {"id": "toy-b", "problem": "Roots of $x^2 = 4$?", "answer": ["2", "-2"], "unit": "m"},
    {"id": "toy-c", "problem": 'Half of "three"? é', "answer": r"\frac{3}{2}"},
]
# per problem the extracted answers of four samples; x is an engine's failure
ANSWERS = {
    "t1.0": {"toy-a": ["2", r"\text{2}", "3", None], "toy-b": ["2,-2"] * 4, "toy-c": ["3", "2", "1", "3"]},
    "t0.7": {"toy-a": ["2", "2", "x", "2"], "toy-b": ["2,-2"] * 4, "toy-c": ["3", r"\frac{3}{2}", "1", "3"]},
}
RIGHT = {"toy-a": ("2", r"\text{2}"), "toy-b": ("2,-2",), "toy-c": (r"\frac{3}{2}",)}
VERDICTS = {
    "t1.0": {"toy-a": "1100", "toy-b": "1111", "toy-c": "0000"},
    "t0.7": {"toy-a": "11-1", "toy-b": "1111", "toy-c": "0100"},
}
REVISIONS = {"model": "sha256:0", "tokenizer": "sha256:1"}


def _right(problem: str, answer: str | None) -> bool:
    return answer in RIGHT[problem]


def _text(answer: str | None) -> str:
    return "I do not know.\x00\n" if answer is None else f"So it is\n\\boxed{{{answer}}}."


def build(folder: Path) -> Path:
    """Write `data/` with a registry, and `run/`; returns the folder."""
    data, run = folder / "data", folder / "run"
    data.mkdir(parents=True)
    file = data / "toy.jsonl"
    file.write_text("".join(json.dumps(p) + "\n" for p in PROBLEMS), encoding="utf-8")
    entry = benchmarks.registry_entry(file, "toy", samples=4, answer_type="math", unordered=True)
    benchmarks.write_registry(data / "registry.yaml", {"toy": entry})
    samples, verdicts = [], []
    for setting in ANSWERS:
        cell = Cell(method="stapo", size="mini", train_seed=0, step=40, benchmark="toy", setting=setting)
        for problem, answers in ANSWERS[setting].items():
            for i, a in enumerate(answers):
                samples.append(_sample(cell, problem, i, a))
                verdicts.append(_verdict(cell, problem, i, a))
        store.write_json(run / "cells" / f"{cell.slug}.json", _record(cell, file))
    store.append(run / "samples.jsonl", reversed(samples))  # arrival order is not the records' order
    store.append(run / "verdicts.jsonl", verdicts)
    store.write_json(run / "run.json", _run(data))
    return folder


def _sample(cell: Cell, problem: str, i: int, answer: str | None) -> Sample:
    failed = answer == "x"
    return Sample(
        cell=cell.id, problem_id=problem, sample_index=i, seed=100 + i, response="" if failed else _text(answer),
        finish_reason="error" if failed else "length" if answer is None else "stop", prompt_tokens=7,
        response_tokens=0 if failed else 5, logprob_sum=None if failed else -1.5, engine="hf",
        error="the prompt is too long" if failed else "",
    )  # fmt: skip


def _verdict(cell: Cell, problem: str, i: int, answer: str | None) -> Verdict:
    right = _right(problem, answer)
    extracted = None if answer in (None, "x") else answer
    reason = "error" if answer == "x" else "no_answer" if answer is None else "match" if right else "mismatch"
    return Verdict(
        cell=cell.id, problem_id=problem, sample_index=i, extracted=extracted, rule=right, reason=reason,
        preset="ours", grader_version="g 1", judge="not_asked", judge_model="", judge_revision="", correct=right,
    )  # fmt: skip


def _record(cell: Cell, file: Path) -> CellRecord:
    copy = benchmarks.load(str(file))
    temperature, top_p = SETTINGS[cell.setting]
    missing = sum(v.count("-") for v in VERDICTS[cell.setting].values())
    finished = {"stop": 12 - missing} | ({"error": missing} if missing else {})
    return CellRecord(
        cell=cell, n=4, temperature=temperature, top_p=top_p, max_tokens=32, scored_by="rule",
        problems=[ProblemResult(problem_id=k, verdicts=v) for k, v in VERDICTS[cell.setting].items()],
        benchmark_rows=3, benchmark_sha256=copy.golds_sha256, finish_reasons=finished, no_answer=0,
        mean_response_tokens=5.0, engine="hf", deterministic=True, run_id="abc123", code_commit="c" * 40,
        code_dirty="", revisions=REVISIONS, miniature=True,
    )  # fmt: skip


def _run(data: Path) -> Run:
    return Run(
        run_id="abc123", kind="eval", status="done", command=["stapo-eval"],
        config={"benchmarks": ["toy"], "data_dir": str(data)},
        code_commit="c" * 40, code_dirty="", packages={"torch": "2"}, revisions=REVISIONS, hardware={},
        seeds={"eval_seed": 0}, deterministic=True, started="2026-01-02T03:04:05+00:00", wall_seconds=1.5,
    )  # fmt: skip
