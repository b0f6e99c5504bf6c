"""The steps of a training as its metrics.jsonl says them: which line of a step counts, and which are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from stapo_results.errors import RecordError
from stapo_results.schema import StepMetrics
from stapo_results.store import read


def last_attempts(lines: Iterable[StepMetrics], where: str) -> list[StepMetrics]:
    """The metrics by step, in order. Of a step that was made anew the last attempt counts.

    A line that stands twice counts once, and stderr says so.

    Args:
        lines: all lines of the file `where`, from its first on.

    Raises:
        RecordError: with file and line, for a step that stands twice with one attempt and other values, or whose
            attempts go back.
    """
    last: dict[int, tuple[int, StepMetrics]] = {}
    twice: list[str] = []
    for number, line in enumerate(lines, 1):
        first, before = last.setdefault(line.step, (number, line))
        if number == first:
            continue
        if line == before:
            twice.append(f"{number} (as {first})")
        elif line.attempt <= before.attempt:
            raise _contradicts(line, before, f"{where}:{number}", f"{where}:{first}")
        else:
            last[line.step] = number, line
    if twice:
        more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
        print(f"same line twice, counted once: {where}, line {', '.join(twice[:5])}{more}", file=sys.stderr)
    return [last[step][1] for step in sorted(last)]


def _contradicts(line: StepMetrics, before: StepMetrics, here: str, there: str) -> RecordError:
    if line.attempt < before.attempt:
        found = f"attempt {line.attempt} here, attempt {before.attempt} before it"
    else:
        names = line.values.keys() | before.values.keys()
        name = min(k for k in names if line.values.get(k) != before.values.get(k))
        here_it_is, was = (m.values.get(name, "missing") for m in (line, before))
        found = f"attempt {line.attempt}: {name} {here_it_is} here, {was} before it"
    return RecordError(
        f"{here}: step {line.step} contradicts {there}",
        found=found,
        expected="a line for each attempt at a step, later ones further down",
        next_step="restore the file from a copy, or delete the line that is wrong",
    )


def read_steps(path: Path) -> list[StepMetrics]:
    """The steps of a metrics.jsonl, as `last_attempts`.

    Raises:
        RecordError: also for a broken line.
    """
    return last_attempts(read(path, StepMetrics), str(path))
