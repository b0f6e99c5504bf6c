"""What the driver shows of its stages: where they stand, what they cost so far, and how much time is left."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

from stapo_results.terminal import Display, duration

_TELLING = 20.0
"""Seconds from which on a kind of stage says how fast a machine is."""


def kind_of(stage: str) -> str:
    """ "train" of "train/stapo-s0"."""
    return stage.split("/")[0]


class StageDisplay:
    """Shows stages by name, in the order in which they come.

    Args:
        stages: all names.
        display: where it is shown; stdout by default.
        elsewhere: seconds that a stage of each kind took in the committed run, for kinds that have not run here yet.
    """

    def __init__(
        self, stages: Sequence[str], display: Display | None = None, elsewhere: Mapping[str, float] | None = None
    ):
        self.display = display or Display(sys.stdout)
        self.waiting = list(stages)
        self.total = len(stages)
        self._seconds: dict[str, list[float]] = defaultdict(list)  # of finished stages, by kind
        self._elsewhere = elsewhere or {}
        self._first: dict[str, tuple[int, float]] = {}  # of a stage's first report: how much was done, and when

    def _numbered(self, stage: str) -> str:
        return f"{stage} ({self.total - len(self.waiting) + 1}/{self.total})"

    def begin(self, stage: str) -> None:
        self.display.say(f"start       {self._numbered(stage)}")

    def tick(self, stage: str, report: Mapping | None, seconds: float, peak_bytes: int) -> None:
        """Where the stage stands; `report` as `terminal.read_progress` gives it, often before it is shown again."""

        if report and report["done"]:
            self._first.setdefault(stage, (report["done"], seconds))

        def line() -> str:
            parts = [self._numbered(stage), duration(seconds)]
            if report:
                parts.append(f"{report['stage']} {report['done']}/{report['total']}")
                parts += [f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in report["values"].items()]
            return ", ".join([*parts, self.time_left(stage, report, seconds), f"peak {peak_bytes / 2**30:.1f} GiB"])

        inside = report["done"] / report["total"] if report and report["total"] else 0.0
        self.display.show(line, (self.total - len(self.waiting) + min(inside, 1.0)) / self.total)

    def end(self, stage: str, result: str, seconds: float, peak_mib: int, notes: Sequence[str]) -> None:
        """`result`: done, failed or interrupted."""
        text = f"{result:<11} {self._numbered(stage)}, {duration(seconds)}, peak {peak_mib / 1024:.1f} GiB"
        self.display.say("\n            ".join([text, *notes]), "" if result == "done" else "bold red")
        self._leave(stage, seconds if result == "done" else None)

    def keep(self, stage: str, seconds: float | None) -> None:
        """The stage was finished before, in so many seconds."""
        self.display.say(f"kept        {self._numbered(stage)}, finished before", "dim")
        self._leave(stage, seconds)

    def _leave(self, stage: str, seconds: float | None) -> None:
        self.waiting.remove(stage)
        if seconds is not None:
            self._seconds[kind_of(stage)].append(seconds)

    def time_left(self, stage: str, report: Mapping | None, spent: float) -> str:
        """Of the whole run, from what this machine needed so far.

        A stage takes the mean of the finished ones of its kind, and one that reports its progress what it shows since
        its first report, without its start. A kind that has not run here takes what it took elsewhere, times how much
        slower or faster this machine was at the other kinds; where that is not known either the time is "at least".
        """
        known = {kind: statistics.fmean(seconds) for kind, seconds in self._seconds.items()}
        # what takes seconds is mostly the start of a process, and says little of the rest
        both = [kind for kind in known if self._elsewhere.get(kind, 0) >= _TELLING]
        pace = sum(known[k] for k in both) / sum(self._elsewhere[k] for k in both) if both else 1.0
        known = {kind: seconds * pace for kind, seconds in self._elsewhere.items()} | known
        if report and report["total"] and stage in self._first:
            done, at = self._first[stage]
            if report["done"] > done:
                known[kind_of(stage)] = spent + (report["total"] - report["done"]) * (spent - at) / (
                    report["done"] - done
                )
        each = [known.get(kind_of(s)) for s in (stage, *(w for w in self.waiting if w != stage))]
        whole = sum(s for s in each if s is not None) - (0 if each[0] is None else min(spent, each[0]))
        return f"{'at least ' if None in each else ''}{duration(max(0.0, whole))} left" if any(each) else "time left: ?"
