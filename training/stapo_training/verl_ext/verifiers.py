"""veRL's own math_dapo verifier, unmodified, behind the three ways of reading an answer (see `reward`)."""

from __future__ import annotations

from typing import Any

from verl.utils.reward_score import math_dapo

_WINDOW = 300  # characters of the response's end that DAPO's verifier reads


def score(response: str, gold: str, verifier: str) -> dict[str, Any]:
    """score (+1.0 or -1.0), acc and pred of one response; pred is "" where no answer was found."""
    if verifier == "answer_line":
        correct, pred = math_dapo.is_correct_minerva(response[-_WINDOW:], gold)
        result: Any = {"score": 1.0 if correct else -1.0, "acc": correct, "pred": pred}
    else:
        result = math_dapo.compute_score(response, gold, strict_box_verify=verifier == "strict_box")
    return {"score": result["score"], "acc": bool(result["acc"]), "pred": result["pred"] or ""}
