"""End to end on one engine: six small benchmarks in both settings, against the usual loop.

The usual loop is what evaluation scripts do: an engine for every benchmark and setting, one blocking pass over the
problems for every seed, grading at the end. Both sides use the same engine, model, decoding, batch size and grader, so
what differs is the order of the work. The benchmarks have the paper's N and a tenth of its rows; the model is random
and ends its responses at random, up to 240 tokens. With more rows the loop's passes fill the 64 rows of the engine hf
better (with a fifth of the paper's rows our run took 0.51 of the loop's time); a GPU's engine has places for hundreds.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stapo_eval.bench.tiny import build
from stapo_eval.decoding import prompt
from stapo_eval.engines import Engine, Request, make_engine
from stapo_eval.grading.pool import Item, grade
from stapo_eval.grading.rules import Options
from stapo_eval.models import find_model
from stapo_eval.options import RunOptions
from stapo_eval.plan import EvaluationPlan, make_plan
from stapo_eval.run import run
from stapo_results import store
from stapo_results.answers import last_boxed
from stapo_results.benching import timed_row
from stapo_results.benchmarks import registry_entry, write_registry
from stapo_results.schema import BenchRow, Run, Sample
from stapo_results.seeds import derive_seed

BASELINE = "end to end, usual loop"


@dataclass(frozen=True)
class Size:
    """Rows and samples a problem of the six benchmarks; tokens of the longest response; repeats of the comparison."""

    shapes: tuple[tuple[int, int], ...] = ((3, 32), (3, 32), (4, 32), (50, 4), (27, 4), (67, 4))
    max_tokens: int = 240
    repeats: int = 2
    engine: Literal["hf", "vllm"] = "hf"


QUICK = Size(shapes=((2, 8), (1, 8), (2, 8), (6, 2), (4, 2), (5, 2)), max_tokens=24, repeats=1)


def _world(folder: Path, size: Size) -> RunOptions:
    build(folder / "model", head_dim=32)  # as the engine vllm needs it on a CPU
    data = folder / "data"
    data.mkdir()
    entries = {}
    for number, (rows, n) in enumerate(size.shapes):
        name = f"b{number}"
        lines = [
            {"id": f"{name}-{i}", "problem": f"What is {i} + {number}?", "answer": str(i % 6)} for i in range(rows)
        ]
        path = data / f"{name}.jsonl"
        path.write_text("".join(json.dumps(x) + "\n" for x in lines))
        entries[name] = registry_entry(path, name, samples=n)
    write_registry(data / "registry.yaml", entries)
    return RunOptions(
        model=str(folder / "model"),
        benchmarks=",".join(entries),
        data_dir=str(data),
        engine=size.engine,
        max_tokens=size.max_tokens,
    )


def _load(plan: EvaluationPlan) -> Engine:
    return make_engine(plan.options.engine, plan.model, threads=plan.run.config["threads"])


def usual_loop(plan: EvaluationPlan) -> tuple[float, int]:
    """(wall seconds, tokens) of an engine per benchmark and setting and a blocking pass per seed, then grading."""
    began, tokens = time.perf_counter(), 0
    items: list[Item] = []
    for cell, benchmark, decoding in plan.cells():
        find_model(plan.options.model)
        engine = _load(plan)
        prompts = {p.id: tuple(engine.encode(prompt(p.problem))) for p in plan.problems(benchmark)}
        golds = {p.id: p.answer for p in plan.problems(benchmark)}
        for i in range(plan.samples_of(benchmark)):
            seeds = {p: derive_seed(0, benchmark.name, p, cell.setting, i) for p in prompts}
            requests = [Request(cell.id, p, i, seeds[p], ids, decoding) for p, ids in prompts.items()]
            for piece in engine.stream(requests, ()):
                tokens += sum(f.response_tokens for f in piece)
                items += [Item(golds[f.request.problem_id], last_boxed(f.text), Options()) for f in piece]
        engine.close()
    grade(items)
    return time.perf_counter() - began, tokens


def one_queue(options: RunOptions) -> tuple[float, float, int]:
    """(wall seconds of a whole run, of which its engine generated, tokens)."""
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(options, say=lambda text: None)
    wall = time.perf_counter() - began
    out = Path(options.out)
    tokens = sum(s.response_tokens for s in store.read(out / "samples.jsonl", Sample))
    return wall, store.read_json(out / "run.json", Run).engine_seconds or 0.0, tokens


def rows(size: Size | None = None, say: Callable[[str], None] = print) -> tuple[list[BenchRow], dict[str, str]]:
    """The usual loop (the baseline) and our run; `own_share` is the harness's part of our run's wall time."""
    size = size or Size()
    loops: list[float] = []
    ours: list[tuple[float, float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        options = _world(Path(folder), size)
        _load(make_plan(options)).close()  # imports and caches, which both sides need once
        for repeat in range(size.repeats):
            plan = make_plan(options)
            loops.append(usual_loop(plan)[0])
            say(f"repeat {repeat + 1}/{size.repeats}, usual loop: {loops[-1]:.1f} s")
            ours.append(one_queue(replace(options, out=str(Path(folder) / f"out{repeat}"))))
            say(f"repeat {repeat + 1}/{size.repeats}, one queue: {ours[-1][0]:.1f} s")
    walls, (wall, busy, tokens) = [o[0] for o in ours], min(ours)
    labels = {"engine": size.engine, "samples": str(2 * sum(r * n for r, n in size.shapes))}
    values = {"tokens_per_second": tokens / wall, "own_share": 1 - busy / wall}
    return [
        timed_row(BASELINE, loops, loops, labels=labels),
        timed_row("end to end, one queue", walls, loops, labels=labels, values=values),
    ], {}
