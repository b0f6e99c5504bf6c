"""What only a training's folder has: metrics, alarms, checkpoints; what a resumed run may believe of them.

run.json                      schema.Run (`stapo_results.runs`)
metrics.jsonl, timings.jsonl  schema.StepMetrics: what the run decided, what the machine decided
alarms.jsonl                  alarms.Alarm: the step at which each alarm began
STATUS.md                     for people; see `status`
checkpoints/global_step_N/    veRL's checkpoint; complete when COMPLETE.json is in it
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stapo_results import store, terminal
from stapo_results.errors import RunFailed, message_of
from stapo_results.runs import nearest
from stapo_results.schema import StepMetrics, last_attempts
from stapo_training.folder.alarms import Alarm

COMPLETE = "COMPLETE.json"


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A whole checkpoint on disk: its step, its size in bytes, its folder."""

    step: int
    bytes: int
    path: Path


class TrainingFolder:
    """Reads and writes one training's folder.

    Args:
        path: the folder; made with its first file. Reading leaves it as it is, a half-written last line too: another
            process may be writing it.
        deterministic: a step that is made again must give the same metrics; otherwise it counts as a new attempt.

    Attributes:
        at: the step at which this process stands; None where it does not train.
    """

    at: int | None = None

    def __init__(self, path: Path, deterministic: bool = True):
        self.path, self.deterministic = path, deterministic
        self.metrics_file, self.timings_file = path / "metrics.jsonl", path / "timings.jsonl"
        self.alarms_file, self.status_file = path / "alarms.jsonl", path / "STATUS.md"
        self.checkpoints = path / "checkpoints"
        self._lines = list(store.read(self.metrics_file, StepMetrics, live=True))
        self.alarms = list(store.read(self.alarms_file, Alarm, live=True))

    @property
    def steps(self) -> list[StepMetrics]:
        """The steps on disk in order, each in its last attempt, as far as this process has come."""
        return [m for m in last_attempts(self._lines) if self.at is None or m.step <= self.at]

    @property
    def begun(self) -> bool:
        """Whether a step was trained: the validation before the first binds no command."""
        return any(s.step for s in self.steps) or bool(self.whole_checkpoints())

    def times(self) -> dict[int, dict[str, float]]:
        """A step's timings on disk, of its last attempt."""
        return {m.step: m.values for m in store.read(self.timings_file, StepMetrics, live=True)}

    def log_alarms(self, alarms: list[Alarm]) -> None:
        """Append alarms; one that an interrupted run had written for the same step is not written twice."""
        known = {(a.step, a.kind) for a in self.alarms}
        new = [a for a in alarms if (a.step, a.kind) not in known]
        store.append(self.alarms_file, new)
        self.alarms += new

    def log_step(self, step: int, values: dict[str, float], times: dict[str, float]) -> None:
        """Append a step. One that an interrupted run had already logged is compared, not written twice; numbers that
        an older version did not log are no difference.

        Raises:
            RunFailed: in a deterministic run, when the step made again differs.
        """
        record, self.at = StepMetrics(step=step, values=values), step
        before = next((m for m in reversed(self._lines) if m.step == step), None)
        differing = [k for k in sorted(before.values) if values.get(k) != before.values[k]] if before else []
        new = before is None
        if before is not None and (differing or before not in last_attempts(self._lines)):
            if self.deterministic:
                raise RunFailed(
                    f"step {step} was made again after an interruption and came out differently",
                    found={k: values.get(k) for k in differing[:3]},
                    expected={k: before.values[k] for k in differing[:3]},
                    next_step="the machine, the thread count or the code changed: start the run in a new folder",
                )
            record, new = record.model_copy(update={"attempt": before.attempt + 1}), True
        if new:
            store.append(self.metrics_file, [record])
            self._lines.append(record)
        if times:
            store.append(self.timings_file, [StepMetrics(step=step, attempt=record.attempt, values=times)])

    def report(self, step: int, total: int, values: dict[str, float], seconds: float) -> None:
        """One line for the log and the driver's progress display."""
        keys = [k for k in ("reward", "token_entropy_mean", "silenced_share", "accuracy") if k in values]
        shown = {k.removeprefix("token_").removesuffix("_mean"): values[k] for k in keys}
        terminal.report_progress("train", step, total, **shown)
        text = "  ".join(f"{k} {v:.2%}" if k.endswith("share") else f"{k} {v:.3f}" for k, v in shown.items())
        print(f"step {step}/{total}  {text}  {seconds:.1f} s", flush=True)

    def complete_checkpoint(self, step: int) -> None:
        """Mark the checkpoint of `step` as whole: from now on a resumed run may start from it.

        Its files are flushed to the disk before, so that the mark never outlives them in a power cut.

        Raises:
            RunFailed: when a rank's file is not there: the ranks write to a folder that they do not share.
        """
        folder = self.checkpoints / f"global_step_{step}"
        _check_ranks(folder)
        sizes = {}
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != COMPLETE):
            with open(file, "rb") as f:
                os.fsync(f.fileno())
            sizes[str(file.relative_to(folder))] = file.stat().st_size
        store.write_atomic(folder / COMPLETE, json.dumps({"step": step, "bytes": sizes}, indent=1) + "\n")

    def whole_checkpoints(self, *, warn: bool = False) -> list[Checkpoint]:
        """The complete checkpoints whose files still have their sizes, oldest first; `warn` names the others."""
        complete = []
        for folder in step_folders(self.path):
            with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
                step, marked = read_mark(folder)
                sizes = {n: (folder / n).stat().st_size for n in marked}
                if (step_of(folder), sizes) == (step, marked):
                    complete.append(Checkpoint(step, sum(marked.values()), folder))
                    continue
            if warn and (folder / COMPLETE).exists():  # a live run deletes its mark first
                print(f"{folder} is damaged (a file changed its size or is gone), or of another step: it is not used")
        return sorted(complete)

    def last_checkpoint(self) -> Path | None:
        """The newest whole checkpoint, or None."""
        complete = self.whole_checkpoints(warn=True)
        return complete[-1].path if complete else None

    def best_checkpoint(self) -> Checkpoint | None:
        """The whole checkpoint whose step was validated with the highest `accuracy`, of equal ones the newest."""
        accuracy = {s.step: s.values["accuracy"] for s in self.steps if "accuracy" in s.values}
        judged = [c for c in self.whole_checkpoints() if c.step in accuracy]
        return max(judged, key=lambda c: (accuracy[c.step], c.step), default=None)

    def keep_last(self, count: int | None, *, every: int = 1, best: bool = False) -> None:
        """Delete all but the newest `count` whole checkpoints (None: all) of those at each `every` steps, the newest of
        all, and the best one. What stands in between was saved by time and only until the next one. The mark goes
        first: a cut leaves an incomplete one.

        Called after a new checkpoint is complete; veRL deletes before it saves, and would leave none on a full disk.
        """
        kept = self.best_checkpoint() if best else None
        complete = self.whole_checkpoints()
        planned = [c for c in complete if c.step % every == 0]
        stay = {c.step for c in (planned[-count:] if count else planned) + complete[-1:]}
        for old in complete:
            if old.step not in stay and old != kept:
                (old.path / COMPLETE).unlink()
                shutil.rmtree(old.path)

    def take_over(self, anew: bool = False) -> None:
        """Take out what an interrupted run left half done: lines and checkpoints. Only for the folder's one writer.

        anew: of a run that was corrected before its first step, take out its validation, too.
        """
        for file in (self.metrics_file, self.timings_file, self.alarms_file):
            if anew:
                file.unlink(missing_ok=True)
            else:
                store.repair(file)
        if anew:
            self._lines, self.alarms = [], []
        self.discard_incomplete_checkpoints()

    def discard_incomplete_checkpoints(self, *, others_may_write: bool = False) -> None:
        """Delete what an interrupted save left behind, so that veRL cannot take it for a checkpoint.

        others_may_write: ranks may still be writing; what they put back is deleted when the run is started again.
        """
        for folder in step_folders(self.path):
            if not (folder / COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=others_may_write)
        (self.checkpoints / "latest_checkpointed_iteration.txt").unlink(missing_ok=True)

    @property
    def disk_free(self) -> int:
        """Bytes, where checkpoints go: they may be a link to another disk."""
        return shutil.disk_usage(nearest(self.checkpoints)).free

    def save_failed(self, step: int, error: BaseException) -> RunFailed:
        """The error to raise when the checkpoint of `step` could not be written; what was written of it is deleted."""
        free, complete = self.disk_free, self.whole_checkpoints()
        written = (f.stat().st_size for f in (self.checkpoints / f"global_step_{step}").rglob("*") if f.is_file())
        needed = complete[-1].bytes if complete else sum(written)
        self.discard_incomplete_checkpoints(others_may_write=True)
        # torch's writer reports a full disk as a RuntimeError without a number
        full = getattr(_cause(error), "errno", None) in store.FULL or free < needed
        last = complete[-1].path.name if complete else "the start; there is no earlier checkpoint"
        again = f"run the same command: it resumes from {last}"
        return RunFailed(
            f"the checkpoint of step {step} could not be written",
            found=f"{message_of(error)}; {free / 2**30:.2f} GiB of disk were free",
            expected="room for the checkpoint (STATUS.md names the size of the last one)" if full else None,
            next_step=f"free some space, then {again}" if full else f"read the error above, then {again}",
        )


def step_folders(run: Path) -> list[Path]:
    """The folders of a run's checkpoints, whole or not: global_step_5.bak is a copy that somebody keeps."""
    return [f for f in run.glob("checkpoints/global_step_*") if step_of(f) >= 0 and f.is_dir()]


def step_of(folder: Path) -> int:
    """The N of global_step_N, which is veRL's name; -1 of another one."""
    number = folder.name.removeprefix("global_step_")
    return int(number) if number.isdecimal() and folder.name == f"global_step_{int(number)}" else -1


def read_mark(folder: Path) -> tuple[int, dict[str, int]]:
    """Step and sizes of files that a checkpoint was marked with. Raises: OSError without a mark; ValueError, KeyError
    or TypeError for a damaged one."""
    mark = json.loads((folder / COMPLETE).read_text())
    return int(mark["step"]), dict(mark["bytes"])


def _check_ranks(folder: Path) -> None:
    """Every rank's part of a sharded file has to be there."""
    ranks: dict[tuple[str, int], set[int]] = {}
    for file in folder.rglob("*_world_size_*_rank_*.pt"):
        name, world, rank = re.fullmatch(r"(.+)_world_size_(\d+)_rank_(\d+)\.pt", file.name).groups()  # type: ignore[union-attr]
        ranks.setdefault((name, int(world)), set()).add(int(rank))
    for (name, world), present in sorted(ranks.items()):
        if present != set(range(world)):
            raise RunFailed(
                f"the checkpoint in {folder} lacks parts of {name}",
                found=f"{len(present)} of its ranks' files",
                expected=f"{world}, one a rank",
                next_step="put run.out on a file system that all nodes share (docs/cluster.md)",
            )


def _cause(error: BaseException) -> BaseException:
    """What an error that Ray carried here was raised for; any other error itself."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
