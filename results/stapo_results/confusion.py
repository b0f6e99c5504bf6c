"""The rule's verdicts against the judge's, counted from a cell's record."""

from __future__ import annotations

from collections import Counter

from stapo_results.schema import CellRecord

JUDGED = {"c": "correct", "i": "incorrect", "x": "invalid", ".": "not_asked"}
"""Letters of `ProblemResult.judged`."""


def confusion(record: CellRecord) -> dict[str, dict[str, int]]:
    """Samples by the rule's verdict ("rule_correct", "rule_incorrect") and what the judge said; a missing sample is in
    no row. All zero where no judge was asked at all, since such a record keeps no verdicts of the rule apart."""
    rule = "".join(p.rule for p in record.problems)
    judged = "".join(p.judged for p in record.problems)
    counts = Counter(zip(rule, judged, strict=True))
    return {
        name: {says: counts[digit, letter] for letter, says in JUDGED.items()}
        for digit, name in (("1", "rule_correct"), ("0", "rule_incorrect"))
    }
