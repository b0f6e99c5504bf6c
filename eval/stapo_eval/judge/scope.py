"""Whom the judge is asked about, and what its word does to a score."""

from __future__ import annotations

from collections.abc import Sequence

from stapo_eval.judge.prompt import verdict_of
from stapo_results.schema import Judgement, JudgeVerdict

SCOPES = ("rule-negatives", "disagreements", "all")


def asked_about(scope: str, rule: Sequence[bool], second: Sequence[bool] | None = None) -> list[bool]:
    """For each sample whether the judge is asked about it.

    rule-negatives: where the rule says no, the paper's protocol. disagreements: where `second`, the verdicts of another
    rule grader, differ from those of the first, in either direction. all: everywhere.
    """
    if scope == "all":
        return [True] * len(rule)
    if scope == "rule-negatives":
        return [not r for r in rule]
    assert second is not None
    return [r != s for r, s in zip(rule, second, strict=True)]


def second_grader(preset: str) -> str:
    """The rule grader whose verdicts `disagreements` sets beside those of the run's own."""
    return "ours" if preset == "math-verify" else "math-verify"


def verdict_by_judge(judgement: Judgement | None) -> JudgeVerdict:
    """What a judge said of a sample. A reply that is no letter is "invalid"; without a reply it is "not_asked"."""
    if judgement is None or judgement.status != "answered":
        return "not_asked"
    return verdict_of(judgement.letter)


def scored(rule: bool, judge: JudgeVerdict) -> bool:
    """The scored boolean: the judge's word where there is one, elsewhere the rule's.

    With rule-negatives this is "rule or judge".
    """
    return rule if judge == "not_asked" else judge == "correct"
