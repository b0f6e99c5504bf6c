"""A finished evaluation with planted causes, in the real formats: each group of problems hangs on one of them."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from stapo_results import benchmarks, store
from stapo_results.schema import SETTINGS, Cell, CellRecord, ProblemResult, Run, Sample

N = 4
LONG = "so " * 40  # words before the box; a word is a token, a mark one more
# id -> (gold, responses, verdicts of the rule `ours`, judge's letters)
PROBLEMS = {
    **{f"g{i}": ("100000", ["\\boxed{10^5}"] * N, "1111", "....") for i in range(3)},  # graders: others do not see it
    **{f"l{i}": ("7", [LONG + "\\boxed{7}"] * N, "1111", "....") for i in range(3)},  # limit: the box comes late
    **{f"j{i}": ("5", ["It is five."] * N, "0000", "cccc") for i in range(3)},  # judge: no box, judged right
    "r0": ("1", ["\\boxed{1}", "\\boxed{1}", "\\boxed{2}", "\\boxed{2}"], "1100", "..ii"),  # chance
    "r1": ("1", ["\\boxed{2}", "\\boxed{1}", "\\boxed{2}", "\\boxed{2}"], "0100", "i.ii"),
}


def scored(rule: str, judged: str) -> str:
    return "".join("1" if j == "c" else r for r, j in zip(rule, judged, strict=True))


def build(
    folder: Path, *, name: str = "run", judge: bool = True, verdicts: dict[str, str] | None = None, n: int = N,
    setting: str = "t0.7", config: dict | None = None, hardware: dict | None = None, **changed,
) -> Path:  # fmt: skip
    """Write `data/` and `model/` once, and the run; returns its folder.

    Args:
        verdicts: of single problems, in the place of the planted ones; a problem's own responses stay.
        n: the first so many samples. changed: fields of the cell's record.
    """
    file = _data(folder)
    cell = Cell(method="external", size="tiny-lm", train_seed=0, step="base", benchmark="toy", setting=setting,
                eval_seed=changed.pop("eval_seed", 0))  # fmt: skip
    results, samples = [], []
    for problem, (_, responses, planted, letters) in PROBLEMS.items():
        rule = (verdicts or {}).get(problem, planted)[:n]
        asked = letters[:n] if judge else "." * n
        done = scored(rule, asked)
        extra = {"rule": rule, "judged": asked} if judge else {}
        results.append(ProblemResult(problem_id=problem, verdicts=done, **extra))
        samples += [_sample(cell, problem, i, responses[i]) for i in range(n)]
    temperature, top_p = SETTINGS.get(setting, (0.8, 0.9))
    benchmark = benchmarks.load(str(file))
    copy = benchmark.identity
    how = {"scored_by": "rule+judge" if judge else "rule",
           "judge": "acme/CompassVerifier-3B r1, scope rule-negatives, mode compass" if judge else ""}  # fmt: skip
    given = {
        "cell": cell, "n": n, "temperature": temperature, "top_p": top_p, "max_tokens": 64, **how,
        "grader": "ours, stapo-rules 1", "problems": results, "benchmark_rows": copy.rows,
        "benchmark_sha256": copy.golds_sha256, "finish_reasons": {"stop": n * len(PROBLEMS)}, "no_answer": 0,
        "mean_response_tokens": 9.0, "engine": "hf", "deterministic": True, "run_id": "abc123",
        "code_commit": "c" * 40, "code_dirty": "", "miniature": False, **changed,
        "revisions": {"model": "weights 1", "tokenizer": "sha256:2", "data:toy": benchmark.content}
        | changed.get("revisions", {}),
    }  # fmt: skip
    record = CellRecord(**given)
    run = folder / name
    store.write_json(run / "cells" / f"{cell.slug}.json", record)
    store.append(run / "samples.jsonl", samples)
    where = {"data_dir": str(folder / "data"), "model": str(folder / "model"), "dtype": "auto"} | (config or {})
    made = Run(run_id="abc123", kind="eval", status="done", command=["stapo-eval"], config=where, code_commit="c" * 40,
               code_dirty="", packages={"torch": "2"}, revisions={}, seeds={}, deterministic=True,
               hardware={"cpu": "x", "gpus": []} if hardware is None else hardware,
               started="2026-01-02T03:04:05+00:00")  # fmt: skip
    store.write_json(run / "run.json", made)
    return run


def _data(folder: Path) -> Path:
    file = folder / "data" / "toy.jsonl"
    if not file.exists():
        file.parent.mkdir(parents=True)
        lines = [{"id": i, "problem": f"Problem {i}?", "answer": gold} for i, (gold, *_) in PROBLEMS.items()]
        file.write_text("".join(json.dumps(x) + "\n" for x in lines))
        entry = benchmarks.registry_entry(file, "toy", samples=N)
        benchmarks.write_registry(file.parent / "registry.yaml", {"toy": entry})
        words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        (folder / "model").mkdir()
        words.save(str(folder / "model" / "tokenizer.json"))
    return file


def _sample(cell: Cell, problem: str, i: int, response: str) -> Sample:
    tokens = len(response.replace("{", " { ").split()) + 3
    return Sample(
        cell=cell.id, problem_id=problem, sample_index=i, seed=i, response=response, finish_reason="stop",
        prompt_tokens=7, response_tokens=tokens, logprob_sum=None, engine="hf",
    )  # fmt: skip
