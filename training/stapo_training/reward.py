"""The training reward: DAPO's rule, +1 or -1, by veRL's own verifier.

`verifier` (Hydra: `VERIFIER`) chooses how the answer is found:

- `strict_box` (default): the last \\boxed{}, equal to the gold as a string (JustRL's fork, which asks for a box).
- `fallback`: veRL 0.9.1's math_dapo as it is: an "Answer:" line in the last 300 characters, else the last box in the
  last 100. A line "**Answer:**" before a right box scores -1.
- `answer_line`: only an "Answer:" line (DAPO's original rule).

Whatever the verifier, each sample says whether its last box, read as the evaluation reads it, contradicts the score.

`noise` is the share of a training's responses whose score is a fair coin, by the sample's own seed: a reward that tells
less of the answer. What the verifier found (`acc`, validation, the two of `MISJUDGED`) is from before the coin. A CPU's
rollout alone gives the seed.
"""

from __future__ import annotations

import random
from typing import Any

from stapo_results.answers import last_boxed, normalise_gold
from stapo_results.errors import BadInput
from stapo_results.seeds import derive_seed

PATH = "pkg://stapo_training.reward"
"""The value of reward.custom_reward_function.path that names this file."""
VERIFIER = "reward.custom_reward_function.reward_kwargs.verifier"
VERIFIERS = ("strict_box", "fallback", "answer_line")
NOISE = "reward.custom_reward_function.reward_kwargs.noise"
SAMPLE_SEED = "sample_seed"
"""Of `extra_info`: the seed of a training's sample, where the rollout gives it."""
MISJUDGED = ("box_right_scored_wrong", "box_wrong_scored_right")
"""What the reward says of each sample, and each step's metrics count."""
_LONGEST = 2000
"""Characters of the last box that may contradict the score."""


def verifier_from(config: Any) -> str | None:
    """The verifier that a composed configuration names, under a key of run.json too; None for another reward.

    Raises:
        BadInput: for one that does not exist, before anything starts.
    """
    chosen = config.reward.custom_reward_function
    if chosen.path != PATH:
        return None
    if unknown := set(chosen.reward_kwargs) - {"verifier", "noise"}:
        raise BadInput("the reward has no such argument", found=", ".join(sorted(unknown)), expected="verifier, noise",
                       next_step="correct its name")  # fmt: skip
    name = chosen.reward_kwargs.get("verifier", VERIFIERS[0])
    if name not in VERIFIERS:
        raise BadInput(
            "unknown verifier",
            found=name,
            expected=" | ".join(VERIFIERS),
            next_step=f"{VERIFIER}=strict_box",
        )
    return name


def noise_from(config: Any) -> float:
    """The noise that a composed configuration names; 0 for none.

    Raises:
        BadInput: for no share below 1, or a rollout that gives the reward no seed.
    """
    chosen = config.reward.custom_reward_function
    noise = chosen.reward_kwargs.get("noise", 0) if chosen.path == PATH else 0
    rollout = config.actor_rollout_ref.rollout.name
    if not isinstance(noise, int | float) or not 0 <= noise < 1:
        raise BadInput(f"{NOISE} is no share", found=noise, expected="0 up to 1, without 1", next_step=f"{NOISE}=0.5")
    if noise and rollout != "stapo_cpu":
        raise BadInput("a noisy reward needs the seed of each sample", found=f"the rollout {rollout}",
                       expected="hardware=cpu", next_step=f"leave out {NOISE}")  # fmt: skip
    return float(noise)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    verifier: str = "strict_box",
    noise: float = 0.0,
    **_: Any,
) -> dict[str, Any]:
    """Score one response.

    Returns:
        score (+1.0 or -1.0), acc (bool) and pred (the answer that was read): what veRL's reward manager logs; and
        the two of `MISJUDGED` (bool).

    Raises:
        ValueError: for a verifier that does not exist.
    """
    from stapo_training.verl_ext import verifiers  # imports veRL: only where a reward is computed

    if verifier not in VERIFIERS:
        raise ValueError(f"verifier {verifier!r} is none of {', '.join(VERIFIERS)}")
    score = verifiers.score(solution_str, str(ground_truth), verifier)
    start = max(0, solution_str.rfind("\\boxed"))
    box = last_boxed(solution_str[start : start + _LONGEST])
    right = box is not None and normalise_gold(box) == normalise_gold(str(ground_truth))
    misjudged = (right and not score["acc"], box is not None and not right and score["acc"])
    if noise and SAMPLE_SEED in (extra_info or {}):
        luck = random.Random(derive_seed(extra_info[SAMPLE_SEED], "noise"))  # type: ignore[index]
        score["score"] = luck.choice((1.0, -1.0)) if luck.random() < noise else score["score"]
    return score | dict(zip(MISJUDGED, misjudged, strict=True))
