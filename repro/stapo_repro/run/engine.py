"""The stage engine: runs a list of commands in order, once each, and resumes after any kind of death.

The run folder of a stage says whether it is done (run.json), or the file that its command writes last. stages.json
has the command and the times of each stage. A stage that is not done is run: its wing resumes, finds it finished, or
refuses another run. What another command made is refused here; nothing is moved or deleted.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.run import processes
from stapo_results import runs, store, terminal
from stapo_results.errors import BadInput, RecordError, RunFailed
from stapo_results.provenance import code_version
from stapo_results.schema import Record, Run
from stapo_results.terminal import Display, duration

FILE = "stages.json"
POLL_SECONDS = 0.5
_TAIL = 30  # lines of a failed stage's log that are shown

CHILD_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "SPT_NOENV": "1",  # setproctitle leaves the environment readable, and with it the mark of `processes`
    "PYTHONUNBUFFERED": "1",  # the log and its last lines are complete when a stage dies
}


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        name: such as "train/stapo-s0"; the part before the slash is its kind.
        command: program and arguments.
        folder: what the stage writes and owns.
        outputs: what is there when it is done; a run.json among them says so itself.
        needs: names of the stages whose outputs it reads.
        environment: variables that go before those of `CHILD_ENVIRONMENT`.
        always: it takes seconds and is made at every call.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    outputs: tuple[Path, ...]
    needs: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    always: bool = False

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    def missing(self) -> str:
        """The first of the outputs that is not there, or does not say done, in words; "" where all are."""
        for path in self.outputs:
            if not path.exists():
                return f"{path} is not there"
            if path.name == runs.RECORD and store.read_json(path, Run).status != "done":
                return f"{path} does not say done"
        return ""


def kind_of(stage: str) -> str:
    """ "train" of "train/stapo-s0"."""
    return stage.split("/")[0]


class StageTime(BaseModel):
    """What a stage took, all its attempts together.

    Attributes:
        seconds: sum over the attempts whose end is on record; one that was killed left none.
        peak_mib: highest resident memory of an attempt; pages that processes share count for each.
        attempts: how often it was started until it ended.
        code: version that worked on it last.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    seconds: Annotated[float, Field(ge=0)] = 0.0
    peak_mib: Annotated[int, Field(ge=0)] = 0
    attempts: Annotated[int, Field(ge=1)]
    code: str


class StageState(StageTime):
    """A stage in the driver's folder, with its command as `portable` writes it."""

    command: list[str]
    status: Literal["running", "done", "failed", "interrupted"] = "running"


class Stages(Record):
    """stages.json of a driver's folder, in the order in which the stages ended."""

    stages: list[StageState]


class RunTimes(Record):
    """stages.json among committed records: what a run of the driver took.

    Attributes:
        kind: miniature, small, testbed or cells; quick: its short form; part: of the testbed.
        seconds: sum over the stages.
        unfinished: stages that were begun and are not done.
        hardware: of the run records beside it, each once.
    """

    kind: str
    quick: bool
    part: str = ""
    seconds: Annotated[float, Field(ge=0)]
    stages: list[StageTime]
    unfinished: list[str]
    hardware: list[dict[str, Any]]


def read_states(out: Path) -> dict[str, StageState]:
    """What is on record of each stage, in the order in which they ended. Raises: RecordError for a broken file."""
    file = out / FILE
    return {s.name: s for s in store.read_json(file, Stages).stages} if file.exists() else {}


def portable(command: Sequence[str], out: Path) -> list[str]:
    """The command as it is recorded and compared: the program's name, and paths below `out` from there.

    A run folder may so be named in another way, moved, or continued by the programs of another environment.
    """
    here, words = out.resolve(), [Path(command[0]).name]
    for word in command[1:]:
        key, equals, value = word.rpartition("=")
        path = Path(value).resolve()
        words.append(f"{key}{equals}{path.relative_to(here)}" if path.is_relative_to(here) else word)
    return words


def finished(out: Path, stages: Sequence[Stage]) -> set[str]:
    """Names of the stages that need no work: done by the same command, after all that they need.

    A stage that ended before one of its inputs did may have read another one: its wing compares the hashes.

    Raises:
        BadInput: what is there of a stage was made by another command.
    """
    states, found = read_states(out), set[str]()
    ended = list(states)
    made = [s for s in stages if not s.always and s.name in states]
    if changed := [s for s in made if states[s.name].command != portable(s.command, out) and s.folder.exists()]:
        first, anew = changed[0], {s.name for s in changed}
        for s in stages:  # what was made of it would be refused by its wing later
            anew |= {s.name} if anew & set(s.needs) else set()
        folders = [f"{s.folder}" for s in stages if s.name in anew and not s.always and s.folder.exists()]
        raise BadInput(
            f"{len(changed)} stages were made or begun by another command, first {first.name}",
            found=shlex.join(states[first.name].command),
            expected=shlex.join(portable(first.command, out)),
            next_step=f"{shlex.join(['rm', '-r', *folders])}   makes them and what depends on them anew; or give "
            "another --out",
        )
    for s in made:
        state, later = states[s.name], ended[ended.index(s.name) :]
        if state.status == "done" and state.command == portable(s.command, out) and not s.missing():
            found |= {s.name} if found.issuperset(s.needs) and not set(later) & set(s.needs) else set()
    return found


def code_text() -> str:
    """The code version as one word: commit, and a hash of what differs from it."""
    commit, dirty = code_version()
    return commit + (f"+{dirty}" if dirty else "")


class Engine:
    """Runs stages below one output folder.

    Args:
        out: the folder of logs, progress files and stages.json. The caller holds its lock.
        display: told of everything.
        grace: seconds a child has between TERM and KILL.
        patience: seconds that daemons have after their stage ended.
    """

    def __init__(self, out: Path, display: Display, grace: float = 30.0, patience: float = 5.0):
        self.out, self.display, self.grace, self.patience = out, display, grace, patience
        self.mark = processes.new_mark(out)
        self.states = read_states(out)
        self.waiting: list[str] = []

    def run(self, stages: Sequence[Stage]) -> set[str]:
        """Run what is not finished, in order.

        Returns:
            The names of the stages that had to run.

        Raises:
            BadInput: as `finished`; nothing was started.
            RunFailed: a stage failed; the rest was not started.
            KeyboardInterrupt: passed on, after the child and all it started are gone.
        """
        before, kept = processes.Family(processes.mark_of(self.out)), finished(self.out, stages)
        if orphans := processes.describe(before.members()):
            self.display.say(f"ending what a killed run left behind: {', '.join(orphans)}")
            processes.end_all(before)
        self.waiting = [s.name for s in stages if s.name not in kept]
        with processes.watched(self.mark):
            for i, s in enumerate(stages, 1):
                title = f"{s.name} ({i}/{len(stages)})"
                if s.name in kept:
                    code = self.states[s.name].code
                    by = "" if code == code_text() else f" by other code ({code[:12]})"
                    self.display.say(f"kept        {title}, finished before{by}", "dim")
                else:
                    self._execute(s, title, (i - 1) / len(stages))
        return {s.name for s in stages} - kept

    def _record(self, state: StageState, **values: object) -> None:
        """Write stages.json with these values of a stage, which is the last of it."""
        self.states.pop(state.name, None)
        self.states[state.name] = state.model_copy(update=values)
        store.write_json(self.out / FILE, Stages(stages=list(self.states.values())))

    def _execute(self, stage: Stage, title: str, share: float) -> None:
        logs = self.out / "logs" / stage.name.replace("/", "-")
        log, report = logs.with_name(f"{logs.name}.log"), logs.with_name(f"{logs.name}.progress.json")
        report.unlink(missing_ok=True)
        command, state = portable(stage.command, self.out), self.states.pop(stage.name, None)
        resumes = asked_again = False
        if state is not None and state.command == command and stage.folder.exists():
            asked_again = state.status == "done"  # an input ended later: its wing looks whether that changed
            resumes = not asked_again
        if state is None or not (resumes or asked_again):
            state = StageState(name=stage.name, command=command, code=code_text(), attempts=1)
        self._record(state, status="running", attempts=state.attempts + resumes, code=code_text())
        self.display.say(f"{'resume' if resumes else 'start':<11} {title}")
        started, peak, family = time.monotonic(), 0, processes.Family(self.mark)
        self.waiting.remove(stage.name)
        first: tuple[int, float] | None = None  # what was done at the stage's first report, and when

        def line() -> str:
            parts = [title, duration(spent)]
            if said:
                parts.append(f"{said['stage']} {said['done']}/{said['total']}")
                parts += [f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in said["values"].items()]
            return ", ".join([*parts, self.time_left(stage, spent, said, first), f"peak {peak / 2**30:.1f} GiB"])

        environment = {**CHILD_ENVIRONMENT, **dict(stage.environment), terminal.PROGRESS: str(report.resolve())}
        child, result, note, found = None, "interrupted", "", ""
        try:
            child = processes.start(stage.command, log, self.mark, environment, Path.cwd())
            while child.poll() is None:
                peak = max(peak, processes.resident(family.members()))
                said, spent = terminal.read_progress(report), time.monotonic() - started
                first = first or ((said["done"], spent) if said and said["done"] else None)
                self.display.show(line, share)
                time.sleep(POLL_SECONDS if spent > POLL_SECONDS else 0.1)
            if left := processes.sweep(family, self.patience):
                note = f"\n            outlived the stage and were ended: {', '.join(left)}"
            found = f"exit code {child.returncode}" if child.returncode else stage.missing()
            result = "failed" if found else "done"
        finally:  # also after Ctrl-C and a defect of our own: nothing may be left running
            if result == "interrupted" and (left := processes.end_all(family, child, self.grace)):
                note = f"\n            survived KILL: {', '.join(left)}"
            seconds, state = time.monotonic() - started, self.states[stage.name]
            self._record(state, status=result, seconds=round(state.seconds + seconds, 2),
                         peak_mib=max(state.peak_mib, peak >> 20))  # fmt: skip
            text = f"{result:<11} {title}, {duration(seconds)}, peak {peak / 2**30:.1f} GiB{note}"
            self.display.say(text, "" if result == "done" else "bold red")
        if result == "failed":
            tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
            self.display.say("\n".join([f"--- last {len(tail)} lines of {log}", *(f"  {x[:400]}" for x in tail)]))
            again = (
                ""
                if found.startswith("exit code")
                else f"{shlex.join(['rm', '-r', f'{stage.folder}'])} makes it anew; "
            )
            raise RunFailed(
                f"the stage {stage.name} failed",
                found=found,
                expected="exit code 0 and its outputs",
                next_step=f"read {log}; {again}then run the same command again: finished stages are kept. The stage "
                f"alone:\n            {shlex.join(stage.command)}",
            )

    def time_left(self, stage: Stage, spent: float, said: Mapping | None, first: tuple[int, float] | None) -> str:
        """Of the whole run. A stage takes the mean of those of its kind that ended at their first attempt, or else what
        the speed since its first report makes of it; with a kind that has not run here yet the time is "at least"."""
        took: dict[str, list[float]] = defaultdict(list)
        for s in self.states.values():
            if s.status == "done" and s.attempts == 1:
                took[kind_of(s.name)].append(s.seconds)
        known = {kind: statistics.fmean(seconds) for kind, seconds in took.items()}
        mine = None if stage.kind not in known else max(0.0, known[stage.kind] - spent)
        if said and first and said["done"] > first[0]:
            each = (spent - first[1]) / (said["done"] - first[0])
            mine = (said["total"] - said["done"]) * each
            known.setdefault(stage.kind, max(0.0, first[1] - first[0] * each) + said["total"] * each)
        left = [mine, *(known.get(kind_of(n)) for n in self.waiting)]
        if not any(left):
            return "time left: ?"
        return f"{'at least ' if None in left else ''}{duration(sum(s or 0.0 for s in left))} left"


def execute(out: Path, record: Run, stages: Sequence[Stage], grace: float = 30.0, patience: float = 5.0) -> set[str]:
    """Run the stages of one folder as its only writer.

    Args:
        record: of the run, as `provenance.new_run` makes it.
        grace, patience: as `Engine`.

    Returns:
        The names of the stages that had to run.

    Raises:
        BadInput: another driver works in this folder, or it holds another run or what another command made.
        RunFailed: a stage failed.
        KeyboardInterrupt: after everything that was started is gone.
    """
    with interrupt_once(), runs.opened(out, record) as folder:
        with folder.working(), Display(sys.stdout) as display:
            made = Engine(out, display, grace, patience).run(stages)
        if folder.finished and made <= {s.name for s in stages if s.always}:
            folder.restore()
        return made


@contextlib.contextmanager
def interrupt_once() -> Iterator[None]:
    """Ctrl-C, TERM and HUP all end the run in order; a second one does not disturb the ending."""
    asked = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            print("already ending: the stage's processes get some seconds", file=sys.stderr)
            return
        asked = True
        raise KeyboardInterrupt

    before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def of_run(folder: Path, hardware: Sequence[dict[str, Any]]) -> RunTimes | None:
    """The times of a driver's folder for committed records; None where no driver ran in it.

    Args:
        hardware: of the runs in it, repeats allowed.
    """
    file = folder / runs.RECORD
    if not (file.exists() and (folder / FILE).exists()) or (run := store.read_json(file, Run)).kind != "repro":
        return None
    states, fields = read_states(folder).values(), {*StageTime.model_fields}
    done = [StageTime(**s.model_dump(include=fields)) for s in states if s.status == "done"]
    return RunTimes(
        kind=run.config["experiment"],
        quick=run.config["quick"],
        part=run.config.get("part", ""),
        seconds=round(sum(s.seconds for s in done), 2),
        stages=done,
        unfinished=[s.name for s in states if s.status != "done"],
        hardware=[h for i, h in enumerate(hardware) if h not in hardware[:i]],
    )


def joined(earlier: RunTimes, later: RunTimes) -> RunTimes:
    """Two runs whose records are in one folder; what both did counts as the later did it.

    Raises:
        RecordError: they are not of one kind.
    """
    kinds = [f"{r.kind} {r.part}".strip() + (" (quick)" if r.quick else "") for r in (earlier, later)]
    if kinds[0] != kinds[1]:
        raise RecordError("the folder holds the records of another kind of run", found=kinds[0], expected=kinds[1],
                          next_step="stapo-repro collect RUN --out DIR, where DIR holds no other records")  # fmt: skip
    again = {s.name for s in later.stages} | set(later.unfinished)
    kept = [s for s in earlier.stages if s.name not in again]
    stages = kept + later.stages
    machines = [h for h in earlier.hardware if kept and h not in later.hardware] + later.hardware
    unfinished = [name for name in earlier.unfinished if name not in again] + later.unfinished
    values = {"stages": stages, "unfinished": unfinished, "hardware": machines}
    return later.model_copy(update={**values, "seconds": round(sum(s.seconds for s in stages), 2)})


def page_block(records: Path, experiment: str, what: str) -> str:
    """What a page says of the time that the committed run of an experiment took; `what`: its name in the sentence."""
    if not (file := records / experiment / FILE).exists():
        return f"The {what}: not run."
    t = store.read_json(file, RunTimes)
    count, peak = Counter(kind_of(s.name) for s in t.stages), max((s.peak_mib for s in t.stages), default=0) / 1024
    machines = " and ".join(f"{h['cores']} cores of {h['cpu']} with {h['memory_gib']:g} GiB" for h in t.hardware)
    code = dict.fromkeys(s.code[:12] + (" with uncommitted changes" if "+" in s.code else "") for s in t.stages)
    again = sum(s.attempts - 1 for s in t.stages if kind_of(s.name) in ("base", "train", "eval"))
    return (
        f"The committed {what} took {duration(t.seconds)} on {machines}: {count['train']} trainings, {count['eval']} "
        f"evaluations, peak memory {peak:.1f} GiB, code {', '.join(code)}."
        + (f" Attempts that did not end: {again}; what a killed one took is not counted." if again else "")
        + (f" NOT FINISHED: {', '.join(t.unfinished)}." if t.unfinished else "")
    )
