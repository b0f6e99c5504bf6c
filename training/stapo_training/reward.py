"""The training reward: DAPO's rule, +1 or -1, by veRL's own verifier.

`verifier` (Hydra: reward.custom_reward_function.reward_kwargs.verifier) chooses how the answer is found:

- `fallback` (default): veRL 0.9.1's math_dapo as it is: an "Answer:" line, else the last box.
- `answer_line`: only an "Answer:" line (DAPO's original rule).
- `strict_box`: only the last \\boxed{}, within the last 100 characters, equal as a string (JustRL's fork).
"""

from __future__ import annotations

from typing import Any

from stapo_results.errors import BadInput

VERIFIERS = ("fallback", "answer_line", "strict_box")


def verifier_from(config: Any) -> str:
    """The verifier that a composed configuration names; run.json keeps it under the same key.

    Raises:
        BadInput: for one that does not exist, before anything starts.
    """
    name = config.reward.custom_reward_function.reward_kwargs.verifier
    if name not in VERIFIERS:
        raise BadInput(
            "unknown verifier",
            found=name,
            expected=" | ".join(VERIFIERS),
            next_step="reward.custom_reward_function.reward_kwargs.verifier=fallback",
        )
    return name


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    verifier: str = "fallback",
    **_: Any,
) -> dict[str, Any]:
    """Score one response.

    Returns:
        score (+1.0 or -1.0), acc (bool) and pred (the answer that was read): what veRL's reward manager logs.

    Raises:
        ValueError: for a verifier that does not exist.
    """
    from stapo_training.verl_ext import verifiers  # imports veRL: only where a reward is computed

    if verifier not in VERIFIERS:
        raise ValueError(f"verifier {verifier!r} is none of {', '.join(VERIFIERS)}")
    return verifiers.score(solution_str, str(ground_truth), verifier)
