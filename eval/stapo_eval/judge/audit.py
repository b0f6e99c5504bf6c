"""How much of a score is the judge's: pure functions of records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stapo_eval.intervals import difference_fields, rounded
from stapo_eval.judge.scope import scored, verdict_by_judge
from stapo_results.schema import CellRecord, Judgement, Sample, Verdict
from stapo_results.schema import confusion as confusion_of
from stapo_results.statistics import bootstrap, paired, parse_verdicts, problem_means


def unanswered(judged: Iterable[Judgement]) -> dict[str, int]:
    """How many of these have no letter, by why: "too_long", "error" (the judge's engine), "no_letter" (it said
    something else, which counts as a no). What does not occur is left out."""
    why = Counter(_unanswered(j) for j in judged)
    return {name: why[name] for name in ("too_long", "error", "no_letter") if why[name]}


def _unanswered(j: Judgement) -> str:
    return ("" if j.letter else "no_letter") if j.status == "answered" else j.status


def judge_notes(judged: Iterable[Judgement]) -> list[str]:
    """What a reader must know of questions that the judge did not answer.

    Args:
        judged: what was said of each sample that the scope asks about.
    """
    samples = list(judged)
    if not samples:
        return ["the judge was asked nothing: its scope holds no question"]
    questions = {j.key: j for j in samples}
    counts, of_samples, found = unanswered(questions.values()), unanswered(samples), []
    for name, what, then in _UNANSWERED:
        if name in counts:
            first = next((j.error for j in questions.values() if j.status == name and j.error), "")
            out_of = f"{counts[name]} of {len(questions)} questions ({of_samples[name]} samples)"
            found.append(f"{out_of} {what}{f' ({first})' if first else ''}: {then}")
    return found


_UNANSWERED = (
    ("too_long", "do not fit the judge's context", "the rule's verdict stands"),
    (
        "error",
        "have no reply because the judge's engine failed",
        "the rule's verdict stands; stapo-eval judge asks again",
    ),
    ("no_letter", "got a reply that is none of the judge's letters", "they count as incorrect"),
)  # fmt: skip


def audit(record: CellRecord) -> dict[str, Any]:
    """What the judge was asked in one cell, what it said, and what that moved; None values where it was not asked.

    `confusion` counts samples by the rule's verdict and the judge's; with the scope rule-negatives the rule's yeses
    are all "not_asked". A flip is a sample that judge and rule see differently; `flip_rate` is flips over samples
    asked. `difference` is the scored accuracy minus the rule's, with a t and a bootstrap interval over problems: 0
    where the judge is a stand-in, whose word does not count.
    """
    confusion = confusion_of(record)
    asked = sum(n for row in confusion.values() for says, n in row.items() if says != "not_asked")
    to_right = confusion["rule_incorrect"]["correct"]
    to_wrong = confusion["rule_correct"]["incorrect"] + confusion["rule_correct"]["invalid"]
    found: dict[str, Any] = {
        "asked": asked,
        "confusion": confusion,
        "flips_to_correct": to_right,
        "flips_to_incorrect": to_wrong,
        "flip_rate": round((to_right + to_wrong) / asked, 8) if asked else None,
        **dict.fromkeys(("rule_accuracy", "difference", "low", "high", "bootstrap_low", "bootstrap_high")),
    }
    return found | _difference(record) if asked else found


def _difference(record: CellRecord) -> dict[str, float | None]:
    ids = [p.problem_id for p in record.problems]
    scored_means, rule_means = (
        problem_means([parse_verdicts(text) for text in texts])
        for texts in ([p.verdicts for p in record.problems], [p.rule for p in record.problems])
    )
    d = paired(dict(zip(ids, scored_means.tolist(), strict=True)), dict(zip(ids, rule_means.tolist(), strict=True)))
    return {
        "rule_accuracy": rounded(math.fsum(rule_means) / len(ids)),
        **difference_fields(d, bootstrap([scored_means - rule_means])),
    }


@dataclass(frozen=True)
class Flip:
    """A question on which judge and rule differ, the response that was shown, and how many samples it decides."""

    judgement: Judgement
    verdict: Verdict
    response: str
    samples: int


def flips(samples: Sequence[Sample], verdicts: Sequence[Verdict], judged: Mapping[int, Judgement]) -> list[Flip]:
    """Every question that judge and rule answer differently, in the order of the samples.

    Args:
        samples, verdicts: of a whole run, in the same order.
        judged: index of a sample -> what the judge said of it.
    """
    first: dict[str, int] = {}
    count: Counter[str] = Counter()
    for i, j in judged.items():
        if scored(verdicts[i].rule, verdict_by_judge(j)) != verdicts[i].rule:
            first.setdefault(j.key, i)
            count[j.key] += 1
    return [Flip(judged[i], verdicts[i], samples[i].response, count[key]) for key, i in first.items()]
