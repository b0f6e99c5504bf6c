"""A step's numbers: the short names that every run has, the token distribution, what belongs to the machine.

docs/training.md explains each name; a test compares that page with what runs write.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stapo_results.schema import SETTINGS

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.8, 0.95, 0.99)

_ALIASES = {
    "reward": "critic/rewards/mean",
    "entropy": "actor/entropy",
    "entropy_current": "actor/selector/current_entropy",
    "response_tokens": "response_length/mean",
    "grad_norm": "actor/grad_norm",
    "clip_fraction": "actor/pg_clipfrac",
    "rollout_kl": "rollout_corr/k3_kl",
    "threshold": "actor/selector/threshold",
}
_TIME_ALIASES = {
    "tokens_per_second": "perf/throughput",
    "memory_gib": "actor/perf/max_memory_allocated_gb",
    "host_memory_gib": "actor/perf/cpu_memory_used_gb",
}
_MAY_BE_UNDEFINED = {"training/rollout_actor_probs_pearson_corr"}
"""Not finite without anything being wrong: the correlation of constants."""

_SHARES = {
    "silenced_share": "actor/selector/silenced_tokens",
    "candidate_share": "actor/selector/candidate_tokens",
}


@dataclass(frozen=True)
class StepNumbers:
    """One step. `values` a run decides, `times` the machine decides, `not_finite` names what was NaN or infinite.

    A number that is not finite is in neither mapping: JSON has no NaN, and a missing name is noticed.
    """

    values: dict[str, float]
    times: dict[str, float]
    not_finite: tuple[str, ...]


def split(metrics: Mapping[str, Any]) -> StepNumbers:
    """veRL's metrics of a step, with the project's short names added (docs/training.md).

    Shares are of all response tokens of the step; a run that silences nothing has shares of 0.
    """
    values: dict[str, float] = {}
    times: dict[str, float] = {}
    not_finite = []
    for name, value in metrics.items():
        number = float(value)
        if not math.isfinite(number):
            if name not in _MAY_BE_UNDEFINED:
                not_finite.append(name)
            continue
        (times if _of_the_machine(name) else values)[name] = number
    for numbers, names in ((values, _ALIASES), (times, _TIME_ALIASES)):
        numbers |= {short: numbers[name] for short, name in names.items() if name in numbers}
    tokens = values.get("actor/selector/tokens", 0.0)
    for short, name in _SHARES.items():
        values[short] = values.get(name, 0.0) / tokens if tokens else 0.0
    values |= accuracies(values)
    return StepNumbers(values, times, tuple(sorted(not_finite)))


def _of_the_machine(name: str) -> bool:
    timed = "timing" in name or name == "actor/selector/seconds"
    return timed or name.startswith(("perf/", "training/rollout_probs")) or "/perf/" in name


def accuracies(validation: Mapping[str, float]) -> dict[str, float]:
    """`accuracy`, and `accuracy_SETTING` for each further setting: the mean over the validation sets of each.

    Args:
        validation: veRL's `val-core/<source>/acc/mean@n`, and `val-SETTING/<source>/acc/mean@n` of further settings.
    """
    prefixes = {"accuracy": "val-core/"} | {f"accuracy_{s}": f"val-{s}/" for s in SETTINGS}
    sets = {
        short: [float(v) for k, v in validation.items() if k.startswith(prefix) and "/acc/mean@" in k]
        for short, prefix in prefixes.items()
    }
    return {short: sum(values) / len(values) for short, values in sets.items() if values}


def entropy_distribution(entropy_N: np.ndarray) -> dict[str, float]:
    """Mean and quantiles (linear interpolation) of N token entropies in nats: token_entropy_mean, token_entropy_q05...

    Raises:
        ValueError: for no token.
    """
    if entropy_N.size == 0:
        raise ValueError("a step without a response token has no entropy")
    entropy_N = entropy_N.astype(np.float64)
    distribution = {"token_entropy_mean": float(entropy_N.mean())}
    for q, value in zip(QUANTILES, np.quantile(entropy_N, QUANTILES), strict=True):
        distribution[f"token_entropy_q{round(100 * q):02d}"] = float(value)
    return distribution


def truncated_share(lengths_B: np.ndarray, last_token_B: np.ndarray, limit: int, stops: Collection[int]) -> float:
    """Share of B responses that were cut at `limit` tokens: as long as the limit and not ended by a stop token.

    veRL's response_length/clip_ratio counts the responses as long as the step's longest one, whatever the limit.
    """
    cut_B = (lengths_B >= limit) & ~np.isin(last_token_B, list(stops))
    return float(cut_B.mean())
