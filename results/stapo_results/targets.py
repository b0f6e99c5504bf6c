"""Where a command is told to write: what cannot be written to is refused before any work."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from stapo_results.errors import BadInput

_FULL = (errno.ENOSPC, errno.EDQUOT)  # a full disk has a message of its own (see `console`)


def check_file(path: str | os.PathLike, flag: str) -> None:
    """Raises BadInput where no file can be written at `path`; `flag` is the option that named it."""
    if Path(path).is_dir():
        raise BadInput(
            f"{flag} is a folder", found=path, expected="the name of a file", next_step=f"{flag} {Path(path) / 'NAME'}"
        )
    _probe(Path(path).absolute().parent, path, flag)


def check_folder(path: str | os.PathLike, flag: str) -> None:
    """Raises BadInput where `path` is no folder and none can be made there, or none of its files can be written."""
    if Path(path).exists() and not Path(path).is_dir():
        raise BadInput(f"{flag} is a file", found=path, expected="a folder", next_step=f"give another {flag}")
    _probe(Path(path).absolute(), path, flag)


@contextmanager
def one_writer(folder: Path, flag: str) -> Iterator[None]:
    """Holds the lock of a run's folder, which is made where it does not exist.

    Raises:
        BadInput: another process has it, or nothing can be written there.
    """
    check_folder(folder, flag)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInput(
            f"another command is writing to {folder}", next_step=f"wait until it ends, or give another {flag}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _probe(folder: Path, path: str | os.PathLike, flag: str) -> None:
    # a write is tried, since permissions alone do not tell of read-only file systems
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        if e.errno in _FULL:
            raise
        raise BadInput(
            f"{flag} cannot be written",
            found=f"{path}: {folder} is a file" if folder.is_file() else f"{path}: {e.strerror or e}",
            expected="a place where this user may write",
            next_step=f"give another {flag}",
        ) from None
