"""Reading and writing of records: atomic files, append-only JSON Lines, validation with file and line.

The promise: after a kill at any moment a JSONL file holds whole lines plus at most one half-written last line, and the
next reader that is allowed to write reports it, keeps its bytes in a `.damaged` file and cuts it off.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from stapo_results.errors import BadInput, RecordError

M = TypeVar("M", bound=BaseModel)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk that is full, or a quota."""


def to_line(record: BaseModel) -> str:
    """The one text form of a record: JSON in field order, no spaces, non-ASCII kept."""
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` in one step at the end of the block, or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(tmp, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, path)
    except OSError as e:
        if e.errno in FULL and not e.filename:  # a write does not say where
            e.filename = str(path)
        raise
    finally:
        tmp.unlink(missing_ok=True)


def write_atomic(path: str | os.PathLike, data: str | bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never a part."""
    with replacing(path) as f:
        f.write(data.encode() if isinstance(data, str) else data)


def cache_folder() -> Path:
    """Where what is fetched once is kept: `stapo` in $XDG_CACHE_HOME, else in ~/.cache.

    Raises:
        BadInput: this user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stapo"
    except RuntimeError as e:
        raise BadInput(
            "there is no folder for a cache",
            found=e,
            expected="a home, or XDG_CACHE_HOME",
            next_step="XDG_CACHE_HOME=DIR in front of the same command",
        ) from None


def sweep(folder: str | os.PathLike) -> None:
    """Remove what `write_atomic` left below a folder when it was killed. Only for the folder's one writer.

    Folders below it that have a lock of their own are left to their writers.
    """
    root = Path(folder)
    for stale in root.rglob(".*.tmp"):
        between = stale.relative_to(root).parents[:-1]
        if stale.is_file() and not any((root / p / ".lock").exists() for p in between):
            stale.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, value: object) -> None:
    """Indented JSON in one atomic step; a pydantic record is dumped by its schema."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    write_atomic(path, json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


class Journal:
    """A JSONL file that many small appends go to.

    Each append is written at once, so a killed process loses nothing of it; the disk is waited for at most once a
    second and at the end, which is what a power failure may cost. `append` waits every time.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed in __exit__
        self.synced = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self.file.fileno())
        finally:
            self.file.close()

    def append(self, records: Iterable[BaseModel]) -> None:
        data = memoryview("".join(to_line(r) + "\n" for r in records).encode())
        try:
            while data:  # a full disk takes a part first and refuses the next
                data = data[self.file.write(data) :]
        except OSError as e:
            e.filename = str(self.path) if e.errno in FULL else e.filename
            raise
        if time.monotonic() - self.synced >= 1.0:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()


def append(path: str | os.PathLike, records: Iterable[BaseModel]) -> None:
    """Append records as one write, flushed to disk before this returns. Without a record no file is made."""
    if records := list(records):
        with Journal(path) as journal:
            journal.append(records)


def _keep_aside(path: Path, lines: Iterable[bytes], what: str) -> None:
    with open(path.with_name(path.name + ".damaged"), "ab") as aside:
        aside.writelines(lines)
        aside.flush()
        os.fsync(aside.fileno())
    print(f"repaired {path}: {what} taken out and kept in {path.name}.damaged", file=sys.stderr)


def repair(path: str | os.PathLike, model: type[BaseModel] | None = None) -> None:
    """Take damaged lines out of a JSONL file, say so on stderr, keep their bytes in `<name>.damaged`.

    Only for the file's one writer. A record of another schema version is not damaged: reading it says so.

    Args:
        model: the lines that are no such record are damaged too; for records that can be made again. Default: only a
            half-written last line is.
    """
    path = Path(path)
    if not path.exists():
        return
    half, bad = b"", dict[int, bytes]()
    with open(path, "rb+") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith(b"\n"):
                half = line
            elif model is not None:
                try:
                    model.__pydantic_validator__.validate_json(line[:-1])
                except ValidationError as e:
                    bad[number] = line
                    if e.errors()[0]["loc"] == ("schema_version",):
                        bad, model = {}, None
        if half:
            _keep_aside(path, [half + b"\n"], f"a half-written last line ({len(half)} bytes) was")
            f.seek(-len(half), os.SEEK_END)
            f.truncate()
            os.fsync(f.fileno())
    if bad:
        shown = ", ".join(map(str, list(bad)[:10])) + (" ..." if len(bad) > 10 else "")
        _keep_aside(path, bad.values(), f"{len(bad)} lines that are no record ({shown}) were")
        with open(path, "rb") as f, replacing(path) as whole:
            whole.writelines(line for number, line in enumerate(f, 1) if number not in bad)


def read(path: str | os.PathLike, model: type[M], *, live: bool = False) -> Iterator[M]:
    """Validated records of a JSONL file, in order.

    Args:
        live: another process may be writing it: no file has no records, a half-written last line is left out.

    Raises:
        RecordError: with file and line, for no file, a broken line, a foreign schema version or a half-written end.
    """
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises below a folder that this user may not read
        if live:
            return
        raise RecordError(f"{path}: no such file", next_step="check the path")
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith(b"\n"):
                if live:
                    return
                raise RecordError(
                    f"{path}:{number}: the last line is half-written",
                    found=f"{len(line)} bytes without a line end",
                    expected="a whole JSON line",
                    next_step="repeat the command that writes this file: it repairs and resumes",
                )
            yield parse(line[:-1], model, f"{path}:{number}")


def read_json(path: str | os.PathLike, model: type[M]) -> M:
    """One validated record that is a whole file.

    Raises:
        RecordError: with the file: no such file, or not a record.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file", next_step="check the path") from None
    return parse(data, model, str(path))


def parse(data: bytes, model: type[M], where: str) -> M:
    """One validated record that is `data`; `where` names it in an error.

    Raises:
        RecordError: as `read` and `read_json` do.
    """
    try:  # the model's own validator takes bytes in half the time of decoded text and a call of the class
        return model.__pydantic_validator__.validate_json(data)
    except ValidationError as e:
        first, more = e.errors()[0], len(e.errors()) - 1
    field = ".".join(map(str, first["loc"])) or "the record"
    if field == "schema_version":
        raise RecordError(
            f"{where}: record of another schema version",
            found=first.get("input"),
            expected=model.model_fields["schema_version"].default,
            next_step="read it with the version of this suite that wrote it, or make the record again",
        )
    raise RecordError(
        f"{where}: not a valid {model.__name__} record",
        found=f"{field}: {first['msg']}" + (f" (and {more} more)" if more else ""),
        expected=f"the fields of {model.__module__}.{model.__name__}",
        next_step="restore the file from a copy; a cell's record is made again by its stapo-eval run",
    )


def whole_name(kind: str, sha256: str) -> str:
    """Where a folder of records keeps one copy of what runs share, such as whole/tokenizer-0123456789ab.json."""
    return f"whole/{kind}-{sha256[:12]}.json"


def find_whole(folder: Path, kind: str, sha256: str) -> Path:
    """The file `whole_name` in this folder of records or one above it.

    Raises:
        RecordError: there is none, or it has another content.
    """
    name = whole_name(kind, sha256)
    file = next((f for above in (folder, *folder.resolve().parents) if (f := above / name).is_file()), None)
    if file is None or sha256_file(file) != sha256:
        raise RecordError(
            f"{folder}: its {kind} was left out of the record, and is not where it should be",
            found=f"another content in {file}" if file else f"no {name} in a folder above",
            expected=f"a file of SHA-256 {sha256}",
            next_step=f"restore {name} from where the record came from",
        )
    return file


def sha256_files(files: Sequence[Path]) -> str:
    """A single file's own hash; of several one over their names and hashes, in this order."""
    if len(files) == 1:
        return sha256_file(files[0])
    return hashlib.sha256("".join(f"{f.name} {sha256_file(f)}\n" for f in files).encode()).hexdigest()


def sha256_file(path: str | os.PathLike) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
