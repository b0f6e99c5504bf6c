"""What the token log adds to a step of the miniature's size (`tox -e bench`, part token-log).

The step is bench.py's: real sampling, the old log-probabilities, four optimizer steps on veRL's worker, all from the
same weights. In each repeat every method trains with each mode of the log, one after the other; a ratio is to the same
method with the log off. `update` is what the training waits for, `written` until the last byte is on disk as well,
which in a run overlaps with the next rollout.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stapo_results import provenance, store
from stapo_results.schema import Bench, BenchRow, Run
from stapo_training.bench import training as bench
from stapo_training.token_log.writer import TokenLogConfig

GOAL = 1.03
"""Multiple of the whole step that mode `on` may cost."""
MINIATURE = bench.Plan(
    hidden=128,
    layers=2,
    vocabulary=391,
    prompts=32,
    prompt_tokens=30,
    response_tokens=56,
    micro_batch=64,
    shares=(3e-3,),
    repeats=7,
    checkpointing=(False,),
)
"""The miniature's step, with its share of candidates."""
MODES = ("off", "on", "full")


def run(out: Path, plan: bench.Plan = MINIATURE, say: Callable[[str], None] = print) -> Bench:
    """Measure, print a table, write the record to `out`."""
    import torch

    bench.prepare_process()
    began = time.perf_counter()
    record = provenance.new_run(
        "bench", {"part": "token-log", **asdict(plan)}, seeds={"run": plan.seed}, deterministic=False
    )
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        model = bench.make_model(plan, base / "model")
        sequences, sampling = bench.sample(plan, model)
        del model
        step = bench.Step(plan, base, sequences, checkpointing=False)
        s2t = {"name": "silence_spurious", "tau_p": step.tau_p(plan.shares[0])}
        methods: dict[str, dict[str, Any]] = {"justrl": s2t | {"name": "keep_all"}, "stapo": s2t}
        logs = {mode: TokenLogConfig.model_validate({"mode": mode, "folder": str(base / mode)}) for mode in MODES}
        times: dict[tuple[str, str], list[bench.Timing]] = {(m, mode): [] for m in methods for mode in MODES}
        for repeat in range(-1, plan.repeats):  # the first is for allocations and caches
            for (method, mode), own in times.items():
                timing = step.run(methods[method], logs[mode])
                if repeat >= 0:
                    own.append(timing)
            say(f"repeat {repeat + 1}/{plan.repeats}")
        size = sum(p.stat().st_size for p in (base / "on").rglob("*.parquet"))
    rows = [_row(m, mode, own, times[m, "off"], sampling + step.old_seconds) for (m, mode), own in times.items()]
    done = provenance.close_run(record, out / "run.json", "done", time.perf_counter() - began)
    labels = {"threads": str(torch.get_num_threads()), "kilobytes_a_step": f"{size / 1000:.1f}"}
    made = Bench(run_id=done.run_id, part="token-log", baseline="the same method, off", labels=labels, rows=rows)
    store.write_json(out / "bench.json", made)
    for line in _lines(made):
        say(line)
    return made


def _row(method: str, mode: str, own: list[bench.Timing], off: list[bench.Timing], rest: float) -> BenchRow:
    fastest, baseline = min(t.update for t in own), min(t.update for t in off)
    ratios = [t.update / o.update for t, o in zip(own, off, strict=True)]
    written = min(t.written for t in own)
    return BenchRow(
        name=f"{method}, {mode}",
        labels={"method": method, "mode": mode},
        seconds=fastest,
        ratio=fastest / baseline,
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        values={
            "step_ratio": (rest + fastest) / (rest + baseline),
            "written_ratio": (rest + written) / (rest + baseline),
            "candidate_share": own[0].candidates,
            "rest_seconds": rest,
        },
    )


def _goal(row: BenchRow) -> str:
    over = row.labels["mode"] == "on" and row.values["step_ratio"] > GOAL
    return f"over its goal ({GOAL})" if over else ""


def _cells(bench_record: Bench) -> list[list[str]]:
    return [
        [
            r.labels["method"],
            r.labels["mode"],
            f"{r.ratio:.3f} ({r.ratio_low:.3f} to {r.ratio_high:.3f})",
            f"{r.values['step_ratio']:.3f}",
            f"{r.values['written_ratio']:.3f}",
            _goal(r),
        ]
        for r in bench_record.rows
    ]


_HEAD = ["method", "log", "update / off (spread)", "step / off", "step, until written / off", ""]


def _lines(made: Bench) -> list[str]:
    return ["  ".join(f"{c:24}" for c in cells).rstrip() for cells in [_HEAD, *_cells(made)]]


def page_block(folder: Path) -> str:
    """The record as the documentation shows it; "not run" where there is none."""
    if not (folder / "bench.json").exists():
        return "Not run: `tox -e bench` measures it."
    made, run_record = store.read_json(folder / "bench.json", Bench), store.read_json(folder / "run.json", Run)
    plan = run_record.config
    about = (
        f"{plan['prompts'] * plan['responses']} responses of {plan['response_tokens']} tokens, {plan['mini_batches']} "
        f"updates, {plan['repeats']} repeats, a model of the miniature's size, {made.labels['threads']} threads of "
        f"{run_record.hardware['cpu']}; the log has {made.labels['kilobytes_a_step']} kB a step. Ratios of the fastest "
        f"repeats, spread of those within a repeat. Record: `results/records/bench/token-log`, commit "
        f"{run_record.code_commit[:7]}, {run_record.started[:10]}."
    )
    table = [" | ".join(r) for r in [_HEAD, ["---"] * len(_HEAD), *_cells(made)]]
    return about + "\n\n" + "\n".join(f"| {line} |" for line in table)
