"""The generated parts of the documentation: decided defaults, what each method, size and machine resolves to.

`stapo-train configs` writes them, `--check` and the tests compare them. Values come from composed configurations
(`decided.yaml` adds the reasons, and a row whose value is not the composed one is an error).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from stapo_results import generated
from stapo_results.errors import BadInput
from stapo_results.sizes import SMALL
from stapo_training.methods import rows, selector_from
from stapo_training.run import configuration

FOLDERS = ["run.out=OUT", "run.base=BASE", "run.data=DATA"]
"""What every command has to name and no table shows."""


class Decided(BaseModel):
    """A row of `decided.yaml`."""

    model_config = ConfigDict(extra="forbid")

    what: str
    key: str | None = None
    """The configuration's key; None for a decision that stands in code, which `source` then names."""
    given: list[str] = []
    """The overrides under which the value holds (default: STAPO on Qwen3-1.7B, 8 GPUs)."""
    value: bool | int | float | str
    basis: Literal["stated", "inferred"]
    source: str


def decided() -> list[Decided]:
    """The rows of decided.yaml."""
    text = (Path(__file__).parent / "decided.yaml").read_text()
    return [Decided.model_validate(row) for row in yaml.safe_load(text)]


def place(size: str, hardware: str) -> list[str]:
    """The overrides of a size on a machine."""
    return [f"size={size}", f"hardware={hardware}"]


NOT_MADE_FOR = {(SMALL, "64gpu")}
"""A mini-batch of 16 responses has no 64 parts."""
PAPER_PLACE = place("qwen3-1.7b", "8gpu")


def made_for() -> list[tuple[str, str]]:
    """Every size with every machine that it is made for."""
    sizes, machines = configuration.choices("size"), configuration.choices("hardware")
    return [(s, h) for s in sizes for h in machines if (s, h) not in NOT_MADE_FOR]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table; the keys of the first row are its head."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(r.values()) for r in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def defaults_table(rows: list[Decided]) -> str:
    """The table of decided defaults.

    Raises:
        BadInput: a row's value is not what its configuration holds.
    """
    from omegaconf import OmegaConf

    shown = []
    for d in rows:
        if d.key is not None:
            found = OmegaConf.select(compose(d.given), d.key)
            if found != d.value:
                raise BadInput(
                    f"decided.yaml: {d.what}",
                    found=f"{d.key} = {found!r} with {' '.join(d.given) or 'no overlay'}",
                    expected=repr(d.value),
                    next_step="correct the row, or the configuration",
                )
        shown.append(
            {
                "what": d.what + (f" ({', '.join(d.given)})" if d.given else ""),
                "value": _text(d.value),
                "basis": d.basis,
                "source": d.source,
                "key": "" if d.key is None else f"`{d.key}`",
            }
        )
    return _table(shown)


def method_row(config: Any) -> dict[str, str]:
    """What makes the method of a configuration: nothing here may depend on size or machine."""
    actor, selector = config.actor_rollout_ref.actor, config.actor_rollout_ref.selector
    loss = actor.policy_loss
    extra = {
        "sapo": f" tau {actor.tau_pos:g}/{actor.tau_neg:g}",
        "clip_cov": f" share {loss.clip_cov_ratio:g}, {loss.clip_cov_lb:g} to {loss.clip_cov_ub:g}",
        "lp_reg": f" min-p {config.actor_rollout_ref.proxy.min_p:g}, lowest {config.actor_rollout_ref.proxy.lowest:g}, "
        f"weight {loss.ppo_kl_coef:g}",
        "kl_cov": f" share {loss.kl_cov_ratio:g}, weight {loss.ppo_kl_coef:g}",
    }.get(loss.loss_mode, "")
    forms = {"tau_p": "p < {:g}", "q": "q {:g}", "share": "{:g}"}
    values = selector_from(selector).parameters
    parameters = " " * bool(values) + ", ".join(forms.get(k, k + " {:g}").format(v) for k, v in values.items())
    clip = f"{actor.clip_ratio_low:g} / {actor.clip_ratio_high:g}"
    dual = "off" if actor.clip_ratio_c >= 1e9 else f"{actor.clip_ratio_c:g}"
    where = "" if selector.name == "keep_all" else f"{selector.policy}, {selector.scope}"
    return {
        "loss": loss.loss_mode + extra,
        "clip low / high": "none" if loss.loss_mode in ("sapo", "kl_cov") else clip,
        "dual clip": dual if loss.loss_mode == "vanilla" else "none",
        "aggregation": actor.loss_agg_mode,
        "KL": f"{actor.kl_loss_type} {actor.kl_loss_coef:g}" if actor.use_kl_loss else "none",
        "selector": selector.name + parameters,
        "statistics": where,
        "reward manager": config.reward.reward_manager.name,
    }


def place_row(config: Any) -> dict[str, str]:
    """What a size on a machine decides: nothing here may depend on the method."""
    a = config.actor_rollout_ref
    fsdp, ranks = a.actor.fsdp_config, config.trainer.nnodes * config.trainer.n_gpus_per_node
    state = "host" if fsdp.offload_policy else "host while sampling" if fsdp.param_offload else "card"
    mini = a.actor.ppo_mini_batch_size
    return {
        "ranks": f"{config.trainer.nnodes} x {config.trainer.n_gpus_per_node} {config.trainer.device}",
        "prompts x responses": f"{config.data.train_batch_size} x {a.rollout.n}",
        "mini-batch, prompts (sequences)": f"{mini} ({mini * a.rollout.n // ranks} a rank)",
        "prompt + response tokens": f"{config.data.max_prompt_length:,} + {config.data.max_response_length:,}",
        "lr": f"{a.actor.optim.lr:g}, warm-up {a.actor.optim.lr_warmup_steps}",
        "steps": _text(config.run.steps),
        "rollout": f"{a.rollout.name}, TP {a.rollout.tensor_model_parallel_size}, {a.rollout.dtype}",
        "weights / forward": f"{fsdp.model_dtype} / {fsdp.dtype}",
        "optimizer state on": state if config.trainer.device == "cuda" else "",
        "gradient checkpointing": _text(bool(a.model.enable_gradient_checkpointing)),
        "`selector.form`": a.selector.form,
        "bitwise repeatable": _text(bool(config.run.deterministic)),
    }


def batching(config: Any) -> str:
    """How a rank's mini-batch is split: the one setting that depends on method, size and machine together."""
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        return f"packed to {actor.ppo_max_token_len_per_gpu:,} tokens"
    n = actor.ppo_micro_batch_size_per_gpu
    return f"{n} sequence{'s' if n > 1 else ''}"


def resolved_block() -> str:
    """Of docs/configuration.md: one table of methods, one of sizes and machines, one of micro-batches."""
    methods = configuration.choices("method")
    by_method = {m: compose([f"method={m}", *PAPER_PLACE]) for m in methods}
    by_place = {(s, h): compose(place(s, h)) for s, h in made_for()}
    tightest = place("qwen3-14b", "8gpu")  # where the fewest tokens fit a method may ask for more
    usual = batching(compose(tightest))
    own = [m for m in methods if batching(compose([f"method={m}", *tightest])) != usual]
    places = [({"size": s, "hardware": h}, c) for (s, h), c in by_place.items()]
    micro = [
        here
        | {"every other method": batching(c)}
        | {m: batching(compose([f"method={m}", *place(*here.values())])) for m in own}
        for here, c in places
    ]
    parts = [
        "### Methods (the same on every size and machine)",
        _table([{"method": m} | method_row(c) for m, c in by_method.items()]),
        "### Sizes and machines (the same for every method)",
        _table([here | place_row(c) for here, c in places]),
        "### Micro-batches",
        _table(micro),
    ]
    return "\n\n".join(parts) + "\n"


def methods_table(records: Path) -> str:
    """Every method of the registry, with its runs among the records."""
    return _table(rows(records))


def render(docs: Path) -> dict[Path, bytes]:
    """Every generated block of `docs`, as pages and their bytes."""
    if not docs.is_dir():
        raise BadInput("the documentation is not there", found=docs, next_step="run it in a checkout, or set --docs")
    records = docs.resolve().parent / "results" / "records"
    files: dict[Path, bytes] = {}
    for page, name, block in (
        ("README.md", "methods", methods_table(records)),
        ("configuration.md", "defaults", defaults_table(decided())),
        ("configuration.md", "resolved", resolved_block()),
    ):
        generated.renew(files, docs / page, name, block)
    return files


@functools.cache
def _composed(overrides: frozenset[str]) -> Any:
    return configuration.compose([*FOLDERS, *sorted(overrides)])


def compose(overrides: list[str]) -> Any:
    """The configuration of these overrides (half a second each, so each is composed once); not to be changed."""
    given = overrides if any(o.startswith("size=") for o in overrides) else [*PAPER_PLACE, *overrides]
    return _composed(frozenset(given) - {"method=stapo"})


def write(docs: Path, *, check: bool) -> int:
    """Write the generated blocks, or compare them; 1 when a compared one differs."""
    files = render(docs)
    return generated.check(files, "stapo-train configs") if check else generated.write(files)
