"""What a run of the driver took, stage by stage: the record that `collect` writes, and the README's line of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.driver.display import kind_of
from stapo_repro.driver.request import ON_CPU
from stapo_repro.driver.stages import StageEvent, read_ledger
from stapo_repro.paper import checkout
from stapo_repro.planner import estimates
from stapo_repro.testbed import plan
from stapo_results import runs, store
from stapo_results.errors import RecordError
from stapo_results.schema import Record, Run
from stapo_results.terminal import duration

FILE = "stages.json"


class StageTime(BaseModel):
    """One finished stage, all its attempts together.

    Attributes:
        seconds: sum over the attempts whose end is on record; one that was killed left none. Of a stage that was made
            again only the last making counts.
        peak_mib: highest memory of an attempt.
        attempts: how often it was started until it ended.
        code: version that finished it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    seconds: Annotated[float, Field(ge=0)]
    peak_mib: Annotated[int, Field(ge=0)]
    attempts: Annotated[int, Field(ge=1)]
    code: str


class RunTimes(Record):
    """stages.json: a run of the driver.

    Attributes:
        kind: miniature, small, testbed or cells; quick: its short form; part: of the testbed.
        seconds: sum over the stages.
        unfinished: stages that were begun and whose last event is not their end.
        hardware: of the run records beside it, each once.
    """

    kind: str
    quick: bool
    part: str = ""
    seconds: Annotated[float, Field(ge=0)]
    stages: list[StageTime]
    unfinished: list[str]
    hardware: list[dict[str, Any]]


def of_ledger(ledger: Sequence[StageEvent]) -> tuple[list[StageTime], list[str]]:
    """(times of the finished stages, names of the unfinished ones), in the order in which they were begun."""
    by_stage: dict[str, list[StageEvent]] = {}
    for event in ledger:
        mine = by_stage.setdefault(event.stage, [])
        if mine and (mine[-1].event == "done" or mine[-1].asked != event.asked):  # it is made again
            mine.clear()
        mine.append(event)
    done = [
        StageTime(
            name=name,
            seconds=round(sum(e.seconds or 0 for e in events), 2),
            peak_mib=max(e.peak_mib or 0 for e in events),
            attempts=sum(e.event == "start" for e in events),
            code=events[-1].code,
        )
        for name, events in by_stage.items()
        if events[-1].event == "done"
    ]
    return done, [name for name, events in by_stage.items() if events[-1].event != "done"]


def of_run(folder: Path, hardware: Sequence[dict[str, Any]]) -> RunTimes | None:
    """The times of a folder; None where no driver ran in it.

    Args:
        hardware: of the runs in it, repeats allowed.

    Raises:
        RecordError: a broken ledger or record.
    """
    if not (folder / runs.RECORD).exists():
        return None
    run = store.read_json(folder / runs.RECORD, Run)
    if run.kind != "repro":
        return None
    done, unfinished = of_ledger(read_ledger(folder))
    return RunTimes(
        kind=run.config["experiment"],
        quick=run.config["quick"],
        part=run.config.get("part", ""),
        seconds=round(sum(s.seconds for s in done), 2),
        stages=done,
        unfinished=unfinished,
        hardware=[h for i, h in enumerate(hardware) if h not in hardware[:i]],
    )


def joined(earlier: RunTimes, later: RunTimes) -> RunTimes:
    """Two runs whose records stand in one folder; what both did counts as the later did it.

    Raises:
        RecordError: they are not of one kind.
    """
    if (earlier.kind, earlier.quick, earlier.part) != (later.kind, later.quick, later.part):
        kinds = [f"{r.kind} {r.part}".strip() + (" (quick)" if r.quick else "") for r in (earlier, later)]
        raise RecordError("the folder holds the records of another kind of run", found=kinds[0], expected=kinds[1],
                          next_step="stapo-repro collect RUN --out DIR, where DIR holds no other records")  # fmt: skip
    again = {s.name for s in later.stages} | set(later.unfinished)
    kept = [s for s in earlier.stages if s.name not in again]
    machines = [*(earlier.hardware if kept else []), *later.hardware]
    stages = kept + later.stages
    return RunTimes(
        kind=later.kind,
        quick=later.quick,
        part=later.part,
        seconds=round(sum(s.seconds for s in stages), 2),
        stages=stages,
        unfinished=[name for name in earlier.unfinished if name not in again] + later.unfinished,
        hardware=[h for i, h in enumerate(machines) if h not in machines[:i]],
    )


def committed_seconds(config: Mapping[str, Any], records: Path | None = None) -> dict[str, float]:
    """Mean seconds of a stage of each kind in the committed run of the same experiment.

    Args:
        config: of the driver's run that asks. Its stages are those of the committed one unless it is a quick one.
        records: results/records of the checkout by default.
    """
    experiment = str(config.get("experiment", ""))
    file = (records or checkout() / "results" / "records") / experiment / FILE
    usual = {e: estimates.STEPS[size] for size, e in ON_CPU.items()} | {"testbed": plan.STEPS["main"]}
    if config.get("quick") or config.get("steps") != usual.get(experiment) or not file.exists():
        return {}
    try:
        stages = store.read_json(file, RunTimes).stages
    except RecordError:  # no run fails for want of an estimate; whatever makes pages of this record says what it has
        return {}
    by_kind: dict[str, list[float]] = {}
    for stage in stages:
        by_kind.setdefault(kind_of(stage.name), []).append(stage.seconds)
    return {kind: statistics.fmean(seconds) for kind, seconds in by_kind.items()}


def _code(text: str) -> str:
    """Of stages.code_text: commit, and after a plus a hash of what differs from it."""
    commit, changed, _ = text.partition("+")
    return commit[:12] + (" with uncommitted changes" if changed else "")


def page_block(records: Path, experiment: str, what: str) -> str:
    """What stands between a page's markers: what the committed run took.

    Args:
        records: such as results/records.
        experiment: folder of its records.
        what: the sentence calls it, such as "miniature".

    Raises:
        RecordError: a record that is broken.
    """
    file = records / experiment / FILE
    if not file.exists():
        return f"The {what}: not run."
    times = store.read_json(file, RunTimes)
    count = Counter(kind_of(s.name) for s in times.stages)
    peak = max((s.peak_mib for s in times.stages), default=0) / 1024
    machines = " and ".join(f"{h['cores']} cores of {h['cpu']} with {h['memory_gib']:g} GiB" for h in times.hardware)
    done = (
        f"{count[kind]} {name}{'s' * (count[kind] != 1)}"
        for kind, name in (("train", "training"), ("eval", "evaluation"))
    )
    again = sum(s.attempts - 1 for s in times.stages if kind_of(s.name) in ("base", "train", "eval"))
    more = f" Attempts that did not end: {again}; what a killed one took is not counted." if again else ""
    text = (
        f"The committed {what} took {duration(times.seconds)} on {machines}: {', '.join(done)}, "
        f"peak memory {peak:.1f} GiB, code {', '.join(dict.fromkeys(_code(s.code) for s in times.stages))}.{more}"
    )
    return f"{text} NOT FINISHED: {', '.join(times.unfinished)}." if times.unfinished else text
