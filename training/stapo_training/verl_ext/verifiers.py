"""veRL's own math_dapo verifier, unmodified, behind the three ways of reading an answer (see `reward`)."""

from __future__ import annotations

from typing import Any

from verl.utils.reward_score import math_dapo

_WINDOW = 300  # characters of the response's end that DAPO's verifier reads
_BOX = "\\boxed{"
_LONGEST_BOX = 2000  # characters; a longer one is no answer


def score(response: str, gold: str, verifier: str) -> dict[str, Any]:
    """score (+1.0 or -1.0), acc and pred of one response; pred is "" where no answer was found."""
    if verifier == "strict_box":
        pred = last_box(response)
        correct = pred == gold
    elif verifier == "answer_line":
        correct, pred = math_dapo.is_correct_minerva(response[-_WINDOW:], gold)
    else:
        result: Any = math_dapo.compute_score(response, gold)
        correct, pred = result["acc"], result["pred"]
    return {"score": 1.0 if correct else -1.0, "acc": bool(correct), "pred": pred or ""}


def last_box(response: str) -> str | None:
    """What veRL's function finds in the response's last box, wherever the box is; None where it is not closed.

    veRL itself looks at the last 100 characters alone, so that a right answer with a sentence behind it, or a long one,
    is scored wrong (verl issue 7440).
    """
    start = response.rfind(_BOX)
    box = math_dapo.last_boxed_only_string(response[start : start + _LONGEST_BOX]) if start >= 0 else None
    return None if box is None else math_dapo.remove_boxed(box)
