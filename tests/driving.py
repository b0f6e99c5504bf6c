"""What the tests of the driver share."""

from __future__ import annotations

import time
from pathlib import Path

from stapo_repro import processes
from stapo_repro.driver import plan


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def nobody_left(out: Path) -> bool:
    return not processes.marked(processes.mark_of(out))


def miniature(out: Path, **changed):
    given = {"quick": False, "seeds": "0", "methods": None, "steps": None, "data_dir": None, "out": out, **changed}
    return plan(**given)


def ablation(out: Path, **changed):
    given = {"quick": False, "seeds": None, "methods": None, "steps": None, "data_dir": None, "out": out, **changed}
    return plan(**given, kind="ablation")
