"""Made-up records for tests of tables and figures. Every one says that it is synthetic; none may stand in results/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stapo_repro import labels
from stapo_repro.testbed import counts
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
    more: dict[str, float] | None = None,
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
        hardware={},
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
        values = {"accuracy": accuracy, "accuracy_t0.7": accuracy + 0.02 - wave} if step % 5 == 0 else {}
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


RIGHT = {"justrl": 6, "justrl-fullmask": 2, "stapo-high-entropy": 2, "stapo-random": 4, "stapo": 6}  # of 8 samples
USEFUL = {"justrl": 0.9, "justrl-fullmask": 0.2, "stapo-high-entropy": 0.2, "stapo-random": 0.4, "stapo": 0.9}
SPURIOUS = {"justrl": 0.6, "justrl-fullmask": 0.2, "stapo-high-entropy": 0.5, "stapo-random": 0.3, "stapo": 0.2}
SILENCED = {  # of 10 rare tokens: spurious, useful, other; expected of the random mask
    "silence_spurious": (7.0, 0.0, 0.5),
    "silence_random": (5.6, 1.5, 0.4),
    "silence_high_entropy": (5.0, 2.0, 0.5),
    "silence_low_probability": (7.5, 2.0, 0.5),
}


def of_testbed(
    root: Path, seeds: tuple[int, ...] = (0, 1, 2), worlds: tuple[str, ...] = ("paper", "mixed", "inverted"),
    steps: int = 8, problems: int = 16, arms: tuple[str, ...] = tuple(RIGHT),
) -> None:  # fmt: skip
    """Records of the testbed below eval/ and train/: each arm has a level of its own, the same in all worlds, with a
    little noise by problem and seed. Of JustRL the counts of its tokens, with one more spurious token a seed."""
    for world in worlds:
        size = labels.WORLDS[world]
        for setting in ("t1.0", "t0.7"):
            given = {"size": size, "folder": f"base-{world}"}
            cell(root / "eval", "base", "mini-add", setting, ["11000000"] * problems, **given)
            for k, arm in enumerate(arms):
                for seed in seeds:
                    level = [RIGHT[arm] + ((7 * i + 3 * seed * (k + 1)) % 5 == 0) for i in range(problems)]
                    verdicts = ["1" * k + "0" * (8 - k) for k in level]
                    given = {"size": size, "seed": seed, "step": steps, "folder": f"{arm}-{world}-s{seed}"}
                    cell(root / "eval", arm, "mini-add", setting, verdicts, **given)
        for arm in arms:
            for seed in seeds:
                more = 0.03 if arm == "stapo" else 0.01
                rates = {"useful_rate": USEFUL[arm] + more * seed, "spurious_rate": SPURIOUS[arm] + more * seed}
                rates["reward"] = RIGHT[arm] / 4 - 1 + more * seed
                folder = training_run(root / "train" / world, arm, seed, steps, size, more=rates)
                if arm == "justrl":
                    planted_counts(folder, steps, seed)


def planted_counts(folder: Path, steps: int, more: int = 0) -> None:
    """planted.json of a run: the same in every step. `more`: further spurious tokens that S2T silences."""
    further = {"silence_spurious": more, "silence_high_entropy": 0.1 * more}
    masks = [
        counts.Silenced(mask=m, tau_p=0.002, q=1.0 if m == "silence_low_probability" else 0.75,
                        tokens=[(s + further.get(m, 0), u, o)] * steps)
        for m, (s, u, o) in SILENCED.items()
    ]  # fmt: skip
    whole = (8.0 + more, 2.0, 0.5)
    rare = [counts.Candidates(tau_p=0.002, tokens=[whole] * steps)]
    own = counts.PlantedCounts(run_id="synthetic", selector="keep_all", tau_p=0.002, q=0.75,
                               steps=list(range(1, steps + 1)), rare=rare, masks=masks)  # fmt: skip
    write_json(folder / counts.FILE, own)
