"""What can be known to fail before a training starts anything expensive: one list of checks, all problems at once.

`settings.check_settings` needs the configuration alone; `examine` adds data and model (`inputs`) and `machine`; veRL's
own opinion is `launch.ask_verl`. What Ray, vLLM or the driver say within the first minutes is left to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stapo_results.checks import Checks
from stapo_results.errors import BadInput
from stapo_results.shapes import KNOWN, Shape
from stapo_results.throughput import CARDS
from stapo_training.artifacts.weights import is_hub_id
from stapo_training.start import estimate, inputs, machine
from stapo_training.start.estimate import GIB
from stapo_training.start.settings import check_settings

_HUB = 2  # bytes a parameter of the hub's weights, bf16


@dataclass
class Preflight:
    """What the checks found of a run; None is what a failed check would have given.

    prompts: of training, without those that are `longer` than data.max_prompt_length (None: no tokenizer could tell).
    validation: samples of one.
    """

    checks: Checks
    files: list[Path] = field(default_factory=list)
    prompts: int | None = 0
    longer: int | None = None
    validation: int = 0
    card: str | None = None
    shape: Shape | None = None
    memory: estimate.Need | None = None
    disk: str | None = None
    warning: str | None = None


def examine(config: Any) -> Preflight:
    """All checks on files, sizes and this machine (or the Ray cluster of ray_init.address); writes nothing.

    Raises:
        BadInput: run.base is needed and not given, or run.data is not read; everything else is collected in `checks`.
    """
    inputs.check_base(config)
    a, plan = config.actor_rollout_ref, Preflight(check_settings(config))
    checks = plan.checks
    model = checks.attempt("model", inputs.check_model, config)
    tokenizer = model and checks.attempt("tokenizer", inputs.find_tokenizer, config)
    for kind in ("train_files", "val_files"):
        names, ids, lengths = config.data[kind], list[str | None](), list[int]()
        for path in map(Path, [names] if isinstance(names, str) else names):
            plan.files.append(path)
            make, counted = inputs.how_to_make(config, path), None
            rows = checks.attempt(f"data.{kind}", inputs.check_data, kind, path, make, config.data.prompt_key)
            if rows and tokenizer:
                counted = checks.attempt(f"lengths of data.{kind}", inputs.check_lengths, config, kind, path, tokenizer)
            lengths += counted or [0] * len(rows or ())
            if rows and inputs.reads_boxes(config):
                checks.attempt(f"golds of data.{kind}", inputs.check_golds, path, make)
            if rows is None and kind == "train_files":
                plan.prompts = None
            ids += rows or []
        checks.attempt(f"ids of data.{kind}", inputs.check_ids, kind, ids)
        taken = [lengths[i] for i in inputs.rows_taken(config, kind, len(ids))]
        if kind == "val_files":
            plan.validation = len(taken) * int(a.rollout.val_kwargs.n)
        elif plan.prompts is not None:
            plan.longer = sum(n > config.data.max_prompt_length for n in taken) if tokenizer else None
            plan.prompts = len(taken) - (plan.longer or 0)
    checks.attempt("prompts", _check_prompts, config, plan)
    # a hub model that is not cached may still have known facts, so that its run is planned
    if model := model or (a.model.path if a.model.path in KNOWN else None):
        checks.attempt("the model's configuration", inputs.check_model_config, config, model)
        checks.attempt("the model's weights", inputs.check_weights, model)
        checks.attempt("the model's attention", inputs.check_model_attention, config, model)
        # without the check of memory a model of an unknown family is no hindrance
        plan.shape = (checks if config.run.check_memory else Checks()).attempt("shape", inputs.find_shape, model)
    checks.attempt("environment", machine.check_environment)
    card, host = _look_at_machine(config, plan)
    if not plan.shape:
        return plan
    if config.run.check_memory and (card or config.trainer.device == "cpu"):
        plan.memory = checks.attempt("memory", estimate.memory, config, plan.shape, card, host, plan.validation)
    each, fetched = machine.checkpoint_gib(config, plan.shape.parameters), 0.0
    if is_hub_id(str(a.model.path)) and not inputs.cached(a.model.path, config.run.model_revision):
        fetched = _HUB * plan.shape.parameters / GIB
    plan.disk = checks.attempt("disk", machine.check_disk, config, each, fetched)
    return plan


def _check_prompts(config: Any, found: Preflight) -> None:
    batch, prompts = config.data.train_batch_size, found.prompts
    if prompts is None:
        return
    if (steps := int(config.trainer.total_epochs) * (prompts // batch)) < int(config.run.steps) and prompts >= batch:
        raise BadInput(
            "trainer.total_epochs ends the training before its last step",
            found=f"{config.trainer.total_epochs} epochs of {prompts // batch} steps: {steps}",
            expected=f"{config.run.steps} steps (run.steps)",
            next_step="leave trainer.total_epochs out",
        )
    if prompts < batch:
        raise BadInput(
            "fewer prompts than one training batch",
            found=f"{prompts} ({found.longer or 0} more are longer than data.max_prompt_length)",
            expected=f"at least {batch}",
            next_step=f"more data, or data.train_batch_size={prompts} (and a mini-batch that divides it)",
        )


def _look_at_machine(config: Any, found: Preflight) -> tuple[float | None, float]:
    """Fills in card and warning; returns GiB of the smallest card, and free GiB of this machine (infinite where the
    run's machine is another)."""
    checks, address, planned = found.checks, config.ray_kwargs.ray_init.get("address"), config.run.card
    gpu = config.trainer.device != "cpu"
    if address:
        nodes = checks.attempt("cluster", machine.cluster_nodes, address)
    else:  # without GPUs Ray is told how many ranks there are
        nodes = [machine.this_node() if gpu else replace(machine.this_node(), gpus=config.trainer.n_gpus_per_node)]
    used: list[machine.Node] = []
    if nodes is not None:
        found.warning = checks.attempt("cores", machine.check_cores, config, nodes)
        used = checks.attempt("GPUs", machine.check_gpus, config, nodes) or []
    sizes = [n.card_gib for n in used if n.card_gib] if gpu else []
    if not sizes and gpu and planned is not None and checks.attempt("run.card", _check_card, planned):
        found.card = planned
        return CARDS[planned].gib, math.inf
    found.card = used[0].card if sizes else None
    return min(sizes, default=None), min((n.memory for n in used), default=math.inf)


def _check_card(name: str) -> str:
    if name not in CARDS:
        raise BadInput("unknown run.card", found=name, expected=" | ".join(CARDS), next_step="run.card=H100")
    return name
