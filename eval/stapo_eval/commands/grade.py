"""`stapo-eval grade`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Literal

from stapo_results import store
from stapo_results.benchmarks import read_jsonl
from stapo_results.errors import BadInput


@dataclass(frozen=True)
class GradeCommand:
    """Grade responses from a JSONL file by rule: one verdict a line, in the same order."""

    input: str
    """JSONL with the fields id, problem, answer (text or list of texts), response."""
    output: str
    """JSONL with the fields id, extracted, rule, reason, seconds."""
    preset: Literal["ours"] = "ours"
    """Rule grader."""
    unordered: bool = False
    """Golds that are one text with commas are lists whose order does not count (lists always are)."""
    seconds: float = 5.0
    """Wall time that one answer may take."""
    memory_mib: int = 1024
    """Memory that one answer may take."""
    workers: int = 0
    """Grading processes (default: one a core)."""

    def __call__(self) -> int:
        from stapo_eval.grading_pool import Limits, grade_responses
        from stapo_eval.rules import Options

        golds, responses = [], []
        rows = read_jsonl(self.input)
        for number, row in enumerate(rows, 1):
            answer, response = row.get("answer"), row.get("response")
            if "id" not in row or not isinstance(response, str) or not isinstance(answer, (str, int, float, list)):
                raise BadInput(
                    f"{self.input}:{number} lacks a field or has one of another type",
                    found=f"fields {', '.join(sorted(row))}",
                    expected="id, answer (text or list of texts), response (text)",
                    next_step="correct the line",
                )
            golds.append(tuple(map(str, answer)) if isinstance(answer, list) else str(answer))
            responses.append(response)
            if golds[-1] == ():
                raise BadInput(f"{self.input}:{number}: the list of answers is empty")
        began = time.perf_counter()
        options = [Options(unordered=self.unordered)] * len(rows)
        graded = grade_responses(golds, responses, options, Limits(self.seconds, self.memory_mib, self.workers))
        lines = [
            {"id": row["id"], "extracted": answer, "rule": o.rule, "reason": o.reason, "seconds": round(o.seconds, 6)}
            for row, (answer, o) in zip(rows, graded, strict=True)
        ]
        store.write_atomic(self.output, "".join(json.dumps(x, ensure_ascii=True) + "\n" for x in lines))
        correct = sum(x["rule"] for x in lines)
        print(f"{correct} of {len(lines)} correct by rule, {time.perf_counter() - began:.1f} s: {self.output}")
        return 0
