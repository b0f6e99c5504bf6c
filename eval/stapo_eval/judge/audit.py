"""Whom the judge is asked about, what its word does to a score, and what it did not answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stapo_eval.judge.prompt import MODES, verdict_of
from stapo_results.errors import BadInput
from stapo_results.schema import Judgement, JudgeVerdict

SCOPES = ("rule-negatives", "all")


def check_judge(scope: str, mode: str) -> None:
    """Raises BadInput for a scope or mode that does not exist, or a mode that lets another scope be asked for."""
    if scope not in SCOPES:
        raise BadInput("this judge scope does not exist", found=scope, expected=", ".join(SCOPES))
    if mode not in MODES:
        raise BadInput("this judge mode does not exist", found=mode, expected=", ".join(MODES))
    if mode == "justrl-exact" and scope != "rule-negatives":
        raise BadInput(
            "JustRL asks its judge only where the rule fails",
            found=f"--judge-scope {scope}",
            expected="rule-negatives",
            next_step="leave out --judge-scope, or use --judge-mode compass",
        )


def verdict_by_judge(judgement: Judgement | None) -> JudgeVerdict:
    """What a judge said of a sample. A reply that is no letter is "invalid"; without a reply it is "not_asked"."""
    if judgement is None or judgement.status != "answered":
        return "not_asked"
    return verdict_of(judgement.letter)


def scored(rule: bool, judge: JudgeVerdict) -> bool:
    """The scored boolean: the judge's word where there is one, elsewhere the rule's."""
    return rule if judge == "not_asked" else judge == "correct"


def unanswered(judged: Iterable[Judgement]) -> dict[str, int]:
    """How many of these have no letter, by why: "too_long", "error" (the judge's engine), "no_letter" (it said
    something else, which counts as a no). What does not occur is left out."""
    why = Counter(j.status if j.status != "answered" else "" if j.letter else "no_letter" for j in judged)
    return {name: why[name] for name in ("too_long", "error", "no_letter") if why[name]}


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
