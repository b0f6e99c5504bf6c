"""What a run cost: tokens per second and GPU hours, from its timings. Times never stand in the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from stapo_eval.engines.requests import Key, key_of
from stapo_results.schema import Judgement, Run, Sample, Timing


def timing(
    record: Sample | Judgement,
    kind: Literal["sample", "verdict", "judge"],
    created: str,
    seconds: float,
    elapsed: float | None = None,
) -> Timing:
    """When a record of a sample was made and how long it took; `elapsed` as in `Timing`."""
    return Timing(
        cell=record.cell,
        problem_id=record.problem_id,
        sample_index=record.sample_index,
        kind=kind,
        created=created,
        seconds=round(seconds, 6),
        elapsed=None if elapsed is None else round(elapsed, 6),
    )


def gpus_of_a_copy(run: Run, engine: str) -> int | None:
    """GPUs that one copy of a model occupies; 0 on a machine without one, None where an endpoint hides it."""
    if not engine.startswith(("hf", "vllm")):
        return None
    return max(1, run.config.get("tensor_parallel") or 1) if run.hardware.get("gpus") else 0


def cost(samples: Sequence[Sample], timings: Iterable[Timing], run: Run) -> dict[str, Any]:
    """Seconds, tokens and GPU hours of generation, and of the judge.

    Where some samples have no time (a run that was killed between the two files) the rate is over those that have, and
    `timed` says how many.
    """
    elapsed: dict[Key, float] = {}
    judge, replies = 0.0, 0
    for t in timings:
        if t.elapsed is not None and t.kind == "sample":
            elapsed[key_of(t)] = t.elapsed
        elif t.elapsed is not None and t.kind == "judge":
            judge, replies = judge + t.elapsed, replies + 1
    timed = [(elapsed[key_of(s)], s.response_tokens) for s in samples if key_of(s) in elapsed]
    seconds, tokens = sum(x for x, _ in timed), sum(n for _, n in timed)
    copies = {gpus_of_a_copy(run, e) for e in {s.engine for s in samples}}
    copy = None if None in copies else max((c for c in copies if c is not None), default=0)
    gpus = None if copy is None else copy * max(1, run.config.get("replicas") or 1)
    return {
        "schema_version": 1,
        "run_id": run.run_id,
        "gpus": gpus,
        "generation_seconds": round(seconds, 3),
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 3) if seconds else None,
        # the judge has as many copies
        "gpu_hours": round((seconds + judge) * gpus / 3600, 4) if gpus and elapsed else None,
        "timed": len(timed),
        "samples": len(samples),
        "judge_seconds": round(judge, 3),
        "judge_replies": replies,
    }


def in_words(c: dict[str, Any]) -> str:
    """One line for the end of a run."""
    if c["tokens_per_second"] is None:
        return "cost: not known: no sample has a time"
    hours = "not known" if c["gpu_hours"] is None else f"{c['gpu_hours']:.2f}"
    if c["gpus"] == 0:
        hours = "not known (no GPU)"
    judge = f"; judge {c['judge_seconds']:,.1f} s for {c['judge_replies']} replies" if c["judge_replies"] else ""
    part = "" if c["timed"] == c["samples"] else f" ({c['timed']} of {c['samples']} samples have a time)"
    return (
        f"cost: {c['tokens']:,} tokens in {c['generation_seconds']:,.1f} s, {c['tokens_per_second']:,.0f} tokens per "
        f"second, GPU hours {hours}{judge}{part}"
    )
