"""`stapo-train run --dry-run`: every check, the panel, and a refusal of what cannot start. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from stapo_results import store
from stapo_training.run.preflight import panel, steptime
from stapo_training.run.preflight.checks import Facts, Report, validate
from stapo_training.run.preflight.differences import method_changes, typed_changes

RECORDS = Path(store.__file__).parents[1] / "records"


def show(
    config: Any,
    overrides: Sequence[str],
    report: Report,
    *,
    compose: Callable[[list[str]], Any],
    same_run: Callable[[Any, Facts], None],
) -> int:
    """Print all that is known of a run.

    Args:
        report: of `preflight.examine`; what follows here is added to its problems.
        compose: from overrides to a resolved configuration.
        same_run: refuses a folder that holds another run.

    Raises:
        BadInput: with everything that stands in the way.
    """
    ask = partial(validate, config, ask_worker=True)
    registered = None if report.settings_refused else report.attempt(ask)
    out = report.facts.out
    if not report.problems:
        report.attempt(same_run, config, report.facts)
    panel.show(
        Console(highlight=False),
        config,
        report,
        typed=typed_changes(overrides, config, compose),
        method=method_changes(overrides, compose),
        registered=registered or {},
        time=steptime.estimate(config, report.plan, report.card, out, RECORDS) if report.plan else None,
        step=last_step(out / "checkpoints"),
    )
    report.refuse()
    print("\nAll checks passed; nothing was started (--dry-run).")
    return 0


def last_step(checkpoints: Path) -> int | None:
    """The step of the newest checkpoint that is marked complete, by its name alone."""
    marked = checkpoints.glob("global_step_*/COMPLETE.json")
    steps = [int(m[1]) for p in marked if (m := re.fullmatch(r"global_step_(\d+)", p.parent.name))]
    return max(steps, default=None)
