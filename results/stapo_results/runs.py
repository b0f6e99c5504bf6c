"""The folder of a run, one protocol for every command that fills one: open, compare, refuse, resume, close.

    with runs.opened(out, new) as folder:        # one writer; a folder of another run is refused by what differs
        if folder.finished:
            ...                                  # nothing is left to do
        with folder.working("step 20"):          # run.json: running, then done, interrupted or failed
            ...

`new` is the record that `provenance.new_run` makes. The record in the folder continues: it keeps its id and
its start, counts the seconds of all attempts together, and lists each resumption with the code that made it.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from stapo_results import store
from stapo_results.errors import BadInput, short_hashes
from stapo_results.provenance import REDACTED, now
from stapo_results.schema import Resumption, Run

RECORD = "run.json"
_SHOWN = 5  # differences and foreign files that an error names


class OpenRun:
    """A run's folder whose lock is held.

    Attributes:
        path: the folder.
        record: the run as it continues; `save` changes it.
        previous: the record that stood in the folder, None in a new one.
    """

    def __init__(self, path: Path, new: Run, previous: Run | None):
        self.path, self.new, self.previous = path, new, previous
        self.record = previous or new

    @property
    def finished(self) -> bool:
        """Whether the folder's record says that the run was done."""
        return self.previous is not None and self.previous.status == "done"

    def save(self, **fields: Any) -> None:
        """Change fields of the record and write it."""
        self.record = self.record.model_copy(update=fields)
        store.write_json(self.path / RECORD, self.record)

    def restore(self) -> None:
        """Put the earlier record back, where a call turned out to have nothing to do."""
        if self.previous is not None:
            self.record = self.previous
            store.write_json(self.path / RECORD, self.record)

    @contextmanager
    def working(self, start: str = "", resume: str = "to resume, repeat the command", **fields: Any) -> Iterator[None]:
        """The work itself: its end is on record whatever ends it, with the seconds of all attempts.

        Args:
            start: where a resumed run continues ("step 20", "12 of 96 samples"); on record.
            resume: what Ctrl-C is answered with.
            fields: of the record, changed in the same write that says "running".

        Raises:
            KeyboardInterrupt: with `resume`, after the record says "interrupted".
        """
        began = time.perf_counter()
        spent = (self.previous.wall_seconds or 0.0) if self.previous else 0.0
        store.sweep(self.path)
        more = [self._resumption(start)] if self.previous else []
        self.save(status="running", resumptions=[*self.record.resumptions, *more], **fields)
        status = "failed"
        try:
            yield
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
            raise KeyboardInterrupt(resume) from None
        finally:
            self.save(status=status, wall_seconds=round(spent + time.perf_counter() - began, 3))

    def _resumption(self, start: str) -> Resumption:
        new, packages = self.new, self.record.packages
        return Resumption(
            at=now(),
            start=start,
            code_commit=new.code_commit,
            code_dirty=new.code_dirty,
            packages={
                name: new.packages.get(name, "")
                for name in packages | new.packages
                if packages.get(name) != new.packages.get(name)
            },
            hardware=new.hardware if new.hardware != self.record.hardware else {},
        )


@contextmanager
def opened(path: str | os.PathLike, new: Run, *, flag: str = "--out", **rules: Any) -> Iterator[OpenRun]:
    """Open the folder of a run, which is made where it does not exist, and hold its lock.

    Args:
        new: what the command line asks for.
        flag: the option that named the folder, for errors.
        rules: of `previous_of`.

    Raises:
        BadInput: the folder cannot be written, another process has it, or it holds another run or something else.
    """
    path = Path(path)
    with one_writer(path, flag):
        yield OpenRun(path, new, previous_of(path, new, flag, **rules))


def previous_of(
    path: Path,
    new: Run,
    flag: str,
    may_differ: Callable[[str], bool] = lambda key: False,
    foreign: Collection[str] = (),
    advice: Callable[[Run, list[str]], str] = lambda previous, differing: "",
    resumes: bool = True,
    older: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
) -> Run | None:
    """The record of a folder that holds the same run; None for a new folder. Leaves no file behind.

    Args:
        may_differ: keys, as `differences` names them, that decide no number.
        foreign: names of what the run makes, which must not be in a folder that has no record yet. Default: all. An
            unfinished run that has made none of it binds nobody: what ended it in its first minutes may be corrected.
        advice: a next step for a folder of another run that is better than another folder; "" where there is none.
        resumes: False for a command that makes an unfinished run anew, whatever that one was asked for.
        older: the folder's configuration with what was so before a record could say it.

    Raises:
        BadInput: it holds another run, or files without a record.
    """
    check_folder(path, flag)
    if not (path / RECORD).exists():
        if found := _made(path, foreign):
            raise BadInput(
                f"{path} is not empty and holds no run",
                found=", ".join(p.name for p in found[:_SHOWN]),
                expected="a new or an empty folder",
                next_step=f"give another {flag}",
            )
        return None
    previous = store.read_json(path / RECORD, Run)
    config = older(previous.config) if previous.kind == new.kind else previous.config
    migrated = previous.model_copy(update={"config": config})
    differing = differences(migrated, new, may_differ)
    if differing and not (resumes and binds(path, foreign)) and previous.kind == new.kind and previous.status != "done":
        return None
    if differing:
        raise BadInput(
            f"{path} holds another run",
            found=short_hashes("; ".join(differing[:_SHOWN])),
            expected="the same values, to resume it",
            next_step=advice(previous, differing) or f"give another {flag}, or the values of that run",
        )
    return previous


def lacks(path: Path, revision: str) -> bool:
    """Whether the record of a folder is older than this of its revisions."""
    return (path / RECORD).exists() and revision not in store.read_json(path / RECORD, Run).revisions


def binds(path: Path, foreign: Collection[str] = ()) -> bool:
    """Whether a folder with a record has made something of these names (default: all), so that it holds one run."""
    return (path / RECORD).exists() and any(p.is_dir() or p.stat().st_size for p in _made(path, foreign))


def _made(path: Path, foreign: Collection[str]) -> list[Path]:
    files = sorted(path.iterdir()) if path.exists() else []
    return [p for p in files if not p.name.startswith(".") and p.name != RECORD and (p.name in foreign or not foreign)]


def differences(previous: Run, new: Run, may_differ: Callable[[str], bool] = lambda key: False) -> list[str]:
    """What another run differs in, each as "KEY: X there, Y now"; keys of nested values are joined by dots.

    Compares kind, configuration, seeds and revisions. The latter two are named "seed KEY" and "revision KEY". Keys with
    the fewest parts come first: they are what a person typed, and the deeper ones follow from them.
    """
    if previous.kind != new.kind:
        return [f"kind: {previous.kind} there, {new.kind} now"]
    before, after = (
        _flat("", r.config)
        | {f"seed {k}": v for k, v in r.seeds.items()}
        | {f"revision {k}": v for k, v in r.revisions.items()}
        for r in (previous, new)
    )
    return [
        f"{key}: {before.get(key)!r} there, {after.get(key)!r} now"
        for key in sorted({*before, *after}, key=lambda key: (key.count("."), key))
        # an older record hides more values than a new one
        if before.get(key) not in (after.get(key), REDACTED) and not may_differ(key)
    ]


def _flat(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {key: value}
    below = (_flat(f"{key}.{name}" if key else name, inner) for name, inner in value.items())
    return {k: v for block in below for k, v in block.items()}  # a missing block is as an empty one


@contextmanager
def one_writer(folder: Path, flag: str = "--out") -> Iterator[None]:
    """Holds the lock of a folder, which is made where it does not exist.

    Raises:
        BadInput: another process has it, or nothing can be written there.
    """
    check_folder(folder, flag)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise BadInput(
            f"another command is writing to {folder}", next_step=f"wait until it ends, or give another {flag}"
        ) from None
    with lock:
        yield


def check_file(path: str | os.PathLike, flag: str) -> None:
    """Raises BadInput where no file can be written at `path`; `flag` is the option that named it."""
    if os.path.isdir(path):
        raise BadInput(
            f"{flag} is a folder", found=path, expected="the name of a file", next_step=f"give another {flag}"
        )
    check_folder(Path(path).absolute().parent, flag)


def nearest(path: str | os.PathLike) -> Path:
    """The absolute path itself, or what exists nearest above it."""
    absolute = Path(path).absolute()
    # Path.exists raises PermissionError below a folder that this user may not read
    return next(p for p in (absolute, *absolute.parents) if os.path.exists(p))


def check_folder(path: str | os.PathLike, flag: str) -> None:
    """Raises BadInput where `path` is no folder and none can be made there, or none of its files can be written."""
    folder = nearest(path)
    try:  # a write, since permissions alone do not tell of read-only file systems
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):  # a full disk has a message of its own (see `terminal`)
            raise
        raise BadInput(
            f"{flag} cannot be written",
            found=f"{path}: {folder} is a file" if folder.is_file() else f"{path}: {e.strerror or e}",
            expected="a place where this user may write",
            next_step=f"give another {flag}",
        ) from None
