"""The judge: a verifier model that is asked where the rule said no.

CompassVerifier's protocol: it sees question, gold answer and response, and answers A (correct), B (incorrect) or C
(the response is no answer: cut off, repetitive, refused). B and C both count as incorrect. The prompt states that task
in our own words; the response's end is kept and its beginning dropped where the whole would not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stapo_eval.decoding import Decoding
from stapo_eval.engines import Engine, Request
from stapo_eval.rules import Gold
from stapo_results.errors import BadInput
from stapo_results.schema import JudgeVerdict

SCOPES = ("rule-negatives",)
TAIL_TOKENS = 4096  # of a response; a final answer stands at its end
_ANSWER_TOKENS = 3  # a letter, perhaps after a space or line end, and the stop token
_LETTERS: dict[str, JudgeVerdict] = {"A": "correct", "B": "incorrect", "C": "invalid"}
_TASK = """Compare a response's final answer with the reference, which is true; do not solve the question. \
Other notation or order is fine, a missing part is not.
A: they agree
B: they differ
C: no final answer (cut off, endless, declined)
Reply with one letter."""


@dataclass(frozen=True)
class Question:
    """What the judge is asked about; `answer` is what was extracted, or None."""

    problem_id: str
    problem: str
    gold: Gold
    response: str
    answer: str | None


def check_scope(scope: str) -> None:
    if scope not in SCOPES:
        raise BadInput("this judge scope does not exist", found=scope, expected=", ".join(SCOPES))


def message(question: Question, tail: str) -> str:
    """The judge's prompt with the response's end `tail`."""
    gold = question.gold if isinstance(question.gold, str) else ", ".join(question.gold)
    return f"{_TASK}\n\nQUESTION\n{question.problem}\n\nREFERENCE\n{gold}\n\nRESPONSE\n{tail}\n\nLETTER"


def parse_letter(text: str) -> JudgeVerdict:
    """Exactly one letter A, B or C, white space aside; anything else is no verdict and counts as invalid."""
    return _LETTERS.get(text.strip(), "invalid")


def fitted_prompt(question: Question, encode: Callable[[str], list[int]], context: int) -> tuple[int, ...] | None:
    """The prompt's tokens with as much of the response's end as fits, or None if not even an empty one does."""
    room = context - _ANSWER_TOKENS
    bare = len(encode(message(question, "")))
    if bare > room:
        return None
    budget = min(TAIL_TOKENS, room - bare)
    tail = question.response[-4 * budget :] if budget else ""
    while True:
        prompt = encode(message(question, tail))
        over = len(prompt) - bare - budget
        if over <= 0 or not tail:
            return tuple(prompt) if len(prompt) <= room else None
        # most tokens have several characters, so this cuts a little at a time, and never nothing
        tail = tail[over:]


def distinct(questions: Sequence[Question]) -> list[int]:
    """For each question the index of the one that is asked in its place.

    Equal extracted answers to one problem are one question; responses without an answer are asked one by one, except
    where they are the same text.
    """
    first: dict[tuple[str, str | None, str], int] = {}
    return [
        first.setdefault((q.problem_id, q.answer, "" if q.answer is not None else q.response), i)
        for i, q in enumerate(questions)
    ]


def ask(
    questions: Sequence[Question], engine: Engine, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[JudgeVerdict]:
    """A verdict for each question, in order, by greedy decoding.

    A question that does not fit the judge's context at all, or on which the engine failed, is "invalid".
    """
    stand_in = distinct(questions)
    greedy = Decoding(0.0, 1.0, _ANSWER_TOKENS)
    requests = []
    for i in sorted(set(stand_in)):
        prompt = fitted_prompt(questions[i], engine.encode, engine.context)
        if prompt is not None:
            requests.append(Request("judge", str(i), 0, 0, prompt, greedy))
    verdicts: dict[int, JudgeVerdict] = {}
    for piece in engine.stream(requests, ()):
        for f in piece:
            verdicts[int(f.request.problem_id)] = parse_letter(f.text) if f.finish_reason != "error" else "invalid"
        progress(len(verdicts), len(requests))
    return [verdicts.get(i, "invalid") for i in stand_in]
