"""STATUS.md in the run's folder: what a person wants to know of a run, rewritten in one step after each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any, Literal

from stapo_results import store
from stapo_results.schema import StepMetrics
from stapo_results.terminal import duration
from stapo_training.folder.training_folder import TrainingFolder

State = Literal["running", "finished", "interrupted", "failed"]

_RECENT = 10  # steps of the middle column, and of the mean step time
_SHOWN = 5  # validations and alarms, the last ones

_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("reward", "reward (-1 to 1)", "{:.3f}".format),
    ("token_entropy_mean", "entropy (nats a token)", "{:.4f}".format),
    ("candidate_share", "candidate tokens", "{:.3%}".format),
    ("silenced_share", "silenced tokens", "{:.3%}".format),
    ("zero_variance_share", "prompts whose responses have one reward", "{:.1%}".format),
    ("response_tokens", "response (tokens)", "{:.0f}".format),
    ("truncated_share", "cut at the limit", "{:.1%}".format),
    ("clip_fraction", "clipped tokens", "{:.3%}".format),
    ("grad_norm", "gradient norm", "{:.3g}".format),
)


def write(
    folder: TrainingFolder,
    config: Any,
    state: State,
    *,
    step_seconds: Sequence[float] = (),
    alarms_on: frozenset[str] = frozenset(),
    reason: str = "",
    now: datetime | None = None,
) -> None:
    """Rewrite STATUS.md from what is in a training's folder.

    Args:
        config: the run's whole configuration.
        step_seconds: the steps of this process, start-up left out.
        reason: why it failed, in a line.
        now: the page's time; by default this moment.
    """
    now = now or datetime.now(UTC)
    run, trained = config.run, [m for m in folder.steps if m.step > 0]
    accuracy = [
        f"{m.values['accuracy']:.1%} at step {m.step}"
        + (f" ({failed:.0f} samples failed)" if (failed := m.values.get("failed_validation")) else "")
        for m in folder.steps
        if "accuracy" in m.values
    ]
    still_on = [a for kind, a in {a.kind: a for a in folder.alarms}.items() if kind in alarms_on]
    alarms = [f"- step {a.step}, {a.kind}{' (still on)' * (a in still_on)}: {a.line}" for a in folder.alarms]
    kept, free = folder.whole_checkpoints(), folder.disk_free
    saved = f"step {kept[-1].step} ({size(kept[-1].bytes)}; {len(kept)} on disk)" if kept else "none yet"
    if best := folder.best_checkpoint():
        saved += f", best by validation: step {best.step}"
    step, total = trained[-1].step if trained else 0, run.steps
    headline = f"**{state.capitalize()}** after step {step} of {total}{f': {reason}' if reason else '.'}"
    if state == "finished":
        headline = f"**Finished**: {total} steps."
    elif state == "running":
        headline = f"**Running**: step {step} of {total}"
        if step_seconds:
            each = fmean(step_seconds[-_RECENT:])
            end = _clock(now + timedelta(seconds=each * (total - step)))
            headline += f", {duration(each)} a step, about {duration(each * (total - step))} left: done about {end}"
        headline += "."
    parts = [
        f"# Training: {run.method} on {run.size}, seed {run.seed}",
        headline,
        _table(trained) if trained else "",
        f"Validation: {', '.join(accuracy[-_SHOWN:]) or 'none yet'}.",
        "\n".join([f"Alarms: {len(alarms) or 'none'}.", "", *alarms[-_SHOWN:]]).rstrip(),
        f"Checkpoint: {saved}; {size(free)} of disk free.",
        "Next: `stapo-train export --checkpoint` (this folder) `--out DIR`."
        if state == "finished"
        else f"To resume after an interruption, repeat the command:\n\n    {run.command}",
        f"Written {_clock(now)}. A running training rewrites this page after every step.",
    ]
    store.write_atomic(folder.status_file, "\n\n".join(p for p in parts if p) + "\n")


def _table(trained: Sequence[StepMetrics]) -> str:
    last, before, first = trained[-1], trained[-1 - _RECENT : -1], trained[0]
    columns = {f"step {last.step}": [last]}
    if before:
        columns |= {f"mean of the {len(before)} before": before, f"step {first.step}": [first]}
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for key, label, shown in _ROWS:
        values = [[m.values[key] for m in steps if key in m.values] for steps in columns.values()]
        if any(values):
            lines.append(f"| {label} | {' | '.join(shown(fmean(v)) if v else 'missing' for v in values)} |")
    return "\n".join(lines)


def size(count: int) -> str:
    """Bytes for people: 4.4 MiB, 97.5 GiB."""
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def _clock(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
