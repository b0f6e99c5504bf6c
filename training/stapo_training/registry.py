"""The registry of methods (`registry.yaml`): what each is, its numbers, their sources; and what an overlay gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from stapo_results.errors import BadInput, meant
from stapo_training.methods import advantage_from, selector_from

FILE = Path(__file__).with_name("registry.yaml")

_LOSSES = {"vanilla": "clipped"}  # the others have veRL's name
_WEIGHTS = {(None, 2.0): "none", ("token", 2.0): "tis", ("token", "0.5_5.0"): "icepop"}


KNOWN_SELECTORS = (
    "keep_all",
    "top_entropy",
    "silence_spurious",
    "silence_spurious_wrong",
    "silence_low_probability",
    "silence_high_entropy",
    "silence_random",
)
"""Those whose mask `selection.by_hand.kept` works out by itself."""


class Definition(BaseModel):
    """What a method trains: the numbers of its paper or script.

    clip: how far the ratio may go below and above 1; DPPO: the divergence; SAPO: its two temperatures. truncation: the
    largest ratio where the advantage is negative (dual clip); DPPO: the largest weight. kl: the weight of k3 to the
    reference model. positive: W-REINFORCE's lambda. weights: of the sampler's mismatch.
    min_p, lowest, toward_proxy: Lp-Reg's proxy, the share of the tokens with A < 0 that are drawn to it, the weight.
    scope: the tokens that share one quantile, of the mini-batch or of each response.
    own: the parameters of a selector that is not worked out here; its own function then takes the whole mini-batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: Literal["clipped", "cispo", "gspo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "lp_reg"] = (
        "clipped"
    )
    clip: tuple[float, float] = (0.2, 0.28)
    truncation: float | None = None
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = "token-mean"
    kl: float = 0.0
    advantage: Literal["grpo", "grpo_without_std", "w_reinforce"] = "grpo"
    positive: float = 0.1
    reweight: float = 0.0
    amplify: float = 1.0
    rarest: float = 0.1
    target_entropy: float = 0.3
    isolate: float = 0.0
    weights: Literal["none", "tis", "icepop"] = "none"
    min_p: float = 0.0
    lowest: float = 0.01
    toward_proxy: float = 0.0
    selector: str = "keep_all"
    scope: Literal["mini_batch", "response"] = "mini_batch"
    tau_p: float = 0.002
    q: float = 0.75
    share: float = 0.2
    own: dict[str, float] | None = None

    @property
    def within_micro_batch(self) -> bool:
        """Whether the method's published loss ranks the tokens of one micro-batch."""
        return self.loss in ("clip_cov", "kl_cov")


class Method(BaseModel):
    """One entry.

    page: of docs/methods. sources: where each number of `definition` that is not JustRL's comes from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    paper: str
    page: str
    does: str
    definition: Definition = Definition()
    sources: dict[str, str]


def methods() -> dict[str, Method]:
    """All entries by the names of their overlays."""
    return {name: Method.model_validate(entry) for name, entry in yaml.safe_load(FILE.read_text()).items()}


def definition_of(config: Any) -> Definition:
    """What a composed configuration trains, in the registry's terms.

    Raises:
        BadInput: for a rollout correction that the registry has no word for.
    """
    a, algorithm = config.actor_rollout_ref, config.algorithm
    actor, correction = a.actor, algorithm.rollout_correction
    selector, advantage = selector_from(a.selector), advantage_from(a)
    loss = _LOSSES.get(actor.policy_loss.loss_mode, actor.policy_loss.loss_mode)
    weights = _WEIGHTS.get((correction.rollout_is, correction.rollout_is_threshold))
    if weights is None or correction.rollout_rs or correction.bypass_mode:
        raise BadInput(
            "this rollout correction is not one that can be worked out by hand",
            found=dict(correction),
            expected="none, or that of method=tis or method=icepop",
            next_step="leave algorithm.rollout_correction to the method's overlay",
        )
    without_std = "" if algorithm.norm_adv_by_std_in_grpo else "_without_std"
    truncates = loss in ("clipped", "dppo_tv", "dppo_kl") and actor.clip_ratio_c < 1e9
    return Definition.model_validate(
        {
            "loss": loss,
            "clip": (actor.tau_pos, actor.tau_neg) if loss == "sapo" else (actor.clip_ratio_low, actor.clip_ratio_high),
            "truncation": actor.clip_ratio_c if truncates else None,
            "aggregation": actor.loss_agg_mode,
            "kl": actor.kl_loss_coef if actor.use_kl_loss else 0.0,
            "advantage": algorithm.adv_estimator + without_std,
            "reweight": advantage.reweight,
            "amplify": advantage.amplify,
            "rarest": advantage.rarest,
            "target_entropy": advantage.target_entropy,
            "isolate": advantage.isolate,
            "weights": weights,
            "min_p": a.proxy.min_p,
            "lowest": a.proxy.lowest,
            "toward_proxy": actor.policy_loss.ppo_kl_coef if loss == "lp_reg" else 0.0,
            "selector": selector.name,
            "scope": "response" if selector.scope == "response" else "mini_batch",
        }
        | (selector.parameters if selector.name in KNOWN_SELECTORS else {"own": selector.parameters})
    )


def _trained(records: Path) -> dict[str, list[str]]:
    """By method, the committed runs of it with their status."""
    from stapo_results import store
    from stapo_results.schema import Run

    found: dict[str, list[str]] = {}
    for path in sorted(records.glob("**/train/*/run.json")):
        run = store.read_json(path, Run)
        method = run.config.get("run", {}).get("method", "")
        found.setdefault(method, []).append(f"{path.parent.relative_to(records)} ({run.status})")
    return found


def _sourced(m: Method) -> list[str]:
    """Its numbers, each with where it comes from."""
    return [f"{k} {getattr(m.definition, k)}: {source}" for k, source in m.sources.items()]


def listing(records: Path, method: str | None = None) -> str:
    """Methods as text: what each is, its numbers with their sources, and the runs of it among the records.

    Raises:
        BadInput: `method`, the only one to list, is none.
    """
    known = methods()
    names = known if method is None else [meant("method", method, known, "stapo-train methods lists all")]
    trained, parts = _trained(records), []
    for name in names:
        m = known[name]
        numbers = m.definition.model_dump(exclude_defaults=True)
        lines = [f"{name}: {m.title} ({m.paper})", f"  {m.does}"]
        lines += [f"  {k} {v}" for k, v in numbers.items() if k not in m.sources]
        lines += [f"  {number}" for number in _sourced(m)]
        here = [f"  trained here: {', '.join(trained.get(name, [])) or 'not run'}"] if records.is_dir() else []
        parts.append("\n".join([*lines, *here]))
    return "\n\n".join(parts)


def rows(records: Path) -> list[dict[str, str]]:
    """All methods as rows of a Markdown table, the same facts as in `listing`; links are those of docs/."""
    trained = _trained(records)
    return [
        {
            "`method=`": f"[{name}](methods/{m.page}.md)",
            "paper": f"{m.title}, {m.paper}" if m.title not in m.paper else m.paper,
            "what it does": m.does,
            "its numbers, and where they come from": "; ".join(_sourced(m)),
            "runs among the records": f"{len(trained.get(name, []))}" if name in trained else "not run",
        }
        for name, m in methods().items()
    ]
