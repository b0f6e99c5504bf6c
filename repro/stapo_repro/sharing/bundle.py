"""What a bundle is: a zip of record files with a manifest, and a SHA-256 over all of its bytes in the zip's comment.

A zip, because anybody can look into it with what a system has; deflate, because the standard library reads and writes
it. The hash at the end finds damage anywhere in the file, also between the members. It proves nothing about who made
it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_results.schema import CellRecord, Judgement, Run, Sample, StepMetrics, Verdict

MANIFEST = "manifest.json"
MARK = b"stapo-bundle 1 sha256:"
DIGITS = 64
COMMENT = len(MARK) + DIGITS

LINES: dict[str, type[BaseModel]] = {
    "metrics.jsonl": StepMetrics,
    "samples.jsonl": Sample,
    "verdicts.jsonl": Verdict,
    "judgements.jsonl": Judgement,
}
"""Files of one record a line."""
WHOLE: dict[str, type[BaseModel]] = {"run.json": Run}
"""Files that are one record; those in a folder `cells` are cell records."""

MAX_FILES = 50_000
MAX_MANIFEST = 16 << 20
MAX_DIRECTORY = 64 << 20
MAX_FILE = 16 << 30
MAX_TOTAL = 256 << 30
MAX_LINE = 64 << 20
MAX_RECORD = 256 << 20

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@ -]{0,199}")


class Entry(BaseModel):
    """A file of the bundle: path with "/", size in bytes, hex SHA-256."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    bytes: int = Field(ge=0, le=MAX_FILE)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The first member. `runs`: the folders that were packed; `cells`: ids of the cell records, sorted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    kind: Literal["stapo-bundle"] = "stapo-bundle"
    code_commit: str
    code_dirty: str
    runs: list[str]
    cells: list[str]
    files: list[Entry]

    @property
    def total(self) -> int:
        return sum(f.bytes for f in self.files)


def bad_name(name: str) -> str:
    """Why a path cannot stand in a bundle; "" when it can.

    Allowed are relative paths of plain names, as every file system has them, that end in the name of a record's file.
    """
    if "\\" in name or ":" in name or "\0" in name:
        return "a character that no path of a bundle has"
    if name.startswith("/"):
        return "an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return 'a path with ".."'
    if len(parts) < 2 or not all(_PART.fullmatch(p) and not p.endswith((".", " ")) for p in parts):
        return "no plain path RUN/.../FILE"
    return "" if model_of(name) else "not the name of a record's file"


def model_of(name: str) -> type[BaseModel] | None:
    """The record that a file of this name holds."""
    path = PurePosixPath(name)
    if path.parent.name == "cells":
        return CellRecord if path.suffix == ".json" else None
    return LINES.get(path.name) or WHOLE.get(path.name)


def digest(file: BinaryIO) -> str:
    """Hex SHA-256 over all bytes of an open file but its last 64, which say what it should be."""
    left = file.seek(0, 2) - DIGITS
    file.seek(0)
    found = hashlib.sha256()
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        found.update(block)
        left -= len(block)
    return found.hexdigest()


def is_link(path: Path, below: Path) -> Path | None:
    """The first symbolic link on the way from `below` to `path`, `path` itself included."""
    at = below
    for part in path.relative_to(below).parts:
        at = at / part
        if at.is_symlink():
            return at
    return None
