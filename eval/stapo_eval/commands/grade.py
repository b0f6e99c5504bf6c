"""`stapo-eval grade`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GradeCommand:
    """Grade responses from a JSONL file by rule: one verdict a line, in the same order.

    Every line is checked before any work; the output appears whole or not at all. A line may carry `unit` (text),
    `tolerance` (a number, absolute) and `unordered` (true or false: whether the order of a list's items counts).
    """

    input: str
    """JSONL with the fields id, problem, answer (text or list of texts), response; others are ignored."""
    output: str
    """JSONL with the fields id, extracted, rule, reason, seconds."""
    preset: Literal["ours", "math-verify", "justrl", "strict"] = "ours"
    """Rule grader: how the answer is found and compared (docs/evaluation.md)."""
    answer_line: bool = False
    """Without a box, take what follows "Answer:" or "The answer is"."""
    unordered: bool = False
    """Golds that are one text with commas may be lists even where the commas could set thousands apart."""
    seconds: float = 5.0
    """Wall time that one answer may take."""
    memory_mib: int = 1024
    """Memory that one answer may take."""
    workers: int = 0
    """Grading processes; if 0, one a core."""

    def __call__(self) -> int:
        from stapo_eval.grading_file import grade_file
        from stapo_eval.grading_pool import Limits
        from stapo_eval.rules import Options

        began = time.perf_counter()
        correct, rows = grade_file(
            self.input,
            self.output,
            Options(unordered=self.unordered, preset=self.preset),
            Limits(self.seconds, self.memory_mib, self.workers),
            use_answer_line=self.answer_line,
        )
        print(f"{correct} of {rows} correct by rule, {time.perf_counter() - began:.1f} s: {self.output}")
        return 0
