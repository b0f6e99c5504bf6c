"""The stage engine: runs a list of commands in order, once each, and goes on after any kind of death.

stages.jsonl in the output folder is its memory: append-only, one line an event. A stage is finished when its last
line says "done", its command is the same, and its inputs and outputs still have the recorded hashes. Anything else
is said aloud and made again; outputs that were changed are moved aside, never deleted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from stapo_repro.driver import processes
from stapo_repro.driver.memory import Peak
from stapo_results import progress, store
from stapo_results.errors import RunFailed
from stapo_results.provenance import code_version, now
from stapo_results.schema import Record

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
        folder: what the stage writes and owns; moved aside when its outputs were changed.
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
        return self.name.split("/")[0]


class StageEvent(Record):
    """A line of stages.jsonl. Hashes are empty until a stage is done; `seconds` and `peak_mib` are of this attempt."""

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


class Display(Protocol):
    """What the engine tells the outside; `display` has one for terminals and one for logs."""

    def begin(self, stage: Stage, number: int, total: int) -> None: ...
    def tick(self, stage: Stage, report: dict | None, seconds: float, peak: int) -> None: ...
    def end(self, stage: Stage, event: StageEvent) -> None: ...
    def skip(self, stage: Stage, number: int, total: int, event: StageEvent) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass
class Outcome:
    """All attempts of a stage together."""

    seconds: float = 0.0
    peak_mib: int = 0
    repeated: bool = False
    notes: list[str] = field(default_factory=list)


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

    def __init__(self, out: Path, display: Display, grace: float = 30.0, patience: float = 5.0):
        self.out, self.display, self.grace, self.patience = out, display, grace, patience
        self.mark = processes.new_mark(out)
        self.ledger = out / "stages.jsonl"
        store.repair(self.ledger)
        self.events = list(store.read(self.ledger, StageEvent)) if self.ledger.exists() else []
        self._hashes: dict[str, str] = {}

    def run(self, stages: Sequence[Stage]) -> dict[str, Outcome]:
        """Run what is not finished, in order.

        Returns:
            Seconds and memory by stage, earlier attempts of this folder included.

        Raises:
            RunFailed: a stage failed; the rest was not started.
            KeyboardInterrupt: passed on, after the child and all it started are gone.
        """
        before = processes.Family(processes.mark_of(self.out))
        if orphans := processes.describe(before.members()):
            self.display.say(f"ending what a killed run left behind: {', '.join(orphans)}")
            processes.end_all(before)
        watchdog = processes.Watchdog(self.mark)
        try:
            repeated = {s.name for n, s in enumerate(stages, 1) if self._one(s, n, len(stages))}
        finally:
            watchdog.release()
        return {s.name: self._outcome(s.name, s.name in repeated) for s in stages}

    def _outcome(self, name: str, repeated: bool) -> Outcome:
        mine = [e for e in self.events if e.stage == name and e.event != "start"]
        return Outcome(
            seconds=sum(e.seconds or 0 for e in mine),
            peak_mib=max((e.peak_mib or 0 for e in mine), default=0),
            repeated=repeated,
            notes=[note for e in mine for note in e.notes],
        )

    def _inputs(self, stage: Stage) -> str:
        return hashlib.sha256("\n".join(f"{n} {self._hashes[n]}" for n in stage.needs).encode()).hexdigest()

    def _one(self, stage: Stage, number: int, total: int) -> bool:
        """True when the stage had to run."""
        last = next((e for e in reversed(self.events) if e.stage == stage.name), None)
        if last is not None and last.event == "done":
            reason = self._stale(stage, last)
            if not reason:
                self._hashes[stage.name] = last.outputs
                self.display.skip(stage, number, total, last)
                return False
            self.display.say(f"{stage.name} is made again: {reason}")
            self._move_aside(stage)
        elif last is not None:
            self.display.say(f"{stage.name} was {'cut off' if last.event == 'start' else last.event}: it goes on")
        self._execute(stage, number, total)
        return True

    def _stale(self, stage: Stage, done: StageEvent) -> str:
        if done.command != list(stage.command):
            return "its command changed"
        if done.inputs != self._inputs(stage):
            return "what it reads changed"
        found = hash_outputs(stage.outputs)
        if found != done.outputs:
            return "its outputs are missing" if found == "missing" else "its outputs were changed after it ended"
        if done.code != code_text():
            self.display.say(f"{stage.name} is kept, though it was made by other code ({done.code[:20]})")
        return ""

    def _move_aside(self, stage: Stage) -> None:
        if not stage.folder.exists():
            return
        aside, n = self.out / "set-aside" / stage.folder.relative_to(self.out), 1
        while (target := aside.with_name(f"{aside.name}.{n}")).exists():
            n += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(stage.folder, target)
        self.display.say(f"  what was there is now {target}")

    def _record(self, event: StageEvent) -> None:
        store.append(self.ledger, [event])
        self.events.append(event)

    def _execute(self, stage: Stage, number: int, total: int) -> None:
        log = self.out / "logs" / f"{stage.name.replace('/', '-')}.log"
        told = self.out / "logs" / f"{stage.name.replace('/', '-')}.progress.json"
        told.unlink(missing_ok=True)
        inputs, code = self._inputs(stage), code_text()

        def event(kind: Literal["start", "done", "failed", "interrupted"], **values: object) -> StageEvent:
            known = {"stage": stage.name, "event": kind, "command": list(stage.command), "code": code, "at": now()}
            return StageEvent.model_validate({**known, "inputs": inputs, **values})

        self._record(event("start"))
        self.display.begin(stage, number, total)
        environment = {**CHILD_ENVIRONMENT, **dict(stage.environment), progress.VARIABLE: str(told.resolve())}
        started, peak = time.monotonic(), Peak()
        child: subprocess.Popen | None = None
        family = processes.Family(self.mark)
        try:
            child = processes.start(stage.command, log, self.mark, environment, Path.cwd())
            while child.poll() is None:
                peak.sample([os.getpid(), *(p.pid for p in family.members())])
                self.display.tick(stage, progress.read(told), time.monotonic() - started, peak.bytes)
                time.sleep(POLL_SECONDS if time.monotonic() - started > POLL_SECONDS else 0.1)
            left = processes.sweep(family, self.patience)
        except BaseException:  # also Ctrl-C and a defect of our own: nothing may be left running
            survivors = processes.end_all(family, child, self.grace)
            notes = [f"survived KILL: {', '.join(survivors)}"] if survivors else []
            seconds = round(time.monotonic() - started, 2)
            ended = event("interrupted", seconds=seconds, peak_mib=peak.bytes >> 20, notes=notes)
            self._record(ended)
            self.display.end(stage, ended)
            raise
        notes = [f"outlived the stage and were ended: {', '.join(left)}"] if left else []
        spent = {"seconds": round(time.monotonic() - started, 2), "peak_mib": peak.bytes >> 20, "notes": notes}
        outputs = hash_outputs(stage.outputs) if child.returncode == 0 else ""
        if child.returncode != 0 or outputs == "missing":
            ended = event("failed", exit_code=child.returncode, **spent)
            self._record(ended)
            self.display.end(stage, ended)
            raise self._failure(stage, child.returncode, log)
        ended = event("done", exit_code=0, outputs=outputs, **spent)
        self._hashes[stage.name] = outputs
        self._record(ended)
        self.display.end(stage, ended)

    def _failure(self, stage: Stage, code: int, log: Path) -> RunFailed:
        if code == 0:
            missing = [str(p) for p in stage.outputs if not p.exists()]
            found, expected = f"it ended with 0, but {', '.join(missing)} is not there", "its outputs"
        else:
            found, expected = f"exit code {code}", "0"
        tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
        self.display.say(f"--- last {len(tail)} lines of {log}")
        for line in tail:
            self.display.say(f"  {line[:400]}")
        return RunFailed(
            f"the stage {stage.name} failed",
            found=found,
            expected=expected,
            next_step=f"read {log}; then run the same command again: finished stages are kept. The stage alone:\n"
            f"            {' '.join(stage.command)}",
        )
