"""STATUS.md in the run's folder: what a person wants to know of a run, rewritten in one step after each step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from stapo_results import store
from stapo_results.schema import StepMetrics
from stapo_results.terminal import duration
from stapo_training.run.folder import Checkpoint, TrainingFolder
from stapo_training.run.watch.alarms import Alarm

State = Literal["running", "finished", "interrupted", "failed"]

_RECENT = 10  # steps of the middle column, and of the mean step time

_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("reward", "reward (-1 to 1)", "{:.3f}".format),
    ("entropy", "entropy (nats a token)", "{:.4f}".format),
    ("candidate_share", "candidate tokens", "{:.3%}".format),
    ("silenced_share", "silenced tokens", "{:.3%}".format),
    ("response_tokens", "response (tokens)", "{:.0f}".format),
    ("truncated_share", "cut at the limit", "{:.1%}".format),
    ("clip_fraction", "clipped tokens", "{:.3%}".format),
    ("grad_norm", "gradient norm", "{:.3g}".format),
)


@dataclass(frozen=True)
class Status:
    """Everything that the page shows. `step_seconds` are the last steps of this process, start-up left out."""

    name: str
    state: State
    total: int
    command: str
    now: datetime
    disk_free: int
    steps: Sequence[StepMetrics] = ()
    step_seconds: Sequence[float] = ()
    checkpoints: Sequence[Checkpoint] = ()
    alarms: Sequence[Alarm] = ()
    alarms_on: frozenset[str] = field(default_factory=frozenset)
    reason: str = ""
    """Why it failed, in a line."""


def write(
    folder: TrainingFolder,
    config: Any,
    state: State,
    *,
    step_seconds: Sequence[float] = (),
    alarms_on: frozenset[str] = frozenset(),
    reason: str = "",
) -> None:
    """Rewrite STATUS.md from what is in a training's folder; `config` is its whole configuration."""
    run = config.run
    status = Status(
        name=f"Training: {run.method} on {run.size}, seed {run.seed}",
        state=state,
        total=config.trainer.total_training_steps,
        command=run.command,
        now=datetime.now(UTC),
        disk_free=shutil.disk_usage(folder.path).free,
        steps=folder.steps,
        step_seconds=step_seconds,
        checkpoints=folder.whole_checkpoints(),
        alarms=folder.alarms,
        alarms_on=alarms_on,
        reason=reason,
    )
    store.write_atomic(folder.status_file, render(status))


def render(s: Status) -> str:
    """The page as Markdown, a pure function of `s`."""
    trained = [m for m in s.steps if m.step > 0]
    parts = [f"# {s.name}", _headline(s, trained[-1].step if trained else 0)]
    if trained:
        parts.append(_table(trained))
    parts += [p for p in (_validation(s.steps), _alarms(s), _checkpoint(s)) if p]
    if s.state == "finished":
        parts.append("Next: `stapo-train export --checkpoint` (this folder) `--out DIR`.")
    else:
        parts.append(f"The same command goes on after an interruption:\n\n    {s.command}")
    parts.append(f"Written {_clock(s.now)}. A running training rewrites this page after every step.")
    return "\n\n".join(parts) + "\n"


def _headline(s: Status, step: int) -> str:
    if s.state == "finished":
        return f"**Finished**: {s.total} steps."
    if s.state == "failed":
        return f"**Failed** after step {step} of {s.total}: {s.reason}"
    if s.state == "interrupted":
        return f"**Interrupted** after step {step} of {s.total}."
    if not s.step_seconds:
        return f"**Running**: step {step} of {s.total}; the time of a step is not known yet."
    recent = s.step_seconds[-_RECENT:]
    each = sum(recent) / len(recent)
    left = each * (s.total - step)
    return (
        f"**Running**: step {step} of {s.total}, {duration(each)} a step (mean of the last {len(recent)}), "
        f"about {duration(left)} left: done about {_clock(s.now + timedelta(seconds=left))}."
    )


def _table(trained: Sequence[StepMetrics]) -> str:
    last, before, first = trained[-1], trained[-1 - _RECENT : -1], trained[0]
    columns = {f"step {last.step}": [last]}
    if before:
        columns |= {f"mean of the {len(before)} before": before, f"step {first.step}": [first]}
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for key, label, shown in _ROWS:
        found = [[m.values[key] for m in steps if key in m.values] for steps in columns.values()]
        if any(found):
            cells = [shown(sum(v) / len(v)) if v else "missing" for v in found]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _validation(steps: Sequence[StepMetrics]) -> str:
    found = [(m.step, m.values["accuracy"]) for m in steps if "accuracy" in m.values]
    if not found:
        return "Validation: none yet."
    step, value = found[-1]
    text = f"Validation: {value:.1%} correct at step {step}"
    if len(found) > 1:
        best = max(found, key=lambda f: f[1])
        text += f" ({found[0][1]:.1%} at step {found[0][0]}, best {best[1]:.1%} at step {best[0]})"
    return text + "."


def _alarms(s: Status) -> str:
    if not s.alarms:
        return "Alarms: none."
    latest = {a.kind: a for a in s.alarms}  # the last beginning of each kind
    lines = []
    for a in latest.values():
        now = ("still on: " if a.kind in s.alarms_on else "over: ") if s.state == "running" else ""
        lines.append(f"- {now}step {a.step}, {a.kind}: {a.line}")
    more = f" ({len(s.alarms)} in all, see alarms.jsonl)" if len(s.alarms) > len(latest) else ""
    return f"Alarms{more}:\n\n" + "\n".join(lines)


def _checkpoint(s: Status) -> str:
    disk = f"{size(s.disk_free)} of disk free"
    if not s.checkpoints:
        return f"Checkpoint: none yet, an interruption starts again from step 0; {disk}."
    last = s.checkpoints[-1]
    return (
        f"Checkpoint: step {last.step} ({size(last.bytes)}; {len(s.checkpoints)} on disk); {disk}, "
        f"room for {s.disk_free // last.bytes} more."
    )


def size(count: int) -> str:
    """Bytes for people: 4.4 MiB, 97.5 GiB."""
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def _clock(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
