"""STATUS.md in the run's folder: what a person wants to know of a run, rewritten in one step after each step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any, Literal

from stapo_results import store
from stapo_results.schema import StepMetrics
from stapo_results.terminal import duration
from stapo_training.run.folder import Checkpoint, TrainingFolder
from stapo_training.run.watch.alarms import Alarm

State = Literal["running", "finished", "interrupted", "failed"]

_RECENT = 10  # steps of the middle column, and of the mean step time
_SHOWN = 5  # validations and alarms, the last ones

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
    accuracy = [f"{m.values['accuracy']:.1%} at step {m.step}" for m in s.steps if "accuracy" in m.values]
    still_on = [a for kind, a in {a.kind: a for a in s.alarms}.items() if kind in s.alarms_on]
    alarms = [f"- step {a.step}, {a.kind}{' (still on)' * (a in still_on)}: {a.line}" for a in s.alarms]
    last = s.checkpoints[-1] if s.checkpoints else None
    saved = f"step {last.step} ({size(last.bytes)}; {len(s.checkpoints)} on disk)" if last else "none yet"
    finished = "Next: `stapo-train export --checkpoint` (this folder) `--out DIR`."
    parts = [
        f"# {s.name}",
        _headline(s, trained[-1].step if trained else 0),
        _table(trained) if trained else "",
        f"Validation: {', '.join(accuracy[-_SHOWN:]) or 'none yet'}.",
        "\n".join([f"Alarms: {len(alarms) or 'none'}.", "", *alarms[-_SHOWN:]]).rstrip(),
        f"Checkpoint: {saved}; {size(s.disk_free)} of disk free.",
        finished if s.state == "finished" else f"The same command goes on after an interruption:\n\n    {s.command}",
        f"Written {_clock(s.now)}. A running training rewrites this page after every step.",
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _headline(s: Status, step: int) -> str:
    if s.state == "finished":
        return f"**Finished**: {s.total} steps."
    if s.state != "running":
        return f"**{s.state.capitalize()}** after step {step} of {s.total}{f': {s.reason}' if s.reason else '.'}"
    if not s.step_seconds:
        return f"**Running**: step {step} of {s.total}; the time of a step is not known yet."
    each = fmean(s.step_seconds[-_RECENT:])
    left = each * (s.total - step)
    return (
        f"**Running**: step {step} of {s.total}, {duration(each)} a step, about {duration(left)} left: done about "
        f"{_clock(s.now + timedelta(seconds=left))}."
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
            lines.append(f"| {label} | {' | '.join(shown(fmean(v)) if v else 'missing' for v in found)} |")
    return "\n".join(lines)


def size(count: int) -> str:
    """Bytes for people: 4.4 MiB, 97.5 GiB."""
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def _clock(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
