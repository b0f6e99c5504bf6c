"""Stages: commands that are run in order or side by side, once each, and resumed after any kind of death.

The run folder of a stage says whether it is done (run.json), or the file that its command writes last. stages.json
has the command and the times of each stage. A stage that is not done is run: its wing resumes, finds it finished, or
refuses another run. What another command made is refused here; nothing is moved or deleted.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt, PositiveInt

from stapo_repro.run import processes
from stapo_results import runs, store, terminal
from stapo_results.errors import BadInput, RecordError, RunFailed
from stapo_results.provenance import code_version
from stapo_results.schema import Record, Run
from stapo_results.terminal import Display, duration

FILE = "stages.json"
POLL_SECONDS = 0.5
_LONG = ("train", "eval")  # kinds of stages that take a run's time
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
        cards: GPUs that it wants of those that the run shares out.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    outputs: tuple[Path, ...]
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    always: bool = False
    cards: int = 0

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
    if not file.exists():
        return {}
    try:
        return {s.name: s for s in store.read_json(file, Stages).stages}
    except RecordError as e:
        e.next_step = f"{shlex.join(['rm', str(file)])}   then the same command: a finished stage says so itself"
        raise


MAY_DIFFER = frozenset({"judge", "keep_checkpoints", "programs", "ray_address", "methods", "seeds"})
"""Of a request, what later calls may have otherwise: each stage compares what concerns it."""
_ADDRESS = "ray_kwargs.ray_init.address="
_FREE = ("trainer.max_actor_ckpt_to_keep=", _ADDRESS, f"+{_ADDRESS}")  # fewer may be what a full disk asks for


def portable(command: Sequence[str], out: Path) -> tuple[str, ...]:
    """The command as it is recorded and compared: the program's name, and paths below `out` from there.

    A run folder may so be named in another way, moved, or continued by the programs of another environment. Where
    links below it lead makes no difference.
    """
    places, words = (out.resolve(), Path(os.path.abspath(out))), [Path(command[0]).name]
    for word in command[1:]:
        key, equals, value = word.rpartition("=")
        for place in places:
            if Path(value).is_relative_to(place):
                word = f"{key}{equals}{Path(value).relative_to(place)}"
                break
        words.append(word)
    return tuple(words)


def _compared(words: Sequence[str], *, judge: bool) -> list[str]:
    """What two commands of a stage have to agree in. judge: as one that needs no work; else its wing compares."""
    free = {"--ray-address", *([] if judge else ["--judge"])}
    of_each = zip(words, ("", *words), strict=False)
    return [w for w, before in of_each if not (w.startswith(_FREE) or free & {w, before})]


def finished(out: Path, stages: Sequence[Stage]) -> set[str]:
    """Names of the stages that need no work: done by the same command, after all that they need.

    A stage that ended before one of its inputs did may have read another one: its wing compares the hashes.

    Raises:
        BadInput: what is there of a stage was made by another command.
    """
    states, done = read_states(out), set[str]()
    ended, made = list(states), [s for s in stages if not s.always and s.name in states]

    def same(s: Stage, *, judge: bool) -> bool:
        earlier = portable(states[s.name].command, out)  # versions before this one wrote places behind links whole
        return _compared(portable(s.command, out), judge=judge) == _compared(earlier, judge=judge)

    changed = [s for s in made if s.folder.exists() and not same(s, judge=False)]
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
        current = same(s, judge=True) and states[s.name].status == "done"
        if current and done.issuperset(s.needs) and not later & set(s.needs) and not s.missing():
            done.add(s.name)
    return done


def side_by_side(stages: Sequence[Stage], times: Mapping[str, float], jobs: int) -> float:
    """The time until all stages have ended, where `jobs` at a time begin as soon as their inputs are there, in order.

    Args:
        times: of stages, in any unit; a stage without one takes none.
    """
    order = {s.name: i for i, s in enumerate(stages)}
    sorter, ready, working, now = _sorter(stages), list[str](), list[tuple[float, str]](), 0.0
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=order.__getitem__)
        begun, ready = ready[: jobs - len(working)], ready[jobs - len(working) :]
        working = sorted([*working, *((now + times.get(name, 0.0), name) for name in begun)])
        now, name = working.pop(0)
        sorter.done(name)
    return now


def pace(expected: Mapping[str, float], took: Mapping[str, float]) -> float:
    """Seconds that stages took for each second that was expected of them, at least a half: what is expected is right
    within half and twice, and a short stage says little of a long one. 1 where none is known."""
    wanted = sum(expected.get(name, 0.0) for name in took)
    return max(0.5, sum(took[name] for name in took if name in expected) / wanted) if wanted else 1.0


def time_left(
    stages: Sequence[Stage],
    expected: Mapping[str, float],
    took: Mapping[str, float],
    spent: Mapping[str, float],
    told: Mapping[str, float],
    jobs: int,
) -> float | None:
    """Seconds until these stages have ended, where the machine keeps its pace; None where a long one's time is
    not known.

    Args:
        stages: those that have not ended.
        expected: of stages, by records of other machines or by formula.
        took: what stages took, of which the pace is made; of those that run for the first time what they will take.
        spent: so far, of those that run; one that is late counts in the pace.
        told: what is left of those that run, by their own progress.
    """
    late = {name: seconds for name, seconds in spent.items() if seconds > expected.get(name, math.inf)}
    here, to_do = pace(expected, {**late, **took}), dict(told)
    for s in stages:
        if s.kind in _LONG and s.name not in expected and s.name not in told:
            return None
        to_do.setdefault(s.name, max(0.0, here * expected.get(s.name, 0.0) - spent.get(s.name, 0.0)))
    return side_by_side(stages, to_do, jobs)


def _sorter(stages: Sequence[Stage]) -> TopologicalSorter[str]:
    names = {s.name for s in stages}
    sorter = TopologicalSorter({s.name: [n for n in s.needs if n in names] for s in stages})
    sorter.prepare()
    return sorter


class Progress:
    """How much a running stage has left, by what it says in the file `report`."""

    def __init__(self, report: Path):
        self.report = report
        self.part, self.first, self.then = "", 0, 0.0  # what it works on; how much was done when it said so first

    def left(self, now: float) -> float | None:
        """Seconds of the part that it works on, `now` seconds after its start; None before a tenth is done since the
        first word of it: the first responses to end are the short ones."""
        told = terminal.read_progress(self.report)
        if told is None or told["stage"] != self.part:
            if told:
                self.part, self.first, self.then = told["stage"], told["done"], now
            return None
        done, to_do = told["done"] - self.first, told["total"] - told["done"]
        if not to_do:
            return 0.0
        return (now - self.then) * to_do / done if 10 * done >= told["total"] else None


class Work:
    """A stage that is running: its process with all that this started, its log, and where it says its progress.

    Attributes:
        state: what is on record of it: the attempts before this one, too.
        cards: GPUs that it has.
    """

    def __init__(self, stage: Stage, state: StageState, title: str, out: Path, mark: str, cards: Sequence[str]):
        logs = out / "logs" / stage.name.replace("/", "-")
        self.log, report = logs.with_name(f"{logs.name}.log"), logs.with_name(f"{logs.name}.progress.json")
        report.unlink(missing_ok=True)
        self.stage, self.state, self.title, self.cards = stage, state, title, cards
        self.started, self.peak, self.family = time.monotonic(), state.peak_mib, processes.Family(mark)
        self.progress = Progress(report)
        given = {"CUDA_VISIBLE_DEVICES": ",".join(cards)} if cards else {}
        environment = {**CHILD_ENVIRONMENT, **stage.environment, **given, terminal.PROGRESS: str(report.resolve())}
        self.child = processes.start(stage.command, self.log, mark, environment)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        told = terminal.read_progress(self.progress.report)
        done = f", {told['stage']} {told['done']}/{told['total']}" if told else ""
        return f"{self.title}, {duration(self.seconds)}{done}"

    def running(self) -> bool:
        self.peak = max(self.peak, self.family.resident() >> 20)
        return self.child.poll() is None

    def ended(self, patience: float) -> tuple[str, list[str]]:
        """(what is wrong with its end, in words; the names of processes that outlived it and were ended)"""
        left: list[str] = []
        if not self.family.wait_gone(patience):  # daemons that its end did not end
            left = self.family.names()
            self.family.end()
        return f"exit code {self.child.returncode}" if self.child.returncode else self.stage.missing(), left

    def failure(self, wrong: str) -> RunFailed:
        anew = "" if self.child.returncode else f"{shlex.join(['rm', '-r', f'{self.stage.folder}'])} makes it anew; "
        return RunFailed(
            f"the stage {self.stage.name} failed",
            found=wrong,
            next_step=f"read {self.log}; {anew}then run the same command again: finished stages are kept. The stage "
            f"alone:\n            {shlex.join(self.stage.command)}",
        )


class StageRunner:
    """Runs stages below one output folder, whose lock the caller holds; its other parameters are those of `execute`."""

    def __init__(
        self, out: Path, display: Display, grace: float, patience: float, jobs: int = 1,
        cards: Sequence[str] = (), expected: Mapping[str, float] | None = None,
    ):  # fmt: skip
        self.out, self.display, self.grace, self.patience, self.jobs = out, display, grace, patience, jobs
        self.mark = processes.new_mark(out)
        self.code = "+".join(filter(None, code_version()))
        self.states = read_states(out)
        self.free, self.cards, self.expected = list(cards), len(cards), expected or {}

    def run(self, stages: Sequence[Stage]) -> set[str]:
        """Run what is not finished, in order; returns the names of what had to run. Raises as `execute`."""
        before, kept = processes.Family(processes.mark_of(self.out)), finished(self.out, stages)
        if orphans := before.names():
            self.display.say(f"ending what a killed run left behind: {', '.join(orphans)}")
            before.end()
        order = {s.name: i for i, s in enumerate(stages)}
        sorter, ready, failure, working = _sorter(stages), list[str](), None, list[Work]()
        with processes.watched(self.mark):
            try:
                while sorter.is_active():
                    ready = sorted([*ready, *sorter.get_ready()], key=order.__getitem__)
                    if kept_ready := [n for n in ready if n in kept]:
                        for name in kept_ready:
                            self.display.say(f"kept        {self._title(name, order)}, finished before", "dim")
                        ready = [n for n in ready if n not in kept]
                        sorter.done(*kept_ready)
                        continue
                    for s in [stages[order[n]] for n in ready if failure is None]:
                        if len(working) < self.jobs and self._wants(s) <= len(self.free):
                            working.append(self._begin(s, self._title(s.name, order)))
                            ready.remove(s.name)
                    if not working:
                        break
                    for w in [w for w in working if not w.running()]:
                        wrong = self._end(w)
                        working.remove(w)
                        if not wrong:
                            sorter.done(w.stage.name)
                        failure = failure or (w.failure(wrong) if wrong else None)
                    self._show(working, stages, kept)
            finally:  # also after Ctrl-C and a defect of our own: nothing may be left running
                self._interrupt(working)
        if failure is not None:
            raise failure
        return order.keys() - kept

    def _wants(self, stage: Stage) -> int:
        """GPUs of those that are shared."""
        return min(stage.cards, self.cards)

    def _title(self, name: str, order: Mapping[str, int]) -> str:
        return f"{name} ({order[name] + 1}/{len(order)})"

    def _show(self, working: Sequence[Work], stages: Sequence[Stage], kept: set[str]) -> None:
        """A line a running stage, and the time that is left; then wait a little."""
        done = [s for s in stages if s.name in kept or (s.name in self.states and self.states[s.name].status == "done")]
        spent = {w.stage.name: w.seconds for w in working}
        # what is on record of a stage that was resumed may lack an attempt
        ended = {s.name: self.states[s.name].seconds for s in done if self.states[s.name].attempts == 1}
        told = {w.stage.name: t for w in working if (t := w.progress.left(spent[w.stage.name])) is not None}
        # a part that is done says nothing of the whole
        first = {w.stage.name: t for w in working if w.state.attempts == 1 and (t := told.get(w.stage.name))}
        took = {**ended, **{name: spent[name] + t for name, t in first.items()}}
        left = time_left([s for s in stages if s not in done], self.expected, took, spent, told, self.jobs)

        def lines() -> str:
            more = f"about {duration(left)} left" if left else ""
            return "\n".join(filter(None, [*(w.line() for w in working), more]))

        if working:
            self.display.show(lines, len(done) / len(stages))
            # each stage's processes are looked up in /proc, which takes time from the stages
            time.sleep(POLL_SECONDS * len(working) if min(spent.values()) > POLL_SECONDS else 0.1)

    def _record(self, state: StageState, **values: object) -> StageState:
        """Write stages.json with these values of a stage, which is the last of it."""
        self.states.pop(state.name, None)
        self.states[state.name] = state.model_copy(update=values)
        store.write_json(self.out / FILE, Stages(stages=list(self.states.values())))
        return self.states[state.name]

    def _begin(self, stage: Stage, title: str) -> Work:
        command, state, resumes = portable(stage.command, self.out), self.states.get(stage.name), False
        compared = _compared(command, judge=False)
        if state is not None and _compared(state.command, judge=False) == compared and stage.folder.exists():
            resumes = state.status != "done"  # else an input ended later: its wing looks whether that changed
        else:
            state = StageState(name=stage.name, command=command, code=self.code, attempts=1)
        attempts = state.attempts + resumes
        state = self._record(state, command=command, status="running", attempts=attempts, code=self.code)
        self.display.say(f"{'resume' if resumes else 'start':<11} {title}")
        wants = self._wants(stage)
        cards, self.free = self.free[:wants], self.free[wants:]
        return Work(stage, state, title, self.out, f"{self.mark}-{stage.name}.", cards)

    def _end(self, work: Work) -> str:
        """Record how a stage ended; what is wrong, in words."""
        wrong, left = work.ended(self.patience)
        note = f"; outlived it and were ended: {', '.join(left)}" if left else ""
        self._close(work, "failed" if wrong else "done", note)
        if wrong:
            tail = work.log.read_text(errors="replace").splitlines()[-_TAIL:]
            self.display.say("\n".join([f"--- last {len(tail)} lines of {work.log}", *(f"  {x[:400]}" for x in tail)]))
        return wrong

    def _close(self, work: Work, result: str, note: str = "") -> None:
        self.free += work.cards
        seconds = round(work.state.seconds + work.seconds, 2)
        self._record(work.state, status=result, seconds=seconds, peak_mib=work.peak)
        style = "" if result == "done" else "bold red"
        self.display.say(f"{result:<11} {work.title}, {duration(work.seconds)}{note}", style)

    def _interrupt(self, working: Sequence[Work]) -> None:
        """End what is running, all at the same time."""
        with ThreadPoolExecutor(max(1, len(working))) as pool:
            list(pool.map(lambda w: w.family.end(w.child, self.grace), working))
        for w in working:
            if self.states[w.stage.name].status == "running":  # else the signal came behind its end
                self._close(w, "interrupted")


def execute(
    out: Path, record: Run, stages: Sequence[Stage], grace: float = 1800.0, patience: float = 5.0, jobs: int = 1,
    cards: Sequence[str] = (), expected: Mapping[str, float] | None = None,
) -> set[str]:  # fmt: skip
    """Run the stages of one folder as its only writer; returns the names of those that had to run.

    Args:
        record: of the run, as `provenance.new_run` makes it.
        grace: seconds a child has to end in order: a training step of the largest model and its checkpoint.
        patience: seconds that daemons have after their stage ended.
        jobs: stages at a time, of those whose inputs are there.
        cards: GPUs to share among stages that want some; without any each stage sees all.
        expected: seconds of stages, where they are known.

    Raises:
        BadInput: another driver works in this folder, or it holds another run or what another command made.
        RunFailed: a stage failed; those beside it ended, and the rest was not started.
        KeyboardInterrupt: after everything that was started is gone.
    """
    with interrupt_once(), runs.opened(out, record, may_differ=MAY_DIFFER.__contains__) as folder:
        with folder.working(), Display(sys.stdout) as display:
            made = StageRunner(out, display, grace, patience, jobs, cards, expected).run(stages)
        if folder.finished and made <= {s.name for s in stages if s.always}:
            folder.restore()
        return made


@contextlib.contextmanager
def interrupt_once(*said: str) -> Iterator[None]:
    """Ctrl-C, TERM and HUP (not under nohup) end the run in order; a second one changes nothing.

    said: what the command prints in the place of its usual advice.
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
