"""The generated pages of tables: methods, decided defaults, what each size and machine resolves to.

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
from stapo_results.sizes import MINI, REAL
from stapo_training.methods import rows
from stapo_training.start import configuration

FOLDERS = ["run.out=OUT", "run.base=BASE", "run.data=DATA"]
"""What every command has to name and no table shows."""


class Decided(BaseModel):
    """A row of `decided.yaml`."""

    model_config = ConfigDict(extra="forbid")

    what: str
    key: str | None = None
    """The configuration's key; None for a decision in code, which `source` then names."""
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
    """The overrides of a size on a machine. Of a fetched model the type too, since `auto` depends on the processor."""
    return [f"size={size}", f"hardware={hardware}", *(["run.cpu_dtype=bfloat16"] if size in REAL else [])]


PAPER_PLACE = place("qwen3-1.7b", "8gpu")


def made_for() -> list[tuple[str, str]]:
    """Every size with every machine that it is made for: the paper's with GPUs, a fetched one with one GPU or none, the
    miniature with all."""
    sizes, machines = configuration.choices("size"), configuration.choices("hardware")
    gpus = [h for h in machines if h.endswith("gpu")]
    return [(s, h) for s in sizes for h in (["1gpu", "cpu"] if s in REAL else gpus if s != MINI else machines)]


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


def place_row(config: Any) -> dict[str, str]:
    """What a size on a machine decides: nothing here may depend on the method."""
    a = config.actor_rollout_ref
    fsdp, ranks = a.actor.fsdp_config, config.trainer.nnodes * config.trainer.n_gpus_per_node
    state = "host" if fsdp.offload_policy else "host while sampling" if fsdp.param_offload else "card"
    mini, packed = a.actor.ppo_mini_batch_size, f"{a.actor.ppo_max_token_len_per_gpu:,} tokens"
    return {
        "ranks": f"{config.trainer.nnodes} x {config.trainer.n_gpus_per_node} {config.trainer.device}",
        "prompts x responses": f"{config.data.train_batch_size} x {a.rollout.n}",
        "mini-batch, prompts (sequences)": f"{mini} ({mini * a.rollout.n // ranks} a rank)",
        "micro-batch": packed if a.actor.use_dynamic_bsz else f"{a.actor.ppo_micro_batch_size_per_gpu} sequences",
        "prompt + response tokens": f"{config.data.max_prompt_length:,} + {config.data.max_response_length:,}",
        "lr": f"{a.actor.optim.lr:g}, warm-up {a.actor.optim.lr_warmup_steps}",
        "steps": _text(config.run.steps),
        "rollout": f"{a.rollout.name}, TP {a.rollout.tensor_model_parallel_size}, {a.rollout.dtype}",
        "weights / forward": f"{fsdp.model_dtype} / {fsdp.dtype}",
        "optimizer state on": state if config.trainer.device == "cuda" else "",
        "gradient checkpointing": _text(bool(a.model.enable_gradient_checkpointing)),
        "bitwise repeatable": _text(bool(config.run.deterministic)),
    }


def configuration_page() -> str:
    """The whole page of values."""
    places = _table([{"size": s, "hardware": h} | place_row(compose(place(s, h))) for s, h in made_for()])
    return (
        "# Configuration, value by value\n\n"
        "What is set, why, and what each size and machine resolves to: [the page of it](../../docs/configuration.md). "
        "Without a remark: STAPO on Qwen3-1.7B, 8 GPUs. *Stated* values are printed in the paper, *inferred* ones are "
        f"not. Generated by `stapo-train configs`.\n\n## Decided defaults\n\n{defaults_table(decided())}\n\n"
        f"## Sizes and machines\n\nThe same for every method, except that `clip_cov` and `kl_cov` pack 32,768 tokens "
        f"on 14B too.\n\n{places}\n"
    )


def methods_page(records: Path) -> str:
    """The whole page of the registry."""
    return (
        "# Methods\n\nWhat each is, and how it differs from its paper: [the page of methods](../../docs/methods.md). "
        f"Generated by `stapo-train configs`.\n\n{_table(rows(records))}\n"
    )


def render(results: Path) -> dict[Path, bytes]:
    """The generated pages in `results`/tables and their bytes."""
    if not results.is_dir():
        raise BadInput("the folder of results is not there", found=results,
                       next_step="run it in a checkout, or set --results")  # fmt: skip
    return {
        results / "tables" / "methods.md": methods_page(results / "records").encode(),
        results / "tables" / "configuration.md": configuration_page().encode(),
    }


@functools.cache
def _composed(overrides: frozenset[str]) -> Any:
    return configuration.compose([*FOLDERS, *sorted(overrides)])


def compose(overrides: list[str]) -> Any:
    """The configuration of these overrides (half a second each, so each is composed once); not to be changed."""
    given = overrides if any(o.startswith("size=") for o in overrides) else [*PAPER_PLACE, *overrides]
    return _composed(frozenset(given) - {"method=stapo"})


def write(results: Path, *, check: bool) -> int:
    """Write the generated pages, or compare them; 1 when a compared one differs."""
    return generated.write(render(results), check=check)
