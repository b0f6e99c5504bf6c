"""`stapo-train run --dry-run`: what would run, how it departs, whether it fits, how long it takes, how to start it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results import store
from stapo_training.run.configuration import GROUPS, PLACES, compose, key_of
from stapo_training.run.preflight import steptime
from stapo_training.run.preflight.checks import Preflight
from stapo_training.run.preflight.memory import tightest

RECORDS = Path(store.__file__).parents[1] / "records"
ABSENT = "-"


@dataclass(frozen=True)
class Change:
    """One key: its value now and what it would be otherwise; ABSENT where there is no such key."""

    key: str
    now: Any
    before: Any


def show(config: Any, overrides: Sequence[str], found: Preflight, registered: dict[str, str], command: str) -> None:
    """Print all that is known of a run; what a failed check left open is said as "not known".

    Args:
        registered: what a worker's process has registered; empty where it was not asked.
        command: the command line that starts the run.
    """
    time = steptime.estimate(config, found.plan, found.card, RECORDS) if found.plan else steptime.UNKNOWN
    step = last_step(Path(config.run.out) / "checkpoints")
    for title, lines in (
        ("What runs", _run_lines(config, found)),
        ("Changed on the command line", _change_lines(typed_changes(overrides, config))),
        (f"Set by method={config.run.method}", _change_lines(method_changes(overrides))),
        ("Memory", _memory_lines(found)),
        ("Disk", _disk_lines(config, found)),
        ("Time", time.lines(int(config.run.steps))),
        ("Registered in a fresh worker process", [f"{k}: {v}" for k, v in registered.items()] or ["not known"]),
        ("To start it" if step is None else f"To go on after step {step}", [command]),
    ):
        print(f"\n{title}", *lines, sep="\n  ")


def typed_changes(overrides: Sequence[str], config: Any) -> list[Change]:
    """What the command line changed beside choosing overlays and places."""
    from omegaconf import OmegaConf

    keys = [k for k in dict.fromkeys(map(key_of, overrides)) if k not in (*GROUPS, *PLACES)]
    if not keys:
        return []
    configs = config, compose(_plain(overrides))
    return [Change(k, *(OmegaConf.select(c, k, default=ABSENT) for c in configs)) for k in keys]


def method_changes(overrides: Sequence[str]) -> list[Change]:
    """What the method's overlay sets that the base, the size and the hardware do not; no training here has a critic."""
    plain = _plain(overrides)
    bare = flat(compose([*(o for o in plain if key_of(o) != "method"), "~method", "run.method=none"]))
    return [
        Change(k, value, bare.get(k, ABSENT))
        for k, value in flat(compose(plain)).items()
        if bare.get(k, ABSENT) != value and not k.startswith(("run.", "critic.")) and not k.endswith(".experiment_name")
    ]


def _plain(overrides: Sequence[str]) -> list[str]:
    return [o for o in overrides if key_of(o) in (*GROUPS, *PLACES)]


def flat(config: Any) -> dict[str, Any]:
    """Every leaf of a configuration by its dotted key; what cannot be resolved stands as its text."""
    from omegaconf import OmegaConf

    leaves: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for k, v in value.items():
                walk(v, f"{path}.{k}" if path else str(k))
        else:
            leaves[path] = value

    walk(OmegaConf.to_container(config, resolve=False), "")
    return leaves


def last_step(checkpoints: Path) -> int | None:
    """The step of the newest checkpoint that is marked complete, by its name alone."""
    marked = checkpoints.glob("global_step_*/COMPLETE.json")
    steps = [int(m[1]) for p in marked if (m := re.fullmatch(r"global_step_(\d+)", p.parent.name))]
    return max(steps, default=None)


def _run_lines(config: Any, found: Preflight) -> list[str]:
    a, data, trainer, run = config.actor_rollout_ref, config.data, config.trainer, config.run
    kl = f"KL {a.actor.kl_loss_coef}" if a.actor.use_kl_loss else "no KL"
    prompts = "prompts not known"
    if found.prompts:
        prompts = f"{found.prompts} prompts ({found.prompts / data.train_batch_size:.1f} steps an epoch)"
    updates = data.train_batch_size // a.actor.ppo_mini_batch_size
    return [
        f"{run.method} on {run.size}, seed {run.seed}, {run.steps} steps, into {run.out}",
        f"{trainer.nnodes} node(s) x {trainer.n_gpus_per_node} {trainer.device} rank(s), model {a.model.path}",
        f"{data.train_batch_size} prompts x {a.rollout.n} responses a step, {updates} update(s), {prompts}",
        f"prompt up to {data.max_prompt_length} tokens, response up to {data.max_response_length}",
        f"clip {a.actor.clip_ratio_low} / {a.actor.clip_ratio_high}, {a.actor.loss_agg_mode}, {kl}, "
        f"lr {a.actor.optim.lr}",
        f"selector {a.selector.name} ({a.selector.policy}, {a.selector.scope}), rollout {a.rollout.name}, "
        f"verifier {config.reward.custom_reward_function.reward_kwargs.verifier}",
    ]


def _change_lines(changes: Iterable[Change]) -> list[str]:
    def shown(before: Any) -> str:
        return "not set" if before == ABSENT else str(before)

    return [f"{c.key}: {c.now}   (otherwise {shown(c.before)})" for c in changes] or ["nothing"]


def _memory_lines(found: Preflight) -> list[str]:
    if found.plan is None:
        return ["not known: no model, or run.check_memory=false"]
    if not (found.plan.cpu or found.card_gib):
        return ["not known: no GPU here; run.card=H100 plans for one"]
    if found.moments is None:
        return ["does not fit: see below"]
    card = f"each {found.card or 'GPU'} and its node" if found.card_gib else "this machine"
    lines = [f"{found.plan.shape.parameters / 1e6:,.2f} million parameters; GiB needed and there, on {card}:"]
    lines += [f"{m.total:8.1f} {m.limit:8.1f}  {m.name}" for m in found.moments]
    tight = tightest(m for m in found.moments if m.limit != float("inf"))
    return [*lines, f"tightest: {tight.name}{tight.table()}"]


def _disk_lines(config: Any, found: Preflight) -> list[str]:
    c = found.checkpoints
    if c is None or found.plan is None:
        return ["not known: the model's size is not known"]
    lines = [
        f"a checkpoint is {c.each:.2f} GiB, one every {config.trainer.save_freq} steps: {c.made} made, {c.kept} kept",
        f"at most {c.whole:.1f} GiB at a time, free {c.free:.1f} GiB",
    ]
    if c.whole > c.free:
        lines.append("NOT ENOUGH FOR ALL: trainer.max_actor_ckpt_to_keep=N keeps the newest N")
    return lines
