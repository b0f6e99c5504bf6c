"""How long a summary takes: 100,000 recorded samples with their verdicts, read, validated and summarised.

The records are made up, with the paper's six benchmarks by size, both settings, N = 32, and answers that repeat; the
code that reads and summarises them is the one that a run ends with.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stapo_eval.models import ModelFiles
from stapo_eval.options import RunOptions
from stapo_eval.plan import EvaluationPlan
from stapo_eval.sampling import load_samples
from stapo_eval.scores import write_records
from stapo_results import provenance, store
from stapo_results.benching import timed_row
from stapo_results.benchmarks import load, registry_entry, write_registry
from stapo_results.schema import SETTINGS, BenchRow, Labels, Sample, Timing, Verdict
from stapo_results.statistics import RESAMPLES

# the paper's benchmarks by rows (the fifth and sixth a little larger, so that 32 samples each in two settings are
# 100,032 records)
ROWS = {"b1": 30, "b2": 30, "b3": 40, "b4": 500, "b5": 279, "b6": 684}
N = 32
GOAL_SECONDS = 5.0


def make_plan(folder: Path, rows: dict[str, int] | None = None, n: int = N) -> EvaluationPlan:
    """The plan of a run that has ended, over benchmarks of these sizes that are written beside it."""
    rows = ROWS if rows is None else rows
    data = folder / "data"
    data.mkdir(parents=True)
    entries = {}
    for name, count in rows.items():
        path = data / f"{name}.jsonl"
        path.write_text("".join(f'{{"id": "{name}-{i}", "problem": "{i}?", "answer": "{i}"}}\n' for i in range(count)))
        entries[name] = registry_entry(path, name, samples=n)
    write_registry(data / "registry.yaml", entries)
    options = RunOptions(model="model", benchmarks=",".join(rows), data_dir=str(data), out=str(folder / "run"))
    labels = Labels(method="external", size="model", train_seed=0, step="base")
    model = ModelFiles("model", Path("model"), "model", "", "", "", None)
    run = provenance.new_run("eval", {}, seeds={}, deterministic=True)
    benchmarks = tuple(load(name, data) for name in rows)
    return EvaluationPlan(options, model, None, labels, benchmarks, dict(SETTINGS), folder / "run", run)


def write_samples(plan: EvaluationPlan, characters: int, seed: int = 0) -> int:
    """Samples, verdicts and timings of a whole run; responses have about `characters` characters. The count."""
    draw = random.Random(seed)
    text = "".join(draw.choice(r"so we get $\frac{1}{2} x$, which is ") for _ in range(4 * characters))
    samples, verdicts, times = [], [], []
    skill = {(b.name, p.id): draw.random() for b in plan.benchmarks for p in b.problems}
    benchmark_of = {cell.id: b.name for cell, b, _ in plan.cells()}
    keys = plan.keys()
    for cell, problem, i in keys:
        correct = draw.random() < skill[benchmark_of[cell], problem]
        answer = problem.rsplit("-", 1)[1] if correct else str(draw.randrange(8))
        start, tokens = draw.randrange(3 * characters), draw.randrange(100, 20_480)
        where: dict[str, Any] = {"cell": cell, "problem_id": problem, "sample_index": i}
        samples.append(
            Sample(**where, seed=i, response=text[start : start + characters] + f"\\boxed{{{answer}}}",
                   finish_reason="stop", prompt_tokens=99, response_tokens=tokens, logprob_sum=-1.5, engine="bench")
        )  # fmt: skip
        verdicts.append(
            Verdict(**where, extracted=answer, rule=correct, reason="match" if correct else "mismatch",
                    preset="ours", grader_version="bench", judge="not_asked", judge_model="", judge_revision="",
                    correct=correct)
        )  # fmt: skip
        times.append(Timing(**where, kind="sample", created="2000-01-01T00:00:00+00:00", seconds=1.0, elapsed=0.1))
    for name, records in (("samples", samples), ("verdicts", verdicts), ("timings", times)):
        store.append(plan.out / f"{name}.jsonl", records)
    return len(samples)


def summarise_folder(plan: EvaluationPlan) -> dict[str, Any]:
    """Read, validate and summarise what the run folder holds: the end of `stapo-eval run`."""
    samples = load_samples(plan)
    verdicts = list(store.read(plan.out / "verdicts.jsonl", Verdict))
    keys = plan.keys()
    return write_records(plan, plan.run, [samples[k] for k in keys], verdicts, {})


def rows(
    characters: int = 2000, repeats: int = 3, sizes: dict[str, int] | None = None, say: Callable[[str], None] = print
) -> tuple[list[BenchRow], dict[str, str]]:
    """One row: seconds to read, validate and summarise the made-up run; its ratio is to the 5 s that are allowed.

    `cpu_seconds` is what the process itself worked, which is less on a machine that has other work.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(Path(folder), sizes)
        records = write_samples(plan, characters)
        size = sum(f.stat().st_size for f in plan.out.glob("*.jsonl")) / 1e6
        times, busy = [], []
        for repeat in range(repeats):
            began, worked = time.perf_counter(), time.process_time()
            summarise_folder(plan)
            times.append(time.perf_counter() - began)
            busy.append(time.process_time() - worked)
            say(f"summary of {records:,} records ({size:,.0f} MB), repeat {repeat + 1}: {times[-1]:.2f} s")
    values = {
        "records": records,
        "characters": characters,
        "megabytes": round(size, 1),
        "resamples": RESAMPLES,
        "cpu_seconds": min(busy),
    }
    labels = {"baseline": f"{GOAL_SECONDS:g} s allowed"}
    return [timed_row("summary", times, [GOAL_SECONDS] * repeats, labels=labels, values=values)], {}
