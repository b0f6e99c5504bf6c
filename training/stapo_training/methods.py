"""From a method's configuration to its selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stapo_results.errors import BadInput
from stapo_training.selection import own

if TYPE_CHECKING:
    import torch

    from stapo_training.selection.selectors import Selection
    from stapo_training.selection.token_stats import TokenStats

Select = Callable[..., "Selection"]
SELECTORS = (
    *("keep_all", "silence_spurious", "silence_spurious_wrong", "silence_low_probability", "silence_high_entropy"),
    *("silence_random", "top_entropy"),
)
M = TypeVar("M", bound=BaseModel)

PER_TOKEN_LOSSES = ("vanilla", "cispo")
"""veRL's policy losses in which a token's term depends on no other token's mask, and which aggregate as they are told
(sapo takes the mean of sequence means whatever is set)."""


class SelectorConfig(BaseModel):
    """`actor_rollout_ref.selector` of the Hydra configuration.

    name: one of `SELECTORS`, or FILE.py:FUNCTION (selection/own.py), which is never trained by a guess.
    policy: whose probabilities and entropies. `current` is Algorithm 1: the policy at the mini-batch's start; `old` the
        policy that the old-log-prob pass scored, which costs nothing more and is exact in a step's first mini-batch.
    scope: which tokens share one quantile: the mini-batch over all ranks, one micro-batch of one rank (all that a loss
        function alone can see), or one response (the same with micro-batches of one).
    form: how policy `current` over the mini-batch is computed. `two_pass` asks a forward pass first and is the
        reference; `speculative` guesses the threshold, trains, and corrects what the guess put on the wrong side, to
        the same gradient (verl_ext/plans/guessed.py); top_entropy always takes two_pass.
    log_entropy: log the current policy's entropy over all response tokens; without it, and without a token log, only
        candidates' are computed.
    seed: of the random selector.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    policy: Literal["current", "old"] = "current"
    scope: Literal["mini_batch", "micro_batch", "response"] = "mini_batch"
    form: Literal["speculative", "two_pass"] = "speculative"
    tau_p: float = Field(0.002, gt=0, le=1)
    q: float = Field(0.75, ge=0, le=1)
    share: float = Field(0.2, gt=0, le=1)
    seed: int = Field(0, ge=0)
    log_entropy: bool = True

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in SELECTORS and not own.is_own(name):
            raise ValueError(f"no such selector; one of {', '.join(SELECTORS)}, or FILE.py:FUNCTION")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> SelectorConfig:
        _ = self.parameters  # a selector whose parameters are no fields here is found before a run, not in it
        return self

    @property
    def parameters(self) -> dict[str, float]:
        """The values of the selector's own parameters, which its function names."""
        keywords = [p for p in signature(self._function).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
        taken = [p for p in keywords if p.name not in ("pool", "threshold")]
        fields = type(self).model_fields
        if unknown := [p.name for p in taken if p.name not in fields and p.default is Parameter.empty]:
            raise ValueError(f"{self.name} takes {', '.join(unknown)}, which SelectorConfig does not have")
        return {p.name: getattr(self, p.name) for p in taken if p.name in fields}

    @property
    def _function(self) -> Select:
        from stapo_training.selection import selectors  # here: what a method is can be read without torch

        return own.load(self.name) if own.is_own(self.name) else getattr(selectors, self.name)

    @property
    def select(self) -> Select:
        """The selector with its parameters bound: (stats, pool=..., threshold=...) -> Selection."""
        return partial(self._function, **self.parameters)

    @property
    def selects(self) -> bool:
        """Whether any token can be silenced, so that statistics are needed at all."""
        return self.name != "keep_all"

    @property
    def needs_keys(self) -> bool:
        return self.name == "silence_random" or own.is_own(self.name)

    def wants_entropy(self, stats: TokenStats) -> torch.Tensor:
        """The tokens (N,) whose entropy has to be known: all, or the candidates, which need only probabilities."""
        if self.log_entropy or self._ranks_freely:
            return stats.response_N
        from stapo_training.selection import selectors

        rare = selectors.rare_in_wrong if self.name == "silence_spurious_wrong" else selectors.rare_in_correct
        return rare(stats, self.tau_p)

    @property
    def plan(self) -> Literal["masked", "two_pass", "guessed", "local"]:
        """How a mini-batch is trained.

        masked: the mask is known before the pass. two_pass: a forward pass gives it. guessed: speculative. local: each
        micro-batch decides for itself while it is trained.
        """
        if self.scope == "micro_batch":
            return "local"
        if self.policy == "old":
            return "masked"
        guessable = self.scope == "mini_batch" and not self._ranks_freely
        return "guessed" if self.form == "speculative" and guessable else "two_pass"

    @property
    def _ranks_freely(self) -> bool:
        """Whether it may look at every token: a moved threshold of top_entropy has wrong tokens in every sequence, so
        that all of them would be run again; of a function of somebody's own nothing is known."""
        return self.name == "top_entropy" or own.is_own(self.name)


class AdvantageConfig(BaseModel):
    """`actor_rollout_ref.advantage` of the Hydra configuration: what becomes of the advantages before they are trained.

    reweight: alpha of Advantage Reweighting (`objectives.reweighted_advantage`); 0 changes nothing.
    amplify: W of STARE (`objectives.amplified_advantage`); 1 changes nothing. rarest: the share of the tokens with
        A > 0 that are amplified. target_entropy: nothing is while the mean entropy is at least this, in nats.
    isolate: eta of Lopti (`objectives.isolated_advantages`): two updates a mini-batch; 0 is one update of all tokens.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    reweight: Annotated[float, Field(ge=0, le=1)] = 0.0
    amplify: Annotated[float, Field(ge=1)] = 1.0
    rarest: Annotated[float, Field(gt=0, le=1)] = 0.1
    target_entropy: Annotated[float, Field(ge=0)] = 0.3
    isolate: Annotated[float, Field(ge=0, le=1)] = 0.0


def advantage_from(config: Any) -> AdvantageConfig:
    """The validated part of `actor_rollout_ref`, checked against the selector, the loss and the token log.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    advantage = validated(
        AdvantageConfig, config.advantage, "actor_rollout_ref.advantage", "choose a method=... overlay"
    )
    actor = config.actor
    if advantage.isolate or advantage.reweight or advantage.amplify > 1:
        for key, found, allowed in (
            ("policy_loss.loss_mode", actor.policy_loss.loss_mode, PER_TOKEN_LOSSES),
            ("entropy_coeff", actor.entropy_coeff, (0,)),
        ):
            if found not in allowed:
                raise BadInput(
                    f"actor_rollout_ref.actor.{key} does not go with actor_rollout_ref.advantage (token by token)",
                    found=found,
                    expected=" | ".join(map(str, allowed)),
                    next_step=f"set actor_rollout_ref.actor.{key}={allowed[0]}",
                )
    if advantage.isolate:
        alone = (
            ("selector.name", config.selector.name, "keep_all"),
            ("actor.use_kl_loss", config.actor.use_kl_loss, False),
            ("token_log.mode", config.token_log.mode, "off"),
        )
        for key, found, expected in alone:
            if found != expected:
                raise BadInput(
                    f"actor_rollout_ref.{key} does not go with advantage.isolate, which trains a mini-batch twice",
                    found=found,
                    expected=expected,
                    next_step=f"set actor_rollout_ref.{key}={expected}",
                )
    return advantage


class ProxyConfig(BaseModel):
    """`actor_rollout_ref.proxy` of the Hydra configuration: Lp-Reg's proxy distribution.

    min_p: tokens less probable than this share of the most probable one are noise; 0: no proxy.
    lowest: the share of the mini-batch's tokens with A < 0, from the least probable up, that may be drawn to it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lowest: Annotated[float, Field(gt=0, le=1)] = 0.01


def proxy_from(config: Any, algorithm: Any = None) -> ProxyConfig:
    """The validated part of `actor_rollout_ref`; `algorithm` too when given.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    proxy = validated(ProxyConfig, config.proxy, "actor_rollout_ref.proxy", "choose a method=... overlay")
    actor, loss = config.actor, config.actor.policy_loss.loss_mode
    if (proxy.min_p > 0) != (loss == "lp_reg"):
        raise BadInput(
            "actor_rollout_ref.proxy.min_p and actor_rollout_ref.actor.policy_loss.loss_mode do not belong together",
            found=f"min_p {proxy.min_p:g}, loss_mode {loss}",
            expected="min_p above 0 with lp_reg, and with no other loss",
            next_step="set neither, and choose method=lp-reg or another one",
        )
    if loss != "lp_reg":
        return proxy
    sharded, fsdp = "ulysses_sequence_parallel_size", actor.fsdp_config
    conditions: list[tuple[str, Any, Any]] = [
        ("actor_rollout_ref.model.use_fused_kernels", actor.use_fused_kernels, False),
        (f"actor_rollout_ref.actor.{sharded}", actor[sharded], 1),
        (f"actor_rollout_ref.actor.fsdp_config.{sharded}", fsdp[sharded], 1),
    ]
    if algorithm is not None:  # its weights have no place in this loss, and bypass_mode leaves out the proxy's pass
        correction = algorithm.rollout_correction
        conditions += [
            (f"algorithm.rollout_correction.{key}", correction[key], expected)
            for key, expected in (("rollout_is", None), ("bypass_mode", False))
        ]
    for key, found, expected in conditions:
        if found != expected:
            raise BadInput(
                f"{key} does not go with Lp-Reg",
                found=found,
                expected=expected,
                next_step=f"set {key}={'null' if expected is None else expected}, or choose another method=...",
            )
    return proxy


def validated(kind: type[M], config: Mapping[str, Any], where: str, next_step: str) -> M:
    """A part of the Hydra configuration as its model.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    try:
        return kind.model_validate(dict(config))
    except ValidationError as e:
        first = e.errors()[0]
        raise BadInput(
            f"{where}.{'.'.join(map(str, first['loc']))}: {first['msg']}",
            found=first.get("input"),
            expected=", ".join(kind.model_fields) if first["type"] == "extra_forbidden" else None,
            next_step=next_step,
        ) from None


def selector_from(config: Mapping[str, Any], actor: Any = None) -> SelectorConfig:
    """The validated selector of a configuration.

    Args:
        actor: `actor_rollout_ref.actor`; when given, its loss is checked against what the selector's plan can divide.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    selector = validated(
        SelectorConfig, config, "actor_rollout_ref.selector", "choose a method=... overlay or correct the override"
    )
    if actor is not None and selector.selects:
        _check_loss(selector, actor)
    return selector


def _check_loss(selector: SelectorConfig, actor: Any) -> None:
    """Statistics come from the logits; a plan that learns the number of kept tokens while it trains divides by it
    afterwards, which is right only for a loss that is a sum over tokens."""
    sharded = max(actor.ulysses_sequence_parallel_size, actor.fsdp_config.ulysses_sequence_parallel_size)
    conditions: list[tuple[str, Any, tuple]] = [
        ("use_fused_kernels", actor.use_fused_kernels, (False,)),
        # no test has run a selector on parts of sequences
        ("fsdp_config.ulysses_sequence_parallel_size", sharded, (1,)),
    ]
    if selector.plan in ("guessed", "local"):
        conditions += [
            ("loss_agg_mode", actor.loss_agg_mode, ("token-mean",)),
            ("policy_loss.loss_mode", actor.policy_loss.loss_mode, PER_TOKEN_LOSSES),
            ("entropy_coeff", actor.entropy_coeff, (0,)),
        ]
    for key, found, allowed in conditions:
        if found not in allowed:
            cures = {
                "use_fused_kernels": "model.use_fused_kernels=false",
                "fsdp_config.ulysses_sequence_parallel_size": "actor.fsdp_config.ulysses_sequence_parallel_size=1",
            }
            raise BadInput(
                f"actor_rollout_ref.actor.{key} does not go with selector.name={selector.name}, "
                f"scope={selector.scope}, form={selector.form}",
                found=found,
                expected=" | ".join(map(str, allowed)),
                next_step=f"set actor_rollout_ref.{cures.get(key, 'selector.form=two_pass')}",
            )
