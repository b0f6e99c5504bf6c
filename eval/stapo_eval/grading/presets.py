"""The presets of docs/evaluation.md: how the answer is found in a response and compared with the gold."""

from __future__ import annotations

from stapo_eval.grading.rules import Gold, Options, check_preset, full, in_one, justrl, library, quick
from stapo_eval.grading.rules.text.cleaning import is_whole, key, number, same_whole
from stapo_eval.grading.rules.verdict import are_parts, listed
from stapo_results.answers import answer_line, final_boxes, last_boxed


def extract(response: str, gold: Gold, preset: str = "ours", *, use_answer_line: bool = False) -> str | None:
    """The answer that a preset grades; None where there is none.

    For `math-verify` it is the whole response, in which that library looks for itself.

    Args:
        use_answer_line: without a box, take what follows "Answer:" or "The answer is".

    Raises:
        BadInput: the preset does not exist.
    """
    check_preset(preset)
    if preset == "math-verify":
        return response
    answer = last_boxed(response)
    if answer is None:
        return answer_line(response) if use_answer_line else None
    boxes = final_boxes(response) if preset == "ours" else []
    if len(boxes) > 1 and (listed(gold) > listed(answer) or are_parts(boxes, gold)):
        return ", ".join(boxes)
    return answer


def _strict(gold: str, answer: str) -> bool:
    g, a = key(gold), key(answer)
    if g == a:
        return True
    if is_whole(g) and is_whole(a):
        return same_whole(g, a)
    x = number(g)
    return x is not None and x == number(a)


def decide_quickly(gold: Gold, answer: str, options: Options) -> bool | None:
    """The verdict where it takes no algebra, else None: bounded on any input."""
    if options.preset == "ours":
        return quick(gold, answer, options)
    if options.preset == "strict":
        return _strict(in_one(gold), answer)
    return justrl.quick(in_one(gold), answer) if options.preset == "justrl" else None


def decide(gold: Gold, answer: str, options: Options) -> tuple[bool | None, str | None]:
    """(verdict, answer that was found): in a process that may be killed. (None, None) where no answer was found."""
    if options.preset == "math-verify":
        return library.grade(in_one(gold), answer)
    if options.preset == "justrl":
        return justrl.full(in_one(gold), answer), answer
    if options.preset == "strict":
        return _strict(in_one(gold), answer), answer
    return full(gold, answer, options), answer
