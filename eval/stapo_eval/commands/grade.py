"""`stapo-eval grade`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stapo_results.errors import BadInput


@dataclass(frozen=True)
class GradeCommand:
    """Grade responses from a JSONL file by rule: one verdict a line, in the same order.

    Every line is checked before any work; the output appears whole or not at all.
    """

    input: str
    """JSONL with the fields id, answer (text or list of texts) and response; where they are there, also unit (text),
    tolerance (a number, absolute) and unordered (true: a list's items in any order); others are ignored."""
    output: str
    """JSONL with the fields id, extracted, rule, reason, seconds."""
    preset: Literal["ours", "math-verify", "justrl", "strict"] = "ours"
    """Rule grader: how the answer is found and compared (docs/evaluation.md)."""
    all_presets: bool = False
    """Grade by every preset and show where they differ; --output is then JSON with each response on which two do."""
    verdicts: tuple[Path, ...] = ()
    """With --all-presets: other graders' JSONL on the same responses, with the fields id, grader and rule."""
    answer_line: bool = False
    """Without a box, take what follows "Answer:" or "The answer is"."""
    max_tokens: int = 0
    """Grade only the first so many tokens of each response, as --tokenizer splits it; if 0, all of it."""
    tokenizer: str = ""
    """Folder with the tokenizer.json that --max-tokens counts by: the model's."""
    seconds: float = 5.0
    """CPU time that one answer may take; its wall time may be sixty times that."""
    memory_mib: int = 1024
    """Memory that one answer may take."""
    workers: int = 0
    """Grading processes; if 0, one a core."""

    def __call__(self) -> int:
        from stapo_eval.grading.file import first_tokens, grade_file
        from stapo_eval.grading.pool import Limits
        from stapo_eval.grading.rules import Options
        from stapo_results.terminal import duration

        cut = first_tokens(self.tokenizer, self.max_tokens) if self.max_tokens or self.tokenizer else None
        limits = Limits(self.seconds, self.memory_mib, self.workers)
        if self.all_presets:
            from stapo_eval.grading.file import grade_all

            how: dict[str, Any] = {"use_answer_line": self.answer_line, "cut": cut}
            _print(grade_all(Path(self.input), Path(self.output), limits, self.verdicts, **how))
            print(f"written: {self.output}, with every response on which two differ")
            return 0
        if self.verdicts:
            raise BadInput("--verdicts are compared with every preset's", found="no --all-presets",
                           next_step="add --all-presets")  # fmt: skip
        began = time.perf_counter()
        try:
            reasons = grade_file(
                self.input,
                self.output,
                Options(preset=self.preset),
                limits,
                use_answer_line=self.answer_line,
                cut=cut,
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("nothing was written; the same command starts again") from None
        others = [f"{n} {reason.replace('_', ' ')}" for reason, n in reasons.items() if "match" not in reason]
        more = f" ({', '.join(others)})" if others else ""
        spent = duration(time.perf_counter() - began)
        print(f"{reasons['match']} of {reasons.total()} correct by rule{more}, {spent}: {self.output}")
        return 0


def _print(found: dict[str, Any]) -> None:
    from stapo_eval.show import make_console, print_table

    title = f"{found['responses']:,} responses; in {found['without_answer']:,} of them `ours` finds no answer"
    columns = ("grader", "calls right", "right, ours wrong", "right, ours finds no answer", "wrong, ours right")
    rows = [[grader, *(f"{n:,}" for n in counts.values())] for grader, counts in found["graders"].items()]
    print_table(make_console(), title, columns, rows, text_columns=1)
