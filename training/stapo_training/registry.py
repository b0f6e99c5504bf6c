"""The registry of methods (`registry.yaml`): what each is, its numbers, their sources; and what an overlay gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from stapo_results.errors import BadInput
from stapo_training.methods import advantage_from, selector_from
from stapo_training.selection.by_hand import KNOWN_SELECTORS, Definition

FILE = Path(__file__).with_name("registry.yaml")

_LOSSES = {"vanilla": "clipped"}  # the others have veRL's name
_WEIGHTS = {(None, 2.0): "none", ("token", 2.0): "tis", ("token", "0.5_5.0"): "icepop"}


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
            "isolate": advantage.isolate,
            "weights": weights,
            "min_p": a.proxy.min_p,
            "lowest": a.proxy.lowest,
            "toward_proxy": actor.policy_loss.ppo_kl_coef if loss == "lp_reg" else 0.0,
            "selector": selector.name,
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


def listing(records: Path) -> str:
    """All methods as text: what each is, its numbers with their sources, and the runs of it among the records."""
    trained, parts = _trained(records), []
    for name, m in methods().items():
        numbers = m.definition.model_dump(exclude_defaults=True)
        lines = [f"{name}: {m.title} ({m.paper})", f"  {m.does}"]
        lines += [f"  {k} {v}" for k, v in numbers.items() if k not in m.sources]
        lines += [f"  {number}" for number in _sourced(m)]
        parts.append("\n".join([*lines, f"  trained here: {', '.join(trained.get(name, [])) or 'not run'}"]))
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
