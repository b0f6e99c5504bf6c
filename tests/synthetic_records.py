"""Made-up records for tests of tables and figures. Every one says that it is synthetic; none may stand in results/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stapo_repro import labels
from stapo_results.schema import Cell, CellRecord, ProblemResult, Run, StepMetrics
from stapo_results.sizes import is_miniature_size
from stapo_results.store import append, write_json

QUANTILES = (5, 25, 50, 75, 80, 95, 99)
METHODS = ("grpo", "entropy20", "justrl", "stapo", "justrl-fullmask", "stapo-high-entropy", "stapo-random")


def cell(
    root: Path, method: str, benchmark: str, setting: str, verdicts: list[str], *, size: str = "mini", seed: int = 0,
    step: int | str | None = None, rows: int | None = None, folder: str = "", **changed,
) -> Path:  # fmt: skip
    """Write one record; `verdicts` is a string of 1, 0, - a problem."""
    where = Cell(
        method=method,
        size=size,
        train_seed=seed,
        step=step if step is not None else "base" if method == "base" else 40,  # type: ignore[arg-type]
        benchmark=benchmark,
        setting=setting,
    )
    given = {
        "cell": where,
        "n": len(verdicts[0]),
        "temperature": 1.0 if setting == "t1.0" else 0.7,
        "top_p": 1.0 if setting == "t1.0" else 0.9,
        "max_tokens": 128,
        "scored_by": "rule",
        "judge_note": "The judge was a stand-in; its verdicts are recorded and not scored",
        "problems": [ProblemResult(problem_id=f"q{i}", verdicts=v) for i, v in enumerate(verdicts)],
        "benchmark_rows": rows or len(verdicts),
        "benchmark_sha256": "0" * 64,
        "finish_reasons": finish_reasons(verdicts),
        "no_answer": 0,
        "mean_response_tokens": 50.0,
        "engine": "synthetic",
        "deterministic": True,
        "run_id": "synthetic",
        "code_commit": "0" * 40,
        "code_dirty": "",
        "revisions": {},
        "miniature": is_miniature_size(size),
        "synthetic": True,
        **changed,
    }
    path = root / (folder or f"{method}-s{seed}") / "cells" / f"{where.slug}.json"
    write_json(path, CellRecord(**given))
    return path


def finish_reasons(verdicts: list[str]) -> dict[str, int]:
    """As a run leaves them: a sample without a verdict is one that the engine failed on."""
    text = "".join(verdicts)
    errors = {"error": text.count("-")} if "-" in text else {}
    return {**errors, "stop": len(text) - text.count("-")}


def miniature(
    root: Path, methods: Sequence[str] = ("base", "grpo", "entropy20", "justrl", "stapo"), size: str = "mini",
    problems: int = 64,
) -> None:  # fmt: skip
    """Records with a gain that grows from method to method: of problem i, the first k samples are right."""
    for rank, method in enumerate(methods):
        for b, benchmark in enumerate(labels.benchmarks_of(size)):
            for s, setting in enumerate(("t1.0", "t0.7")):
                right = [min(8, max(0, (i * 5) % 9 + rank % 7 - 3 * b % 7 + 2 * s)) for i in range(problems)]
                cell(root, method, benchmark, setting, ["1" * k + "0" * (8 - k) for k in right], size=size)


def training_run(
    root: Path, method: str, seed: int = 0, steps: int = 40, size: str = "mini", status: str = "done",
    more: dict[str, float] | None = None, gpu: str = "",
) -> Path:  # fmt: skip
    """A run folder with smooth made-up curves. `more`: metrics with one value in all steps."""
    folder = root / f"{method}-s{seed}"
    rank, of_paper = METHODS.index(method) if method in METHODS else 3, size in labels.PAPER_SIZES
    run = Run(
        run_id="synthetic",
        kind="train",
        status=status,  # type: ignore[arg-type]
        command=["synthetic"],
        config={"run": {"method": method, "size": size, "seed": seed}},
        code_commit="0" * 40,
        code_dirty="",
        packages={},
        revisions={},
        hardware={"cpu": "a CPU", "gpus": [gpu] if gpu else []},
        seeds={"train": seed},
        deterministic=True,
        started="2000-01-01T00:00:00+00:00",
        synthetic=True,
    )
    write_json(folder / "run.json", run)
    lines = []
    for step in range(steps + 1):
        wave = 0.015 * math.sin(step * (1.3 + rank) + seed)
        accuracy = 0.66 + (0.2 + 0.02 * rank) * (1 - math.exp(-step / 15)) + wave + 0.01 * seed
        at_07 = "val-t0.7/aime24/acc/mean@32"
        values = {"accuracy": accuracy, at_07: accuracy + 0.02 - wave} if step % 5 == 0 else {}
        if step:
            s2t = (0.0015 + 0.0003 * math.sin(step)) / (20 + 10 * [*labels.PAPER_SIZES].index(size) if of_paper else 1)
            silenced = (0, 0.8, 0, s2t, 0.002, s2t, s2t)[rank]
            values |= {
                "reward": accuracy - 0.03 + wave,
                "entropy": 0.45 * math.exp(-step * (4, -0.4, 0.5, 1.2, 3, 2, 1.6)[rank] / 60) + wave / 3,
                "token_entropy_mean": 0.1 + 0.01 * rank + 0.001 * step,
                **{f"token_entropy_q{q:02d}": q * (0.9 + wave) * 0.001 * (1 + rank) for q in QUANTILES},
                **({"threshold": 0.05 + wave / 2} if method == "stapo" else {}),
                "silenced_share": silenced,
                "candidate_share": 4 / 3 * silenced,
                "response_tokens": 50.0,
                "grad_norm": 0.3,
                **(more or {}),
            }
        lines.append(StepMetrics(step=step, values=values))
    append(folder / "metrics.jsonl", lines)
    return folder
