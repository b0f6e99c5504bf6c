"""What the judge sees and how its reply is read.

CompassVerifier's protocol: it sees question, gold answer and response, and answers A (correct), B (incorrect) or C
(the response is no answer: cut off, repetitive, refused). B and C both count as incorrect. The prompt gives that task
in our own words. A response is shown from its end, as much as fits: a final answer stands there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stapo_eval.grading.rules import Gold, in_one
from stapo_results.schema import JudgeMode, JudgeVerdict

MODES: tuple[JudgeMode, ...] = ("compass", "justrl-exact")
TAIL_TOKENS = 4096  # of a response
ANSWER_TOKENS = 3  # a letter, perhaps after a space or line end, and the stop token
Letter = Literal["A", "B", "C", ""]
_LETTERS: dict[str, JudgeVerdict] = {"A": "correct", "B": "incorrect", "C": "invalid"}
_TASK = """Compare a response's final answer with the reference answer.
The reference is right and the question is sound: do not solve or doubt them.
Look at the final answer alone, not at the reasoning, and not at a box around it.
Another notation, form or wording of the same meaning agrees. Every part that is asked for must be there and agree.
A: it agrees
B: it does not agree
C: there is no answer to compare (cut off, endless repetition, refused, about something else)
Reply with one letter."""


@dataclass(frozen=True)
class Question:
    """What the judge is asked about; `answer` is what was extracted, or None."""

    benchmark: str
    problem_id: str
    problem: str
    gold: Gold
    response: str
    answer: str | None


def message(question: Question, tail: str, mode: JudgeMode = "compass") -> str:
    """The judge's prompt with the response's end `tail`.

    JustRL's script fills in an empty question; its mode does the same.
    """
    asked = question.problem if mode == "compass" else ""
    return f"{_TASK}\n\nQUESTION\n{asked}\n\nREFERENCE\n{in_one(question.gold)}\n\nRESPONSE\n{tail}\n\nLETTER"


def parse_letter(reply: str, mode: JudgeMode = "compass") -> Letter:
    """One letter A, B or C, white space aside (JustRL: exactly), and nothing else; "" is no letter."""
    text = reply if mode == "justrl-exact" else reply.strip()
    return text if text in _LETTERS else ""  # type: ignore[return-value]  # one of its keys


def verdict_of(letter: Letter) -> JudgeVerdict:
    """What a letter means; no letter is "invalid", which like "incorrect" is a no."""
    return _LETTERS.get(letter, "invalid")


def question_key(question: Question, mode: JudgeMode) -> str:
    """16 hex digits of all that a question is made of, the wording of the task included.

    Equal extracted answers to one problem are one question: the first response that gives the answer is shown for all.
    A response without an answer is a question of its own, and so is every response in JustRL's mode, which shows it
    whole.
    """
    whole = question.answer is None or mode == "justrl-exact"
    parts = [_TASK, mode, question.benchmark, question.problem_id, question.problem, question.gold]
    parts += [None, question.response] if whole else [question.answer]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def fitted_prompt(
    question: Question, encode: Callable[[str], list[int]], context: int, mode: JudgeMode = "compass"
) -> tuple[int, ...] | None:
    """The prompt's tokens with as much of the response's end as fits, or None if not even an empty one does.

    Args:
        encode: text of a user message -> token ids in the judge's chat template.
        context: the judge's positions; prompt and reply stay within them.
        mode: justrl-exact shows the whole response or, where that does not fit, is not asked.
    """
    room = context - ANSWER_TOKENS
    if mode == "justrl-exact":
        whole = encode(message(question, question.response, mode))
        return tuple(whole) if len(whole) <= room else None
    bare = len(encode(message(question, "")))
    if bare > room:
        return None
    budget = min(TAIL_TOKENS, room - bare)
    tail = _plain(question.response[-8 * budget :]) if budget else ""
    while True:
        prompt = encode(message(question, tail))
        used = len(prompt) - bare
        if used <= budget or not tail:
            return tuple(prompt) if len(prompt) <= room else None
        keep = min(len(tail) - 1, len(tail) * budget // used)
        tail = tail[len(tail) - keep :]


def _plain(text: str) -> str:
    """A chat format's control tokens, spelt out by a response, would end the judge's message early."""
    return text.replace("<|", "< |")
