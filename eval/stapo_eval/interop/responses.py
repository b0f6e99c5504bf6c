"""A finished run's responses with their gold answers, one a line, for `stapo-eval grade` or any other grader."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from stapo_eval.interop.lighteval_log import FinishedCell
from stapo_results import store


def write(cells: Sequence[FinishedCell], out: Path) -> list[Path]:
    """Write `responses.jsonl`, and where a judge counts `judge.jsonl`, the run's verdicts, in the form of a grader's.

    An id is CELL/PROBLEM/SAMPLE. Samples that the engine failed on are left out.
    """
    responses, verdicts = [], []
    for cell in cells:
        for a in cell.asked:
            p, unordered = a.problem, cell.benchmark.spec.unordered or None
            more = {"unit": p.unit or None, "tolerance": p.tolerance, "unordered": unordered}
            gold = {"answer": p.answer, **{k: v for k, v in more.items() if v is not None}}
            for sample, score in zip(a.samples, a.scores, strict=True):
                if not math.isnan(score):
                    name = f"{cell.record.cell.id}/{p.id}/{sample.sample_index}"
                    responses.append({"id": name, **gold, "response": sample.response})
                    verdicts.append({"id": name, "grader": "with the judge", "rule": score == 1})
    files = {"responses.jsonl": responses}
    if any(c.record.scored_by == "rule+judge" for c in cells):
        files["judge.jsonl"] = verdicts
    for name, lines in files.items():
        store.write_atomic(out / name, "".join(json.dumps(x) + "\n" for x in lines))
    return [out / name for name in files]
