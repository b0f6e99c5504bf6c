"""What the driver shows: a live line on a terminal, elsewhere one plain line a minute and at each start and end."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stapo_repro.driver.stages import Stage, StageEvent

PLAIN_SECONDS = 60


def clock(seconds: float) -> str:
    """1:02:03 or 02:03."""
    whole = int(seconds + 0.5)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"


def values_text(values: Mapping[str, float | str]) -> str:
    """reward 0.713, entropy 0.412, silenced 0.15 %."""
    parts = []
    for name, value in values.items():
        if not isinstance(value, (int, float)):
            parts.append(f"{name} {value}")
        elif name.endswith("_share"):
            parts.append(f"{name.removesuffix('_share').replace('_', ' ')} {100 * value:.2f} %")
        else:
            parts.append(f"{name.replace('_', ' ')} {value:.3f}")
    return ", ".join(parts)


class TimeLeft:
    """Time left in the stage and in the whole run, from what this machine needed so far.

    A stage's time is the mean of the finished ones of its kind. A kind of which none has run yet has no estimate; the
    whole is then "at least".
    """

    def __init__(self, stages: Sequence[Stage], known: Mapping[str, Sequence[float]] | None = None):
        self.waiting = [s.kind for s in stages]
        self.seconds: dict[str, list[float]] = defaultdict(list, {k: list(v) for k, v in (known or {}).items()})

    def leave(self, stage: Stage, seconds: float | None) -> None:
        """The stage is over; None when it was skipped."""
        self.waiting.remove(stage.kind)
        if seconds is not None:
            self.seconds[stage.kind].append(seconds)

    def text(self, stage: Stage, report: Mapping | None, spent: float) -> str:
        here = None
        if report and report["done"] and report["total"]:
            here = spent * (report["total"] - report["done"]) / report["done"]
        elif known := self.seconds.get(stage.kind):
            here = max(0.0, sum(known) / len(known) - spent)
        projected = {stage.kind: spent + here} if here is not None else {}
        later, unknown = 0.0, here is None
        for kind in self._after(stage):
            times = self.seconds.get(kind) or ([projected[kind]] if kind in projected else [])
            unknown |= not times
            later += sum(times) / len(times) if times else 0.0
        stage_text = f"{clock(here)} left in this stage" if here is not None else "time left not known yet"
        whole = clock((here or 0.0) + later)
        return f"{stage_text}, {'at least ' if unknown else ''}{whole} in all"

    def _after(self, stage: Stage) -> list[str]:
        rest = list(self.waiting)
        rest.remove(stage.kind)
        return rest


class _Shared:
    def __init__(self, stages: Sequence[Stage], known: Mapping[str, Sequence[float]] | None = None):
        self.left = TimeLeft(stages, known)
        self.number, self.total = 0, len(stages)

    def _line(self, stage: Stage, report: Mapping | None, seconds: float, peak: int) -> str:
        parts = [f"{stage.name} ({self.number}/{self.total})", clock(seconds)]
        if report:
            parts.append(f"{report['stage']} {report['done']}/{report['total']}")
            if report["values"]:
                parts.append(values_text(report["values"]))
        return ", ".join([*parts, self.left.text(stage, report, seconds), f"peak {peak / 2**30:.1f} GiB"])

    def _ended(self, stage: Stage, event: StageEvent) -> str:
        text = f"{event.event:<11} {stage.name} ({self.number}/{self.total}), {clock(event.seconds or 0)}"
        if event.peak_mib:
            text += f", peak {event.peak_mib / 1024:.1f} GiB"
        return text + "".join(f"\n            {n}" for n in event.notes)


class Plain(_Shared):
    """For logs: whole lines only."""

    def __init__(self, stages: Sequence[Stage], known: Mapping[str, Sequence[float]] | None = None):
        super().__init__(stages, known)
        self._spoken = 0.0

    def begin(self, stage: Stage, number: int, total: int) -> None:
        self.number, self.total, self._spoken = number, total, time.monotonic()
        self.say(f"start       {stage.name} ({number}/{total})")

    def tick(self, stage: Stage, report: dict | None, seconds: float, peak: int) -> None:
        if time.monotonic() - self._spoken >= PLAIN_SECONDS:
            self._spoken = time.monotonic()
            self.say(f"running     {self._line(stage, report, seconds, peak)}")

    def end(self, stage: Stage, event: StageEvent) -> None:
        self.left.leave(stage, event.seconds if event.event == "done" else None)
        self.say(self._ended(stage, event))

    def skip(self, stage: Stage, number: int, total: int, event: StageEvent) -> None:
        self.number, self.total = number, total
        self.left.leave(stage, event.seconds)
        self.say(f"kept        {stage.name} ({number}/{total}), finished before")

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        """Nothing to put back."""


class Terminal(_Shared):
    """For people: a bar and one line that are redrawn, finished stages scroll above them."""

    def __init__(self, stages: Sequence[Stage], known: Mapping[str, Sequence[float]] | None = None):
        super().__init__(stages, known)
        self.console = Console(highlight=False)
        self._live = Live(console=self.console, refresh_per_second=4, transient=True)
        self._live.start()

    def begin(self, stage: Stage, number: int, total: int) -> None:
        self.number, self.total = number, total
        self.tick(stage, None, 0.0, 0)

    def tick(self, stage: Stage, report: dict | None, seconds: float, peak: int) -> None:
        inside = report["done"] / report["total"] if report and report["total"] else 0.0
        bar = ProgressBar(total=self.total, completed=self.number - 1 + min(inside, 1.0), width=60)
        shown = Table.grid()
        shown.add_row(bar)
        shown.add_row(Text(self._line(stage, report, seconds, peak)))
        self._live.update(shown)

    def end(self, stage: Stage, event: StageEvent) -> None:
        self.left.leave(stage, event.seconds if event.event == "done" else None)
        self.console.print(Text(self._ended(stage, event), style="" if event.event == "done" else "bold red"))

    def skip(self, stage: Stage, number: int, total: int, event: StageEvent) -> None:
        self.number, self.total = number, total
        self.left.leave(stage, event.seconds)
        self.console.print(Text(f"kept        {stage.name} ({number}/{total}), finished before", style="dim"))

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def close(self) -> None:
        """Take the live line away, so that what follows prints as usual."""
        self._live.stop()


def make(stages: Sequence[Stage], known: Mapping[str, Sequence[float]] | None = None) -> Plain | Terminal:
    """The display that fits where stdout goes."""
    return (Terminal if sys.stdout.isatty() else Plain)(stages, known)
