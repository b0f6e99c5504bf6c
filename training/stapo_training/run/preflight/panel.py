"""What `--dry-run` prints: what would run, how it departs, whether it fits, how long it takes, how to start it.

Readable at 80 columns and without colour: meaning is in words, colour only repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stapo_training.run.preflight import memory
from stapo_training.run.preflight.checks import Report
from stapo_training.run.preflight.differences import ABSENT, Change
from stapo_training.run.preflight.steptime import Estimate


def show(
    console: Console,
    config: Any,
    report: Report,
    *,
    typed: Sequence[Change],
    method: Sequence[Change],
    registered: Mapping[str, str],
    time: Estimate | None,
    step: int | None,
) -> None:
    """Print the panel. What a failed check left open is said as "not known", never left out."""
    _head(console, "What runs")
    for line in _what(config, report):
        _say(console, line)
    _head(console, "Changed on the command line")
    _changes(console, typed)
    _head(console, f"Set by method={config.run.method}")
    _changes(console, method)
    _head(console, "Memory")
    _memory(console, report)
    _head(console, "Disk")
    for line in _disk(config, report):
        _say(console, line)
    _head(console, "Time")
    for line in _time(config, time):
        _say(console, line)
    _head(console, "Registered in a fresh worker process")
    for part, what in registered.items():
        _say(console, f"{part}: {what}")
    if not registered:
        _say(console, "not known: see below")
    _head(console, "To start it" if step is None else f"To go on after step {step}")
    console.print(Text(f"  {report.command}"), soft_wrap=True)  # one line, to be copied
    _say(console, "The same command goes on after an interruption.")


def _head(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _say(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _what(config: Any, report: Report) -> list[str]:
    a, data, trainer = config.actor_rollout_ref, config.data, config.trainer
    updates = data.train_batch_size // a.actor.ppo_mini_batch_size
    prompts = report.facts.prompts
    epochs = (
        f"{prompts} prompts ({prompts / data.train_batch_size:.1f} steps an epoch)" if prompts else "prompts not known"
    )
    high = a.actor.clip_ratio_c
    return [
        f"{config.run.method} on {config.run.size}, seed {config.run.seed}, {config.run.steps} steps",
        f"into {report.facts.out}",
        f"{trainer.nnodes} node(s) x {trainer.n_gpus_per_node} {trainer.device} rank(s), model {a.model.path}",
        f"{data.train_batch_size} prompts x {a.rollout.n} responses a step, {updates} update(s), {epochs}",
        f"prompt up to {data.max_prompt_length} tokens, response up to {data.max_response_length}",
        f"clip {a.actor.clip_ratio_low} / {a.actor.clip_ratio_high}, dual clip {'off' if high >= 1e6 else high}, "
        f"{a.actor.loss_agg_mode}, lr {a.actor.optim.lr}, "
        + (f"KL {a.actor.kl_loss_coef}" if a.actor.use_kl_loss else "no KL"),
        _selector(a.selector),
        f"rollout {a.rollout.name}, tensor parallel {a.rollout.tensor_model_parallel_size}, "
        f"reward verifier {config.reward.custom_reward_function.reward_kwargs.verifier}",
    ]


def _selector(s: Any) -> str:
    values = {
        "keep_all": "",
        "top_entropy": f" share {s.share},",
        "silence_low_probability": f" tau_p {s.tau_p},",
    }.get(s.name, f" tau_p {s.tau_p}, q {s.q},")
    return f"selector {s.name}" + (f":{values} {s.policy} policy, scope {s.scope}" if values else "")


def _changes(console: Console, changes: Sequence[Change]) -> None:
    if not changes:
        _say(console, "nothing")
    for c in changes:
        console.print(Text(f"  {c.key}"), soft_wrap=True)
        verl = "no such key in veRL" if c.verl == ABSENT else f"veRL {c.verl}"
        _say(console, f"    {c.now}   (otherwise {'not set' if c.before == ABSENT else c.before}, {verl})")


def _memory(console: Console, report: Report) -> None:
    if report.plan is None or not (report.plan.cpu or report.card_gib):
        _say(
            console,
            "not known: "
            + (
                "no model, or run.check_memory=false"
                if report.plan is None
                else "no GPU here; run.card=H100 plans for one"
            ),
        )
        return
    if report.moments is None:
        _say(console, "does not fit: see below")
        return
    card = (
        f"each {report.card or 'GPU'} of {report.card_gib:.1f} GiB and its node" if report.card_gib else "this machine"
    )
    _say(console, f"{report.plan.shape.parameters / 1e6:,.2f} million parameters; GiB on {card}:")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  moment")
    table.add_column("needed", justify="right")
    table.add_column("there", justify="right")
    for m in report.moments:
        there = "not known" if m.limit == float("inf") else f"{m.limit:.1f}"
        table.add_row(f"  {m.name}", f"{m.total:.1f}", there)
    console.print(table)
    tight = memory.tightest([m for m in report.moments if m.limit != float("inf")] or report.moments)
    _say(console, f"tightest: {tight.name}")
    for line in sorted(tight.lines, key=lambda line: -line.gib):
        _say(console, f"  {line.gib:8.2f}  {line.name}: {line.arithmetic}")
    if report.card_gib:
        tokens = memory.cached_tokens(report.plan.shape, report.plan.rollout, report.card_gib)
        longest = report.plan.rollout.sequence_tokens
        _say(console, f"a rollout replica's cache holds {tokens} tokens: {tokens // longest} sequences of {longest}")


def _disk(config: Any, report: Report) -> list[str]:
    c = report.checkpoints
    if c is None or report.plan is None:
        return ["not known: the model's size is not known"]
    lines = [
        f"a checkpoint is {_size(c.each)}, one every {config.trainer.save_freq} steps: {c.made} made, {c.kept} kept",
        f"at most {c.whole:.1f} GiB at a time, free {c.free:.1f} GiB",
    ]
    if c.whole > c.free and c.each:
        keep = c.fitting - 1  # one more is there while the next one is written
        cure = f"; trainer.max_actor_ckpt_to_keep={keep} keeps the newest {keep}" if keep >= 1 else ""
        lines.append(f"NOT ENOUGH FOR ALL: full after {c.fitting} checkpoints{cure}")
    return lines


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 0.1 else f"{gib * 1024:.1f} MiB"


def _time(config: Any, time: Estimate | None) -> list[str]:
    if time is None or time.seconds is None:
        return ["not known", *(time.basis if time else ())]
    minutes = time.seconds * config.run.steps / 60
    whole = (
        f"{minutes:.0f} minutes"
        if minutes < 120
        else f"{minutes / 60:.1f} hours"
        if minutes < 2880
        else f"{minutes / 1440:.1f} days"
    )
    return [f"about {time.seconds:.0f} s a step, {whole} for {config.run.steps} steps", *time.basis]
