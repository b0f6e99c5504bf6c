"""What a finished run folder lacks: damaged or missing samples are made again, other files from them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from stapo_eval.engines import Key
from stapo_eval.plan import Plan
from stapo_results import store
from stapo_results.errors import RecordError
from stapo_results.schema import CellRecord, Judgement, Sample, Timing, Verdict


def set_aside_damaged(plan: Plan) -> int:
    """Take lines that are no record out of the journals, say so on stderr, and return how many there were."""
    records = (("samples.jsonl", Sample), ("judgements.jsonl", Judgement), ("timings.jsonl", Timing))
    return sum(store.set_aside(plan.out / name, model) for name, model in records)


def lacking(plan: Plan, samples: Collection[Key]) -> list[str]:
    """What is not there, or not whole, of a run that its record calls done, in words.

    Args:
        samples: keys of those on record.
    """
    keys = plan.keys()
    absent = [f"{len(keys) - len(samples)} of {len(keys)} samples"] if len(samples) < len(keys) else []
    return [*absent, *_derived(plan, keys)]


def _derived(plan: Plan, keys: list[Key]) -> Iterator[str]:
    try:
        verdicts = list(store.read(plan.out / "verdicts.jsonl", Verdict))
    except (OSError, RecordError):
        verdicts = []
    if [(v.cell, v.problem_id, v.sample_index) for v in verdicts] != keys:
        yield "verdicts.jsonl"
    for cell, _, _ in plan.cells():
        name = f"cells/{cell.slug}.json"
        try:
            whole = store.read_json(plan.out / name, CellRecord).cell == cell
        except RecordError:
            whole = False
        if not whole:
            yield name
    for name in ("summary.json", "cost.json"):
        if not _is_object(plan.out / name):
            yield name
    if plan.judge is not None:
        judged = any(v.judge != "not_asked" for v in verdicts)
        for name in ("flips.html", *(("judgements.jsonl",) if judged else ())):
            if not (plan.out / name).exists():
                yield name


def _is_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False
