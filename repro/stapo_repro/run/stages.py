"""Stages: run a list of commands in order, once each, and resumes after any kind of death.

The run folder of a stage says whether it is done (run.json), or the file that its command writes last. stages.json
has the command and the times of each stage. A stage that is not done is run: its wing resumes, finds it finished, or
refuses another run. What another command made is refused here; nothing is moved or deleted.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt, PositiveInt

from stapo_repro.run import processes
from stapo_results import runs, store, terminal
from stapo_results.errors import BadInput, RunFailed
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
    environment: Mapping[str, str] = field(default_factory=dict)
    always: bool = False

    @property
    def kind(self) -> str:
        return self.name.split("/")[0]

    def missing(self) -> str:
        """The first of the outputs that is not there, or does not say done, in words; "" where all are."""
        for path in self.outputs:
            if not path.exists():
                return f"{path} is not there"
            if path.name == runs.RECORD and store.read_json(path, Run).status != "done":
                return f"{path} does not say done"
        return ""


class StageState(BaseModel, extra="forbid", frozen=True):
    """What a stage took, all its attempts together.

    seconds: of the attempts whose end is on record, in sum; a killed one left none. peak_mib: highest resident memory,
    as `Family.resident`. attempts: starts until it ended. code: version that worked on it last.
    command: as `portable` writes it; committed records have none.
    """

    name: str
    seconds: NonNegativeFloat = 0.0
    peak_mib: NonNegativeInt = 0
    attempts: PositiveInt
    code: str
    command: tuple[str, ...] = ()
    status: Literal["running", "done", "failed", "interrupted"] = "done"


class Stages(Record):
    """stages.json of a driver's folder, in the order in which the stages ended."""

    stages: list[StageState]


def read_states(out: Path) -> dict[str, StageState]:
    """What is on record of each stage, in the order in which they ended. Raises: RecordError for a broken file."""
    file = out / FILE
    return {s.name: s for s in store.read_json(file, Stages).stages} if file.exists() else {}


def portable(command: Sequence[str], out: Path) -> tuple[str, ...]:
    """The command as it is recorded and compared: the program's name, and paths below `out` from there.

    A run folder may so be named in another way, moved, or continued by the programs of another environment.
    """
    here, words = out.resolve(), [Path(command[0]).name]
    for word in command[1:]:
        key, equals, value = word.rpartition("=")
        path = Path(value).resolve()
        words.append(f"{key}{equals}{path.relative_to(here)}" if path.is_relative_to(here) else word)
    return tuple(words)


def finished(out: Path, stages: Sequence[Stage]) -> set[str]:
    """Names of the stages that need no work: done by the same command, after all that they need.

    A stage that ended before one of its inputs did may have read another one: its wing compares the hashes.

    Raises:
        BadInput: what is there of a stage was made by another command.
    """
    states, found = read_states(out), set[str]()
    ended, made = list(states), [s for s in stages if not s.always and s.name in states]
    changed = [s for s in made if s.folder.exists() and states[s.name].command != portable(s.command, out)]
    if changed:
        anew = {s.name for s in changed}
        for s in stages:  # what was made of it would be refused by its wing later
            anew |= {s.name} if anew & set(s.needs) else set()
        folders = [f"{s.folder}" for s in stages if s.name in anew and not s.always and s.folder.exists()]
        raise BadInput(
            f"{len(changed)} stages were made or begun by another command, first {changed[0].name}",
            found=shlex.join(states[changed[0].name].command),
            expected=shlex.join(portable(changed[0].command, out)),
            next_step=f"{shlex.join(['rm', '-r', *folders])}   makes them and what depends on them anew; or give "
            "another --out",
        )
    for s in made:
        later = set(ended[ended.index(s.name) :])
        current = states[s.name].command == portable(s.command, out) and states[s.name].status == "done"
        if current and found.issuperset(s.needs) and not later & set(s.needs) and not s.missing():
            found.add(s.name)
    return found


class StageRunner:
    """Runs stages below one output folder, whose lock the caller holds; grace and patience as `execute`."""

    def __init__(self, out: Path, display: Display, grace: float, patience: float):
        self.out, self.display, self.grace, self.patience = out, display, grace, patience
        self.mark = processes.new_mark(out)
        self.code = "+".join(filter(None, code_version()))
        self.states = read_states(out)

    def run(self, stages: Sequence[Stage]) -> set[str]:
        """Run what is not finished, in order; returns the names of what had to run. Raises as `execute`."""
        before, kept = processes.Family(processes.mark_of(self.out)), finished(self.out, stages)
        if orphans := before.names():
            self.display.say(f"ending what a killed run left behind: {', '.join(orphans)}")
            before.end()
        with processes.watched(self.mark):
            for i, s in enumerate(stages, 1):
                title = f"{s.name} ({i}/{len(stages)})"
                if s.name in kept:
                    self.display.say(f"kept        {title}, finished before", "dim")
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
        command, state, resumes = portable(stage.command, self.out), self.states.get(stage.name), False
        if state is not None and state.command == command and stage.folder.exists():
            resumes = state.status != "done"  # else an input ended later: its wing looks whether that changed
        else:
            state = StageState(name=stage.name, command=command, code=self.code, attempts=1)
        self._record(state, status="running", attempts=state.attempts + resumes, code=self.code)
        self.display.say(f"{'resume' if resumes else 'start':<11} {title}")
        started, peak, family = time.monotonic(), state.peak_mib, processes.Family(self.mark)

        def line() -> str:
            said = terminal.read_progress(report)
            done = f", {said['stage']} {said['done']}/{said['total']}" if said else ""
            return f"{title}, {duration(time.monotonic() - started)}{done}"

        environment = {**CHILD_ENVIRONMENT, **stage.environment, terminal.PROGRESS: str(report.resolve())}
        child, result, left, found, anew = None, "interrupted", [], "", ""
        try:
            child = processes.start(stage.command, log, self.mark, environment)
            while child.poll() is None:
                peak = max(peak, family.resident() >> 20)
                self.display.show(line, share)
                time.sleep(POLL_SECONDS if time.monotonic() - started > POLL_SECONDS else 0.1)
            if not family.wait_gone(self.patience):  # daemons that its end did not end
                left = family.names()
                family.end()
            found = f"exit code {child.returncode}"
            if not child.returncode:
                found, anew = stage.missing(), f"{shlex.join(['rm', '-r', f'{stage.folder}'])} makes it anew; "
            result = "failed" if found else "done"
        finally:  # also after Ctrl-C and a defect of our own: nothing may be left running
            if result == "interrupted":
                family.end(child, self.grace)
            seconds = time.monotonic() - started
            self._record(self.states[stage.name], status=result, seconds=round(state.seconds + seconds, 2),
                         peak_mib=peak)  # fmt: skip
            note = f"; outlived it and were ended: {', '.join(left)}" if left else ""
            self.display.say(f"{result:<11} {title}, {duration(seconds)}{note}", "" if result == "done" else "bold red")
        if found:
            tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
            self.display.say("\n".join([f"--- last {len(tail)} lines of {log}", *(f"  {x[:400]}" for x in tail)]))
            raise RunFailed(
                f"the stage {stage.name} failed",
                found=found,
                next_step=f"read {log}; {anew}then run the same command again: finished stages are kept. The stage "
                f"alone:\n            {shlex.join(stage.command)}",
            )


def execute(out: Path, record: Run, stages: Sequence[Stage], grace: float = 30.0, patience: float = 5.0) -> set[str]:
    """Run the stages of one folder as its only writer; returns the names of those that had to run.

    Args:
        record: of the run, as `provenance.new_run` makes it.
        grace: seconds a child has between TERM and KILL.
        patience: seconds that daemons have after their stage ended.

    Raises:
        BadInput: another driver works in this folder, or it holds another run or what another command made.
        RunFailed: a stage failed; the rest was not started.
        KeyboardInterrupt: after everything that was started is gone.
    """
    with interrupt_once(), runs.opened(out, record) as folder:
        with folder.working(), Display(sys.stdout) as display:
            made = StageRunner(out, display, grace, patience).run(stages)
        if folder.finished and made <= {s.name for s in stages if s.always}:
            folder.restore()
        return made


@contextlib.contextmanager
def interrupt_once(*said: str) -> Iterator[None]:
    """Ctrl-C, TERM and HUP (not under nohup) end the run in order; a second one does not disturb the ending.

    said: what the command says of it, where it is not the usual.
    """

    def first(*_: object) -> None:
        for n in before:
            signal.signal(n, signal.SIG_IGN)
        print("ending: the stage stops first", file=sys.stderr, flush=True)
        raise KeyboardInterrupt(*said)

    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    before = {n: signal.signal(n, first) for n in (signal.SIGINT, signal.SIGTERM, *hang_up)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
