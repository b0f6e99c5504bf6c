"""What a method is: its parts of the configuration, what goes with them, and its entry in `methods.yaml`."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial, reduce
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stapo_results import methods as registry
from stapo_results import store
from stapo_results.errors import BadInput, meant
from stapo_results.schema import Run
from stapo_training.selection import own

if TYPE_CHECKING:
    from stapo_training.selection.selectors import Selection

Select = Callable[..., "Selection"]
Needs = dict[str, tuple[Any, ...]]
"""Key of the configuration -> the values that go with a part of a method."""
SELECTORS = tuple(
    dict.fromkeys(e.get("definition", {}).get("selector", "keep_all") for e in registry.methods().values())
)
PER_TOKEN_LOSSES = ("vanilla", "cispo")
"""veRL's policy losses in which a token's term depends on no other token."""
RANKING_LOSSES = ("clip_cov", "kl_cov")
"""Those that rank the tokens of one micro-batch: how sequences are packed decides what is trained."""
_ACTOR = "actor_rollout_ref.actor."
_TOKEN_BY_TOKEN: Needs = {f"{_ACTOR}policy_loss.loss_mode": PER_TOKEN_LOSSES, f"{_ACTOR}entropy_coeff": (0,)}
_OLD_PASS: Needs = {"algorithm.rollout_correction.bypass_mode": (False,)}
_WEIGHTS = {2.0: "tis", "0.5_5.0": "icepop"}


P = TypeVar("P", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def needs(self) -> Needs:
        """What other keys have to hold."""
        return {}


def _function(name: str) -> Select:
    from stapo_training.selection import selectors  # here: what a method is can be read without torch

    return own.load(name) if own.is_own(name) else getattr(selectors, name)


class _Mask(_Part):
    scope: Literal["mini_batch", "response"] = "mini_batch"
    among: Literal["positive", "right"] = "positive"
    tau_p: Annotated[float, Field(gt=0, le=1)] = 0.002
    q: Annotated[float, Field(ge=0, le=1)] = 0.75
    share: Annotated[float, Field(gt=0, le=1)] = 0.2


class SelectorConfig(_Mask):
    """`actor_rollout_ref.selector` of the Hydra configuration.

    name: one of `SELECTORS`, or a user-defined one (selection/own.py).
    policy: whose probabilities and entropies. `current` is Algorithm 1: the policy at the mini-batch's start; `old` the
        policy that the old-log-prob pass scored, which costs nothing more and is exact in a step's first mini-batch.
    scope: which tokens share one quantile: the mini-batch over all ranks, or one response.
    among: the rare tokens whose entropies make the quantile: those with A > 0, or those of right responses (reward
        > 0), whose A is 0 where all responses to a prompt are right. A silenced token has A > 0 in both cases.
    seed: of the random selector.
    """

    name: str
    policy: Literal["current", "old"] = "current"
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in SELECTORS and not own.is_own(name):
            raise ValueError(
                f"no such selector; one of {', '.join(SELECTORS)} (those of results/stapo_results/methods.yaml), "
                "FILE.py:FUNCTION or package.module:FUNCTION"
            )
        if own.is_own(name):
            keywords = [p for p in signature(own.load(name)).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
            required = {p.name for p in keywords if p.default is Parameter.empty}
            if unknown := required - cls.model_fields.keys() - {"pool"}:
                raise ValueError(f"{name} takes {', '.join(unknown)}, which SelectorConfig does not have")
        return name

    @model_validator(mode="after")
    def _uses(self) -> SelectorConfig:
        if self.among != "positive" and "among" not in self.parameters:
            raise ValueError(f"among={self.among} does not apply to {self.name}")
        if own.is_own(self.name) and (problem := own.problem(self.select)):
            raise ValueError(f"{self.name} is no selector: {problem}")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of the selector's own parameters, which its function names."""
        return {k: getattr(self, k) for k in signature(_function(self.name)).parameters if k in type(self).model_fields}

    @property
    def select(self) -> Select:
        """The selector with its parameters bound: (stats, pool=...) -> Selection."""
        return partial(_function(self.name), **self.parameters)

    @property
    def selects(self) -> bool:
        """Whether any token can be silenced, so that statistics are needed at all."""
        return self.name != "keep_all"

    @property
    def needs_keys(self) -> bool:
        return self.name == "silence_random" or own.is_own(self.name)

    @property
    def own_pass(self) -> bool:
        """Whether mini-batches after a step's first one need a forward pass for their statistics."""
        return self.selects and self.policy == "current"


class AdvantageConfig(_Part):
    """`actor_rollout_ref.advantage` of the Hydra configuration: what becomes of the advantages before they are trained.

    reweight: alpha of Advantage Reweighting (`objectives.reweighted_advantage`); 0 changes nothing.
    amplify: W of STARE (`objectives.amplified_advantage`); 1 changes nothing. rarest: the share of the tokens with
        A > 0 that are amplified. target_entropy: nothing is while the mean entropy is at least this, in nats.
    isolate: eta of Lopti (`objectives.isolated_advantages`): two updates a mini-batch; 0 is one update of all tokens.
    """

    reweight: Annotated[float, Field(ge=0, le=1)] = 0.0
    amplify: Annotated[float, Field(ge=1)] = 1.0
    rarest: Annotated[float, Field(gt=0, le=1)] = 0.1
    target_entropy: Annotated[float, Field(ge=0)] = 0.3
    isolate: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def needs(self) -> Needs:
        alone: Needs = {
            "actor_rollout_ref.selector.name": ("keep_all",),
            f"{_ACTOR}use_kl_loss": (False,),
            "actor_rollout_ref.token_log.mode": ("off",),
        }
        changes = self.reweight or self.amplify > 1 or self.isolate
        parts = (_TOKEN_BY_TOKEN, changes), (_OLD_PASS, self.amplify > 1), (alone, self.isolate)
        return {key: allowed for needs, given in parts if given for key, allowed in needs.items()} | super().needs


class ProxyConfig(_Part):
    """`actor_rollout_ref.proxy` of the Hydra configuration: Lp-Reg's proxy distribution.

    min_p: tokens less probable than this share of the most probable one are noise; 0: no proxy.
    lowest: the share of the mini-batch's tokens with A < 0, from the least probable up, that may be drawn to it.
    """

    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lowest: Annotated[float, Field(gt=0, le=1)] = 0.01

    @property
    def needs(self) -> Needs:
        """Its loss, the old-log-prob pass, and no weights of the rollout correction: they have no place in it."""
        own_loss: Needs = {f"{_ACTOR}policy_loss.loss_mode": ("lp_reg",)}
        weights: Needs = {"algorithm.rollout_correction.rollout_is": (None,)}
        return own_loss | weights | _OLD_PASS if self.min_p else {}


def validated(kind: type[P], config: Mapping[str, Any], where: str, next_step: str) -> P:
    """A part of the Hydra configuration as its model.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    try:
        return kind.model_validate(dict(config))
    except ValidationError as e:
        first = e.errors()[0]
        raise BadInput(
            f"{'.'.join([where, *map(str, first['loc'])])}: {first['msg'].removeprefix('Value error, ')}",
            found=first.get("input") if first["loc"] else None,  # of no key: the message names what it is about
            expected=", ".join(kind.model_fields) if first["type"] == "extra_forbidden" else None,
            next_step=next_step,
        ) from None


def require(config: Mapping[str, Any], what: str, needs: Needs) -> None:
    """Check what `what` needs of a configuration, or of those of its top parts that are given.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    for key, allowed in needs.items():
        top, *path = key.split(".")
        if top in config and (found := reduce(operator.getitem, path, config[top])) not in allowed:
            first = "null" if allowed[0] is None else allowed[0]
            raise BadInput(
                f"this value of {key} is not supported with {what}",
                found=found,
                expected=" | ".join(map(str, allowed)),
                next_step=f"set {key}={first}",
            )


def selector_from(config: Mapping[str, Any]) -> SelectorConfig:
    """The validated `actor_rollout_ref.selector`.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    where = "actor_rollout_ref.selector"
    return validated(SelectorConfig, config, where, "choose a method=... overlay or correct the override")


def advantage_from(config: Any, algorithm: Any = None) -> AdvantageConfig:
    """The validated `advantage` of `actor_rollout_ref`, checked against the rest of it; `algorithm` too when given.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    where = "actor_rollout_ref.advantage"
    advantage = validated(AdvantageConfig, config.advantage, where, "choose a method=... overlay")
    require(_given(config, algorithm), where, advantage.needs)
    return advantage


def proxy_from(config: Any, algorithm: Any = None) -> ProxyConfig:
    """The validated `proxy` of `actor_rollout_ref`, checked against the rest of it; `algorithm` too when given.

    Raises:
        BadInput: naming the key, the value found and what is allowed.
    """
    where = "actor_rollout_ref.proxy"
    proxy = validated(ProxyConfig, config.proxy, where, "choose a method=... overlay")
    loss_alone = not proxy.min_p and config.actor.policy_loss.loss_mode == "lp_reg"
    needs = {f"{_ACTOR}policy_loss.loss_mode": ("vanilla",)} if loss_alone else proxy.needs
    require(_given(config, algorithm), f"{where}.min_p={proxy.min_p:g}", needs)
    return proxy


def _given(config: Any, algorithm: Any) -> dict[str, Any]:
    return {"actor_rollout_ref": config} | ({} if algorithm is None else {"algorithm": algorithm})


class Definition(_Mask, AdvantageConfig, ProxyConfig):
    """What a method trains: the numbers of its paper or script; those of mask, advantage and proxy are there.

    clip: how far the ratio may go below and above 1; DPPO: the divergence; SAPO: its two temperatures. truncation: the
    largest ratio where the advantage is negative (dual clip); DPPO: the largest weight. kl: the weight of k3 to the
    reference model. positive: W-REINFORCE's lambda. weights: of the sampler's mismatch. toward_proxy: the weight of
    Lp-Reg's proxy.
    """

    loss: Literal["clipped", "cispo", "gspo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "lp_reg"] = (
        "clipped"
    )
    clip: tuple[float, float] = (0.2, 0.28)
    truncation: float | None = None
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = "token-mean"
    kl: float = 0.0
    advantage: Literal["grpo", "grpo_without_std", "w_reinforce"] = "grpo"
    positive: float = 0.1
    weights: Literal["none", "tis", "icepop"] = "none"
    toward_proxy: float = 0.0
    selector: str = "keep_all"

    @property
    def within_micro_batch(self) -> bool:
        """Whether the method's published loss ranks the tokens of one micro-batch."""
        return self.loss in RANKING_LOSSES


class Method(_Part):
    """One entry.

    section: of docs/methods.md. sources: where each number of `definition` that is not JustRL's comes from. shown,
    mask, rare, style: as the head of `methods.yaml` says.
    """

    title: str
    paper: str
    section: str
    does: str
    definition: Definition = Definition()
    sources: dict[str, str]
    shown: tuple[Literal["table", "masks"], ...] = ()
    mask: str = ""
    rare: bool = False
    style: tuple[str, tuple[float, ...], str] | None = None


def methods() -> dict[str, Method]:
    """All entries by the names of their overlays."""
    return {name: Method.model_validate(entry) for name, entry in registry.methods().items()}


def definition_of(config: Any) -> Definition:
    """What a composed configuration trains, in the registry's terms.

    Raises:
        BadInput: for what cannot be worked out by hand.
    """
    a, algorithm = config.actor_rollout_ref, config.algorithm
    actor, correction = a.actor, algorithm.rollout_correction
    threshold = correction.rollout_is_threshold
    known: Needs = {"rollout_is": (None, "token"), "rollout_is_threshold": tuple(_WEIGHTS), "rollout_rs": (None,)}
    by_hand = {f"algorithm.rollout_correction.{k}": v for k, v in known.items()} | _OLD_PASS
    selector, loss = selector_from(a.selector), actor.policy_loss.loss_mode
    by_hand |= {"actor_rollout_ref.selector.policy": ("current",)} if selector.selects else {}
    require({"algorithm": algorithm, "actor_rollout_ref": a}, "what can be worked out by hand", by_hand)
    truncates = loss in ("vanilla", "dppo_tv", "dppo_kl") and actor.clip_ratio_c < 1e9
    parameters = {k: v for k, v in selector.parameters.items() if k in Definition.model_fields}
    return validated(
        Definition,
        {
            "loss": "clipped" if loss == "vanilla" else loss,  # the others have veRL's name
            "clip": (actor.tau_pos, actor.tau_neg) if loss == "sapo" else (actor.clip_ratio_low, actor.clip_ratio_high),
            "truncation": actor.clip_ratio_c if truncates else None,
            "aggregation": actor.loss_agg_mode,
            "kl": actor.kl_loss_coef if actor.use_kl_loss else 0.0,
            "advantage": algorithm.adv_estimator + ("" if algorithm.norm_adv_by_std_in_grpo else "_without_std"),
            "weights": "none" if correction.rollout_is is None else _WEIGHTS[threshold],
            "toward_proxy": actor.policy_loss.ppo_kl_coef if loss == "lp_reg" else 0.0,
            "selector": selector.name,
            "scope": selector.scope,
        }
        | advantage_from(a).model_dump()
        | proxy_from(a).model_dump()
        | parameters,
        "method",
        "stapo-train methods lists what can be worked out by hand",
    )


def rows(records: Path) -> list[dict[str, str]]:
    """Every method as a row of the table in results/tables/methods.md, with its number of recorded runs."""
    runs = [store.read_json(path, Run) for path in sorted(records.glob("**/train/*/run.json"))]
    trained = Counter(run.config.get("run", {}).get("method") for run in runs)
    return [
        {
            "`method=`": f"[{name}](../../docs/methods.md#{m.section})",
            "paper": f"{m.title}, {m.paper}" if m.title not in m.paper else m.paper,
            "what it does": m.does,
            "its numbers, and where they come from": "; ".join(
                f"{k} {getattr(m.definition, k)}: {source}" for k, source in m.sources.items()
            ),
            "runs among the records": f"{trained[name] or 'not run'}" if records.is_dir() else "no records here",
        }
        for name, m in methods().items()
    ]


def listing(records: Path, method: str | None = None) -> str:
    """The same facts as text; of `method` alone, where it is given, also what it needs of other keys, and its overlay.

    Raises:
        BadInput: `method` is none; the nearest one is suggested.
    """
    known, parts = methods(), []
    only = None if method is None else meant("method", method, known, "stapo-train methods lists all")
    for (name, m), row in zip(known.items(), rows(records), strict=True):
        if only in (None, name):
            lines = [f"{name}: {row.pop('paper')}", *(f"{k}: {v}" for k, v in list(row.items())[1:])]
            if name == only:
                lines += [f"needs {k}={' | '.join(map(str, v))}" for k, v in m.definition.needs.items()]
                lines += Path(__file__).parent.joinpath("configs", "method", f"{name}.yaml").read_text().splitlines()
            parts.append("\n  ".join(lines))
    return "\n\n".join(parts)
