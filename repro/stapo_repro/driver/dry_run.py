"""`stapo-repro run ... --dry-run`: each stage with its exact command, what is there, hours and disk, and the checks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stapo_repro.driver.readiness import Checked, refuse
from stapo_repro.driver.stages import Stage, StageEvent
from stapo_repro.planner.hours import Part
from stapo_repro.planner.render import number
from stapo_results import store

FILLING = (
    "It fills the folder named by --out and does not look at committed records: what is recorded elsewhere is run "
    "again."
)


def events(ledger: Path) -> list[StageEvent]:
    """The whole lines of a ledger; a half-written last one is what a killed run left, and is left alone."""
    if not ledger.exists():
        return []
    whole = ledger.read_bytes().split(b"\n")[:-1]
    return [store.parse(line, StageEvent, f"{ledger}:{n}") for n, line in enumerate(whole, 1)]


def state(stage: Stage, ledger: Sequence[StageEvent]) -> str:
    """What is there of a stage, without reading its outputs."""
    last = next((e for e in reversed(ledger) if e.stage == stage.name), None)
    if last is None:
        return "to do"
    if last.event != "done":
        return "begun: goes on"
    if last.command != list(stage.command):
        return "to do again: its command changed"
    if missing := [p for p in stage.outputs if not p.exists()]:
        return f"to do again: {missing[0]} is not there"
    return f"there (made {last.at})"


def show(
    title: str,
    stages: Sequence[Stage],
    out: Path,
    costs: Mapping[str, Part],
    checks: Sequence[Checked],
    say: Callable[[str], None] = print,
) -> None:
    """Print the plan; then refuse what cannot start.

    Args:
        costs: of stages by name, where something is known.
        checks: what was looked at.

    Raises:
        BadInput: with everything that stands in the way.
    """
    say(title)
    say(FILLING)
    ledger = events(out / "stages.jsonl")
    states = {s.name: state(s, ledger) for s in stages}
    for i, s in enumerate(stages, 1):
        say(f"\n{i:>3}. {s.name}: {states[s.name]}")
        say(f"     {shlex.join((Path(s.command[0]).name, *s.command[1:]))}")
        if part := costs.get(s.name):
            say(f"     {cost(part)}")
    left = [costs[s.name] for s in stages if s.name in costs and not states[s.name].startswith("there")]
    hours = [p.hours for p in left]
    whole = None if None in hours else sum(h for h in hours if h is not None)
    say(f"\nStill to do: {sum(not v.startswith('there') for v in states.values())} of {len(stages)} stages, about "
        f"{_duration(whole)}; nothing was measured where it says formula (stapo-repro plan shows each).")  # fmt: skip
    say("\nChecks")
    for c in checks:
        say(f"  {'NOT OK' if c.problem else 'ok':<8}{c.name}: {c.problem.what if c.problem else c.found}")
    say("")
    refuse(checks)
    say("All checks passed; nothing was started (--dry-run).")


def cost(part: Part) -> str:
    """ "about 72.0 h, 576 GPU h (formula); disk 577 GiB" """
    if not part.gpus:
        return f"about {_duration(part.hours)} ({part.basis})"
    least = f" (two checkpoints at a time: {number(part.least)})" if part.least < part.disk else ""
    hours = f"about {_duration(part.hours)}, {number(part.gpu_hours)} GPU h ({part.basis})"
    return f"{hours}; disk {number(part.disk, 1 if part.disk < 10 else 0)} GiB{least}"


def _duration(hours: float | None) -> str:
    if hours is None:
        return "a time that is not known"
    if hours * 60 < 2:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 2 else f"{number(hours, 1)} h"
