"""How a command tells the driver that started it where it stands: one small JSON file, replaced atomically.

The driver sets STAPO_PROGRESS to the file's path; without it `report` does nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from stapo_results.store import write_atomic

VARIABLE = "STAPO_PROGRESS"


def report(stage: str, done: int, total: int, **values: float | str) -> None:
    """Say that `done` of `total` units of `stage` are finished; `values` are shown as they are (reward, entropy)."""
    if path := os.environ.get(VARIABLE):
        write_atomic(path, json.dumps({"stage": stage, "done": done, "total": total, "values": values}))


def read(path: str | os.PathLike) -> dict | None:
    """The last report, or None before the first one."""
    try:
        return json.loads(Path(path).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
