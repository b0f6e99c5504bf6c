"""What the judge sees and how its reply is read.

The prompt is the published one (`published`). CompassVerifier answers A (correct), B (incorrect) or C (the response is
no answer: cut off, repetitive, refused); B and C both count as incorrect. A reply is read as its README reads it, or as
JustRL's script does, and `form` says in which form the letter came.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from stapo_eval.grading.rules import Gold, in_one
from stapo_eval.judge.published import JudgePrompt
from stapo_results.schema import FinishReason, JudgeMode, JudgeVerdict, Letter, ReplyForm

MEANING: dict[Letter, JudgeVerdict] = {"A": "correct", "B": "incorrect", "C": "invalid", "": "invalid"}
KNOWN_FORMS = ("letter", "marked")


@dataclass(frozen=True)
class Question:
    """What the judge is asked about; `answer` is what was extracted, or None; `cut`: the response met its limit."""

    benchmark: str
    problem_id: str
    problem: str
    gold: Gold
    response: str
    answer: str | None
    cut: bool = False


def message(question: Question, shown: str, prompt: JudgePrompt, mode: JudgeMode = "compass") -> str:
    """The prompt with what is shown of the response. JustRL's script fills in an empty question; its mode does too."""
    asked = question.problem if mode == "compass" else ""
    return prompt.text.format(question=asked, gold_answer=in_one(question.gold), llm_response=shown)


def parse_reply(
    reply: str, mode: JudgeMode = "compass", finish_reason: FinishReason = "stop"
) -> tuple[Letter, ReplyForm]:
    """The letter of a reply, and the form in which it came.

    Alone, white space aside, in either mode. Else in CompassVerifier's: the last box with a letter; after the last
    "Final Judgment:" the last letter behind a bracket; the last letter anywhere there, which reads a B out of
    "Because". A known form is a box that is the whole reply, and a box or closed brackets after "Final Judgment:",
    unless the reply was cut off at its limit: elsewhere they may be quoted.
    """
    if (alone := reply.strip()) in ("A", "B", "C"):
        return alone, "letter"
    if mode == "justrl-exact":
        return "", ""
    _, marker, judgment = reply.rpartition("Final Judgment:")
    box, complete = r"boxed\{([ABC])\}", finish_reason != "length"
    if boxed := re.findall(box, reply):
        marked = re.fullmatch(rf"\\?{box}", alone) or (marker and re.search(box, judgment))
        return boxed[-1], "marked" if marked and complete else "stray"
    if bracketed := re.findall(r"\(([ABC])(\)?)", judgment):
        letter, closed = bracketed[-1]
        return letter, "marked" if marker and closed and complete else "stray"
    stray = re.findall("[ABC]", judgment)
    return (stray[-1], "stray") if stray else ("", "")


def question_key(question: Question, prompt: JudgePrompt, mode: JudgeMode) -> str:
    """16 hex digits of all that a question is made of, the prompt included.

    Equal extracted answers to one problem are one question: the first response that gives the answer is shown for all.
    A response without an answer or one that was cut off is a question of its own, and so is every one in JustRL's mode.
    """
    by_response = question.answer is None or question.cut or mode == "justrl-exact"
    parts = [prompt.sha256, prompt.reply_tokens, mode, question.benchmark, question.problem_id, question.problem]
    parts += [question.gold, *([None, question.response] if by_response else [question.answer])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def fitted_prompt(
    question: Question,
    encode: Callable[[str], list[int]],
    context: int,
    prompt: JudgePrompt,
    mode: JudgeMode = "compass",
) -> tuple[tuple[int, ...], bool] | None:
    """(the prompt's tokens with as much of the response as fits, whether that is its end alone); None if none does.

    The longest reply, but at most an eighth of the context, is kept free.

    Args:
        encode: text of a user message -> token ids in the judge's chat template.
        context: the judge's positions; prompt and reply stay within them.
        mode: justrl-exact shows the whole response as it is or, where no position would be left, is not asked.
    """
    if mode == "justrl-exact":
        prompt_ids = encode(message(question, question.response, prompt, mode))
        return (tuple(prompt_ids), False) if len(prompt_ids) < context else None
    room = context - min(prompt.reply_tokens, context // 8)
    bare = len(encode(message(question, "", prompt)))
    if bare > room:
        return None
    # no token of a long response has more than eight characters on average
    shown = plain(question.response[-8 * (room - bare) :]) if room > bare else ""
    while True:
        tokens = encode(message(question, shown, prompt))
        if len(tokens) <= room:
            return tuple(tokens), len(shown) < len(plain(question.response))
        if not shown:
            return None
        keep = min(len(shown) - 1, len(shown) * (room - bare) // (len(tokens) - bare))
        shown = shown[len(shown) - keep :]


def plain(text: str) -> str:
    """A chat format's control tokens, spelt out by a response, would end the judge's message early."""
    return text.replace("<|", "< |")
