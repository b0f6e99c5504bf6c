"""From a method's configuration to its selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stapo_results.errors import BadInput
from stapo_training import selectors
from stapo_training.selectors import Selection

Select = Callable[..., Selection]


class SelectorConfig(BaseModel):
    """`actor_rollout_ref.selector` of the Hydra configuration.

    policy: whose probabilities and entropies. `current` is Algorithm 1: the policy at the mini-batch's start.
    scope: which tokens share one quantile: the mini-batch over all ranks, or one micro-batch of one rank.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["keep_all", "silence_spurious", "top_entropy"]
    policy: Literal["current"] = "current"
    scope: Literal["mini_batch", "micro_batch"] = "mini_batch"
    tau_p: float = Field(0.002, gt=0, le=1)
    q: float = Field(0.75, ge=0, le=1)
    share: float = Field(0.2, gt=0, le=1)

    @property
    def select(self) -> Select:
        """The selector with its parameters bound: (stats, pool=...) -> Selection."""
        if self.name == "silence_spurious":
            return partial(selectors.silence_spurious, tau_p=self.tau_p, q=self.q)
        if self.name == "top_entropy":
            return partial(selectors.top_entropy, share=self.share)
        return selectors.keep_all

    @property
    def needs_statistics(self) -> bool:
        return self.name != "keep_all"


def selector_from(config: Mapping[str, Any]) -> SelectorConfig:
    """The validated selector of a configuration.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    try:
        return SelectorConfig.model_validate(dict(config))
    except ValidationError as e:
        first = e.errors()[0]
        raise BadInput(
            f"actor_rollout_ref.selector.{'.'.join(map(str, first['loc']))}: {first['msg']}",
            found=first.get("input"),
            expected=f"one of the fields {', '.join(SelectorConfig.model_fields)} with an allowed value",
            next_step="choose a method=... overlay or correct the override",
        ) from None
