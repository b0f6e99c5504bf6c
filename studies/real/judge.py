"""A general model in the place of the judge: what it says of what the rule calls wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stapo_repro.labels import benchmark_label
from stapo_repro.read import Loaded
from stapo_repro.text import grid, shown

ABOUT = (
    "Qwen2.5-Coder-1.5B-Instruct was asked about the 0.5B's responses, in CompassVerifier's published prompt and by "
    "the paper's protocol: what the rule calls wrong. It is not the paper's judge. A agrees with the gold answer, B "
    "differs, C finds no answer to compare."
)
_HEAD = ("Cell", "Problems", "Asked", "A", "B", "C", "Responses without an answer", "Right by rule", "Right as scored")


def section(cells: Sequence[Loaded]) -> list[str]:
    """A line for each judged cell."""
    rows = []
    for r in (c.record for c in cells):
        replies = Counter(letter for p in r.problems for letter in p.judged if letter != ".")
        right = [sum(text.count("1") for text in texts)
                 for texts in ((p.rule for p in r.problems), (p.verdicts for p in r.problems))]  # fmt: skip
        counts = [len(r.problems), replies.total(), *(replies[letter] for letter in "cix"), r.no_answer, *right]
        name = f"{benchmark_label(r.cell.benchmark)}, {r.cell.setting}"
        rows.append([name, *(shown(float(count), 0) for count in counts)])
    return ["## A general model as judge", "", ABOUT, "", *(grid(_HEAD, rows) if rows else ["Not run."]), ""]
