"""Alarms of a run: pure functions from the numbers of its steps to lines for people.

An alarm begins at the step where its condition first holds and ends where it no longer holds; only the beginning is
written to alarms.jsonl, so that a condition that lasts is one line and not a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_results.schema import Record
from stapo_training.methods import validated

Kind = Literal[
    "not_finite",
    "rollout_broken",
    "rollout_mismatch",
    "entropy_collapse",
    "entropy_explosion",
    "silenced_share",
    "truncation",
    "disk",
    "failed_rollouts",
    "failed_validation",
    "no_signal",
]

UNSAVED: frozenset[str] = frozenset({"not_finite", "rollout_broken", "disk"})
"""A run that is stopped by one of these saves nothing: the weights may be broken, or there is no room."""

_DIFFERENCE = "training/rollout_probs_diff_mean"
_LEAST_KL = 1e-3
"""nats a token; a `rollout_kl` growing under it is no alarm: healthy bf16 has about as much, equal arithmetic 1e-8."""

_WITHOUT_REFERENCE = ("keep_all", "top_entropy")
"""Selectors that silence nothing, or most tokens by design; any other one is meant to silence few."""


class AlarmConfig(BaseModel):
    """`alarms` of the Hydra configuration (base.yaml gives the reason of each value).

    entropy_collapse, entropy_explosion: factors on the mean entropy of the run's first `window` steps.
    silenced_share: factor on `run.silenced_share_reference`. truncation: rise of the truncated share over the mean of
    the first `window` steps, absolute. rollout_mismatch: mean difference of a token's probability between rollout and
    trainer. rollout_broken: the same in the first `window` steps after a start. rollout_growth: factor on the median
    `rollout_kl` of the first `window` steps. disk: checkpoints that must still fit. stop: kinds that end the run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int = Field(5, ge=1)
    entropy_collapse: float = Field(0.1, gt=0, lt=1)
    entropy_explosion: float = Field(3.0, gt=1)
    silenced_share: float = Field(10.0, gt=1)
    truncation: float = Field(0.2, gt=0, lt=1)
    rollout_mismatch: float = Field(0.02, gt=0, lt=1)
    rollout_broken: float = Field(0.05, gt=0, lt=1)
    rollout_growth: float = Field(10.0, gt=1)
    disk: int = Field(2, ge=1)
    stop: tuple[Kind, ...] = ("not_finite", "rollout_broken")


class Alarm(Record):
    """One line of alarms.jsonl."""

    step: int
    kind: Kind
    line: str


def alarms_from(config: Mapping[str, Any]) -> AlarmConfig:
    """The validated alarms of a configuration.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    return validated(AlarmConfig, config, "alarms", "correct the override; stapo-train run ... --config-only shows all")


def silenced_reference(selector: str, reference: float | None) -> float | None:
    """The silenced share to measure a selector against, `reference` of the size; None where it has none."""
    return None if selector in _WITHOUT_REFERENCE else reference


_REMEMBERED: dict[str, Callable[[Sequence[float]], float]] = {
    "entropy": fmean,
    "truncated_share": fmean,
    "rollout_kl": median,
    "zero_variance_share": fmean,
}
"""What alarms remember, and the mean of a window: all but the last one is compared with a run's first steps."""
Series = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Watch:
    """What alarms remember of a run: the first and the last `window` values of what it compares, and which kinds are
    on. Begins empty; `observe` gives the next one, so a resumed run folds over the steps on disk."""

    first: Series = field(default_factory=lambda: dict.fromkeys(_REMEMBERED, ()))
    last: Series = field(default_factory=lambda: dict.fromkeys(_REMEMBERED, ()))
    on: frozenset[str] = frozenset()


def observe(
    watch: Watch,
    limits: AlarmConfig,
    step: int,
    values: Mapping[str, float],
    *,
    resumed_at: int = 0,
    not_finite: Sequence[str] = (),
    silenced_reference: float | None = None,
    disk_free: int | None = None,
    checkpoint_bytes: int | None = None,
) -> tuple[Watch, list[Alarm]]:
    """Look at one step.

    Args:
        watch: the state before the step.
        values: the step's metrics by their short names (entropy, truncated_share, silenced_share), and veRL's
            `training/rollout_probs_diff_mean`.
        resumed_at: the step that this process started from; only after it a rollout can be broken.
        not_finite: names whose value was NaN or infinite.
        silenced_reference: the usual silenced share of this model size; None where the share has no reference.
        disk_free, checkpoint_bytes: bytes; None while no checkpoint has been written.

    Returns:
        The state after the step, and an alarm for each condition that began with it.
    """
    n = limits.window
    new = {k: (values[k],) if k in values else () for k in _REMEMBERED}
    first, last = ({k: old[k] + new[k] for k in _REMEMBERED} for old in (watch.first, watch.last))
    watch = Watch({k: v[:n] for k, v in first.items()}, {k: v[-n:] for k, v in last.items()}, watch.on)
    lines = _window_lines(watch, limits)
    difference = values.get(_DIFFERENCE, 0.0)
    if difference > limits.rollout_mismatch:
        text = f"rollout and trainer differ by {difference:.3f} in a token's probability (mean), over {{:g}}"
        lines["rollout_mismatch"] = text.format(limits.rollout_mismatch)
        # not positive for a step of an earlier process
        if 0 < step - resumed_at <= n and difference > limits.rollout_broken:
            lines["rollout_broken"] = text.format(limits.rollout_broken)
    if not_finite:
        more = f" and {len(not_finite) - 3} more" if len(not_finite) > 3 else ""
        lines["not_finite"] = f"not finite: {', '.join(not_finite[:3])}{more}"
    share = values.get("silenced_share", 0.0)
    if silenced_reference and share > limits.silenced_share * silenced_reference:
        lines["silenced_share"] = (
            f"{100 * share:.3g} % of the tokens silenced, over {limits.silenced_share:g} times this size's "
            f"{100 * silenced_reference:.3g} % (run.silenced_share_reference)"
        )
    if failed := int(values.get("failed_rollouts", 0)):
        lines["failed_rollouts"] = f"{failed} responses failed; their prompts are trained with fewer than rollout.n"
    if failed := int(values.get("failed_validation", 0)):
        lines["failed_validation"] = f"{failed} validation samples failed and count as wrong in `accuracy`"
    elif "failed_validation" not in values and "failed_validation" in watch.on:
        lines["failed_validation"] = ""  # no validation: it is on until one goes well
    if watch.last["zero_variance_share"] == (1.0,) * n:
        lines["no_signal"] = (
            f"all responses of each prompt had one reward in {n} steps, so that nothing is compared: look at golds, "
            "reward and how hard the prompts are"
        )
    if disk_free is not None and checkpoint_bytes and disk_free < limits.disk * checkpoint_bytes:
        lines["disk"] = (
            f"{disk_free / 2**30:.2f} GiB of disk free, room for {disk_free // checkpoint_bytes} more "
            f"checkpoints of {checkpoint_bytes / 2**30:.2f} GiB"
        )
    begun = [Alarm(step=step, kind=kind, line=line) for kind, line in lines.items() if kind not in watch.on]
    return replace(watch, on=frozenset(lines)), begun


def _window_lines(watch: Watch, limits: AlarmConfig) -> dict[Kind, str]:
    """What the last window says against the first, which has to be whole."""
    n, lines = limits.window, dict[Kind, str]()
    window_means = {k: mean for k, mean in _REMEMBERED.items() if len(watch.first[k]) == n}
    means = {k: (mean(watch.first[k]), mean(watch.last[k])) for k, mean in window_means.items()}
    before, after = means.get("entropy", (0.0, 0.0))
    text = f"entropy {after:.4g} nats a token (last {n} steps), {{}} {before:.4g} (first {n} steps)"
    if after < limits.entropy_collapse * before:
        lines["entropy_collapse"] = text.format(f"below {limits.entropy_collapse:g} of")
    elif after > limits.entropy_explosion * before:
        lines["entropy_explosion"] = text.format(f"over {limits.entropy_explosion:g} times")
    before, after = means.get("truncated_share", (0.0, 0.0))
    if after > before + limits.truncation:
        cut = "of the responses cut at the length limit"
        lines["truncation"] = f"{after:.1%} {cut} (last {n} steps), {before:.1%} in the first {n} steps"
    before, after = means.get("rollout_kl", (0.0, 0.0))
    if after > max(_LEAST_KL, limits.rollout_growth * before):
        lines["rollout_mismatch"] = (
            f"median KL of rollout and trainer {after:.2g} nats a token (last {n} steps), over "
            f"{limits.rollout_growth:g} times the {before:.2g} of the first {n} steps"
        )
    return lines
