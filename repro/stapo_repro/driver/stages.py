"""The stage engine: runs a list of commands in order, once each, and goes on after any kind of death.

stages.jsonl in the output folder is its memory: append-only, one line an event. A stage is finished when its last
line says "done", its command is the same, and its inputs and outputs still have the recorded hashes. An unfinished one
goes on if command and inputs are the same. Anything else is said aloud and made again; what was there is moved aside,
never deleted.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field

from stapo_repro.driver import processes
from stapo_repro.driver.display import StageDisplay, kind_of
from stapo_results import store, terminal
from stapo_results.errors import RunFailed
from stapo_results.provenance import code_version, now
from stapo_results.schema import Record

LEDGER = "stages.jsonl"
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
        folder: what the stage writes and owns; moved aside when the stage is made again.
        outputs: files or folders below the output folder that later stages rely on.
        needs: names of the stages whose outputs it reads.
        environment: variables that go before those of `CHILD_ENVIRONMENT`.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    outputs: tuple[Path, ...]
    needs: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> str:
        return kind_of(self.name)


Result = Literal["done", "failed", "interrupted"]


class StageEvent(Record):
    """A line of stages.jsonl. `outputs` is empty until a stage is done; `seconds`, `peak_mib` are of this attempt."""

    stage: str
    event: Literal["start", "done", "failed", "interrupted"]
    command: list[str]
    code: str
    inputs: str = ""
    outputs: str = ""
    seconds: float | None = None
    peak_mib: int | None = None
    exit_code: int | None = None
    notes: list[str] = Field(default_factory=list)
    at: str

    @property
    def asked(self) -> tuple[list[str], str]:
        """What an attempt goes on with: its command, and the hash of its inputs."""
        return self.command, self.inputs


def read_ledger(out: Path) -> list[StageEvent]:
    """The whole lines of a folder's ledger; a half-written last one is what a killed run left, and is left alone."""
    ledger = out / LEDGER
    whole = ledger.read_bytes().split(b"\n")[:-1] if ledger.exists() else []
    return [store.parse(line, StageEvent, f"{ledger}:{n}", n) for n, line in enumerate(whole, 1)]


def portable(command: Sequence[str], out: Path) -> list[str]:
    """The command as it is recorded and compared: the program's name, and paths below `out` from there.

    A run folder may so be named in another way, moved, or continued by the programs of another environment.
    """
    here = out.resolve()
    words = []
    for word in command[1:]:
        key, equals, value = word.rpartition("=")
        path = Path(value).resolve()
        words.append(f"{key}{equals}{path.relative_to(here)}" if path.is_relative_to(here) else word)
    return [Path(command[0]).name, *words]


def hash_inputs(needs: Sequence[str], outputs: Mapping[str, str]) -> str:
    """One hash over the names of the stages that are needed and the hashes of their outputs."""
    return hashlib.sha256("\n".join(f"{n} {outputs[n]}" for n in needs).encode()).hexdigest()


def last_event(events: Sequence[StageEvent], stage: str) -> StageEvent | None:
    return next((e for e in reversed(events) if e.stage == stage), None)


def hash_outputs(paths: Sequence[Path]) -> str:
    """One hash over the names and bytes of files and of all files below folders; "missing" when one is not there."""
    digest = hashlib.sha256()
    for path in paths:
        if not path.exists():
            return "missing"
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for f in files:
            name = f.name if f == path else f.relative_to(path).as_posix()
            digest.update(f"{name}\0{store.sha256_file(f)}\n".encode())
    return digest.hexdigest()


def code_text() -> str:
    """The code version as one word: commit, and a hash of what differs from it."""
    commit, dirty = code_version()
    return commit + (f"+{dirty}" if dirty else "")


class Engine:
    """Runs stages below one output folder.

    Args:
        out: the folder; logs, progress files and stages.jsonl stand in it. The caller holds its lock.
        display: told of everything.
        grace: seconds a child has between TERM and KILL.
        patience: seconds that daemons have after their stage ended.
    """

    def __init__(self, out: Path, display: StageDisplay, grace: float = 30.0, patience: float = 5.0):
        self.out, self.display, self.grace, self.patience = out, display, grace, patience
        self.say = display.display.say
        self.mark = processes.new_mark(out)
        store.repair(out / LEDGER)
        self.events = read_ledger(out)
        self._hashes: dict[str, str] = {}

    def run(self, stages: Sequence[Stage]) -> set[str]:
        """Run what is not finished, in order.

        Returns:
            The names of the stages that had to run.

        Raises:
            RunFailed: a stage failed; the rest was not started.
            KeyboardInterrupt: passed on, after the child and all it started are gone.
        """
        before = processes.Family(processes.mark_of(self.out))
        if orphans := processes.describe(before.members()):
            self.say(f"ending what a killed run left behind: {', '.join(orphans)}")
            processes.end_all(before)
        with processes.watched(self.mark):
            return {s.name for s in stages if self._make(s)}

    def _inputs(self, stage: Stage) -> str:
        return hash_inputs(stage.needs, self._hashes)

    def _make(self, stage: Stage) -> bool:
        """True when the stage had to run."""
        last = last_event(self.events, stage.name)
        if last is not None and (reason := self._stale(stage, last)):
            self.say(f"{stage.name} is made again: {reason}")
            self._move_aside(stage)
        elif last is not None and last.event == "done":
            self._hashes[stage.name] = last.outputs
            self.display.keep(stage.name, last.seconds)
            return False
        elif last is not None:
            self.say(f"{stage.name} was {'cut off' if last.event == 'start' else last.event}: it goes on")
        self._execute(stage)
        return True

    def _stale(self, stage: Stage, last: StageEvent) -> str:
        """Why the stage is made anew; "" where it is kept, or, if it is not finished, goes on."""
        if portable(last.command, self.out) != portable(stage.command, self.out):
            return "its command changed"
        if last.inputs != self._inputs(stage):
            return "what it reads changed"
        if last.event != "done":
            return ""
        found = hash_outputs(stage.outputs)
        if found != last.outputs:
            return "its outputs are missing" if found == "missing" else "its outputs were changed after it ended"
        if last.code != code_text():
            self.say(f"{stage.name} is kept, though it was made by other code ({last.code[:20]})")
        return ""

    def _move_aside(self, stage: Stage) -> None:
        if not stage.folder.exists():
            return
        aside, n = self.out / "set-aside" / stage.folder.relative_to(self.out), 1
        while (target := aside.with_name(f"{aside.name}.{n}")).exists():
            n += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(stage.folder, target)
        self.say(f"  what was there is now {target}")

    def _record(self, stage: Stage, event: str, **values: object) -> None:
        known = {"stage": stage.name, "event": event, "command": portable(stage.command, self.out), "code": code_text()}
        line = StageEvent.model_validate({**known, "inputs": self._inputs(stage), "at": now(), **values})
        store.append(self.out / LEDGER, [line])
        self.events.append(line)

    def _execute(self, stage: Stage) -> None:
        logs = self.out / "logs" / stage.name.replace("/", "-")
        log, report = logs.with_name(f"{logs.name}.log"), logs.with_name(f"{logs.name}.progress.json")
        report.unlink(missing_ok=True)
        self._record(stage, "start")
        self.display.begin(stage.name)
        started, peak, family = time.monotonic(), processes.Peak(), processes.Family(self.mark)

        def close(result: Result, notes: list[str], **values: object) -> None:
            seconds, mib = round(time.monotonic() - started, 2), peak.bytes >> 20
            self._record(stage, result, seconds=seconds, peak_mib=mib, notes=notes, **values)
            self.display.end(stage.name, result, seconds, mib, notes)

        environment = {**CHILD_ENVIRONMENT, **dict(stage.environment), terminal.PROGRESS: str(report.resolve())}
        child = None
        try:
            child = processes.start(stage.command, log, self.mark, environment, Path.cwd())
            while child.poll() is None:
                peak.sample([psutil.Process(), *family.members()])
                self.display.tick(stage.name, terminal.read_progress(report), time.monotonic() - started, peak.bytes)
                time.sleep(POLL_SECONDS if time.monotonic() - started > POLL_SECONDS else 0.1)
            left = processes.sweep(family, self.patience)
        except BaseException:  # also Ctrl-C and a defect of our own: nothing may be left running
            survivors = processes.end_all(family, child, self.grace)
            close("interrupted", [f"survived KILL: {', '.join(survivors)}"] if survivors else [])
            raise
        notes = [f"outlived the stage and were ended: {', '.join(left)}"] if left else []
        outputs = hash_outputs(stage.outputs) if child.returncode == 0 else ""
        if child.returncode != 0 or outputs == "missing":
            close("failed", notes, exit_code=child.returncode)
            raise self._failure(stage, child.returncode, log)
        self._hashes[stage.name] = outputs
        close("done", notes, exit_code=0, outputs=outputs)

    def _failure(self, stage: Stage, code: int, log: Path) -> RunFailed:
        missing = ", ".join(str(p) for p in stage.outputs if not p.exists())
        tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
        self.say(f"--- last {len(tail)} lines of {log}")
        for line in tail:
            self.say(f"  {line[:400]}")
        return RunFailed(
            f"the stage {stage.name} failed",
            found=f"exit code {code}" if code else f"it ended with 0, but {missing} is not there",
            expected="0 and its outputs",
            next_step=f"read {log}; then run the same command again: finished stages are kept. The stage alone:\n"
            f"            {' '.join(stage.command)}",
        )
