"""What the token log adds to a step of the miniature's size (`tox -e bench`, part token-log).

In each repeat every method trains with each mode of the log, one after the other (`step.Step`); a ratio is to the same
method with the log off. `update` is what the training waits for, `written` until the last byte is on disk as well,
which in a run overlaps with the next rollout.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from stapo_results import benching
from stapo_results.schema import Bench, BenchRow, Run
from stapo_training.bench.part import Measured, Part
from stapo_training.bench.step import Sizes, Step, Update, prepared
from stapo_training.token_log.writer import TokenLogConfig

MINIATURE = Sizes(
    hidden=128,
    layers=2,
    vocabulary=391,
    prompts=32,
    prompt_tokens=30,
    response_tokens=56,
    micro_batch=64,
    shares=(3e-3,),
    checkpointing=(False,),
)
"""The miniature's step, with its share of candidates."""
QUICK = replace(MINIATURE, prompts=8, response_tokens=16, micro_batch=16, repeats=1)
MODES = ("off", "on", "full")


def _measure(sizes: Sizes) -> Measured:
    with prepared(sizes) as (step_with, labels), tempfile.TemporaryDirectory() as folder:
        step = step_with(False)
        s2t = {"name": "silence_spurious", "tau_p": step.tau_p(sizes.shares[0])}
        methods: dict[str, dict[str, Any]] = {"justrl": s2t | {"name": "keep_all"}, "stapo": s2t}
        logs = {m: TokenLogConfig.model_validate({"mode": m, "folder": f"{folder}/{m}"}) for m in MODES}
        updates: dict[tuple[str, str], list[Update]] = {(m, mode): [] for m in methods for mode in MODES}
        for repeat in range(-1, sizes.repeats):  # the first is for allocations and caches
            for (method, mode), own in updates.items():
                update = step.update(methods[method], logs[mode])
                if repeat >= 0:
                    own.append(update)
        size = sum(p.stat().st_size for p in Path(folder, "on").rglob("*.parquet"))
        rows = [_row(m, mode, own, updates[m, "off"], step) for (m, mode), own in updates.items()]
    return rows, {"threads": labels["threads"], "kilobytes_a_step": f"{size / 1000:.1f}"}


def _row(method: str, mode: str, own: list[Update], off: list[Update], step: Step) -> BenchRow:
    rest = step.sampling_seconds + step.old_seconds
    fastest, written, baseline = min(u.seconds for u in own), min(u.written for u in own), min(u.seconds for u in off)
    return benching.timed_row(
        f"{method}, {mode}",
        [u.seconds for u in own],
        [u.seconds for u in off],
        labels={"method": method, "mode": mode},
        values={
            "step_ratio": (rest + fastest) / (rest + baseline),
            "written_ratio": (rest + written) / (rest + baseline),
            "candidate_share": own[0].candidates,
            "rest_seconds": rest,
        },
    )


def _about(bench: Bench, run: Run) -> str:
    c = run.config
    return (
        f"{c['prompts'] * c['responses']} responses of {c['response_tokens']} tokens, {c['mini_batches']} "
        f"updates, {c['repeats']} repeats, a model of the miniature's size, {bench.labels['threads']} threads of "
        f"{run.hardware['cpu']}; the log has {bench.labels['kilobytes_a_step']} kB a step. Ratios of the fastest "
        f"repeats, spread of those within a repeat."
    )


PART = Part(
    name="token-log",
    baseline="the same method, off",
    columns={
        "method": lambda r: r.labels["method"],
        "log": lambda r: r.labels["mode"],
        "update / off (spread)": benching.spread,
        "step / off": lambda r: f"{r.values['step_ratio']:.3f}",
        "step, until written / off": lambda r: f"{r.values['written_ratio']:.3f}",
    },
    sizes=lambda repeats, quick: QUICK if quick else replace(MINIATURE, repeats=repeats),
    measure=_measure,
    about=_about,
)
