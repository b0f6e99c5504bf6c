"""Run folders to one bundle: records without a path of this machine, responses compressed, the same bytes each time.

A bundle is a zip of record files with a manifest, and a SHA-256 over all of its bytes in the zip's comment. A zip,
because anybody can look into it with what a system has. The hash at the end finds damage anywhere in the file, also
between the members. It proves nothing about who made it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.ablation import build as ablation
from stapo_repro.records.reading import load_cells
from stapo_repro.sharing.collect import collect, shorten, without_paths
from stapo_results import store
from stapo_results.errors import BadInput, RecordError
from stapo_results.provenance import code_version
from stapo_results.schema import CellRecord, Judgement, Run, Sample, StepMetrics, Verdict

MANIFEST = "manifest.json"
MARK = b"stapo-bundle 1 sha256:"
DIGITS = 64  # of the hash that follows the mark
RESPONSES = ("samples.jsonl", "verdicts.jsonl", "judgements.jsonl")
LINES: dict[str, type[BaseModel]] = {
    "metrics.jsonl": StepMetrics,
    "samples.jsonl": Sample,
    "verdicts.jsonl": Verdict,
    "judgements.jsonl": Judgement,
}
"""Files of one record a line."""
MAX_FILE = 16 << 30  # bytes
_PLAIN = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.+=@ -]{0,198}[A-Za-z0-9_+=@-])?")  # a part of a path
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold


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


def model_of(name: str) -> type[BaseModel] | None:
    """The record that a file of this name holds, None for a name that no bundle has."""
    path = PurePosixPath(name)
    if path.parent.name == "cells":
        return CellRecord if path.suffix == ".json" else None
    return Run if path.name == "run.json" else LINES.get(path.name)


def plain_parts(path: str) -> int:
    """How many parts of a path with "/", from its first on, have names that every system takes as they are."""
    parts = path.split("/")
    return next((i for i, part in enumerate(parts) if not _PLAIN.fullmatch(part)), len(parts))


def is_plain(path: str) -> bool:
    """Whether a bundle may hold a file of this path: `pack` writes no other one, and `unpack` takes no other one."""
    parts = path.split("/")
    return len(parts) > 1 and plain_parts(path) == len(parts)


def digest(file: BinaryIO) -> str:
    """Hex SHA-256 over all bytes of an open file but its last 64, which say what it should be."""
    left = file.seek(0, 2) - DIGITS
    file.seek(0)
    found = hashlib.sha256()
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        found.update(block)
        left -= len(block)
    return found.hexdigest()


def renamed(error: RecordError, names: Mapping[str, str]) -> RecordError:
    """The same error with the beginnings of files' names in a temporary folder replaced."""
    what, found = error.what, str(error.found)
    for old, new in names.items():
        what, found = what.replace(old, new), found.replace(old, new)
    return RecordError(what, found=found, expected=error.expected, next_step=error.next_step)


def cell_ids(*trees: Path) -> list[str]:
    """The ids of all cell records below the folders, sorted; the ablation's, which share ids with others, apart.

    Raises:
        RecordError: a cell that contradicts itself or another one of its id.
    """
    found = load_cells(trees, skip=(ablation.FOLDER,))
    found += load_cells([p for tree in trees if (p := tree / ablation.FOLDER).is_dir()])
    return sorted({c.record.cell.id for c in found})


def pack(runs: Sequence[Path], out: Path, responses: bool = True) -> Manifest:
    """Bundle finished runs.

    Args:
        runs: folders that `stapo-repro run` or `stapo-eval run` wrote, or that an earlier bundle was unpacked to.
        out: the file to write; it appears whole or not at all.
        responses: with samples, verdicts and judgements; else cell records, run records and metrics alone.

    Raises:
        BadInput: two folders of one name, a name that `unpack` refuses, a folder without records, an unfinished run, a
            file that exists.
        RecordError: a broken record, one that names a path of this machine, or a cell that contradicts itself or
            another one of its id.
    """
    if out.suffix != ".zip" or out.exists():
        raise BadInput("a bundle is a new .zip file", found=out, next_step="name another one with --out")
    names = [r.resolve().name for r in runs]
    if not names or len(set(names)) != len(names):
        raise BadInput("two folders of one name cannot be in one bundle", found=", ".join(names) or "no folder",
                       expected="folders of different names", next_step="rename one, or make two bundles")  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".packing-") as folder:
        tree = Path(folder)
        for run, name in zip(runs, names, strict=True):
            # no reader of a bundle should have to trust a Parquet file
            written = collect(run, tree / name, token_logs=False)
            _check_names(run, [p.relative_to(tree / name).as_posix() for p in written])
            if responses:
                _copy_responses(run, tree / name)
        found = (p for p in tree.rglob("*") if p.is_file())
        files = [
            Entry(path=p.relative_to(tree).as_posix(), bytes=p.stat().st_size, sha256=store.sha256_file(p))
            for p in found
        ]
        files.sort(key=lambda f: f.path)
        commit, dirty = code_version()
        try:
            cells = cell_ids(tree)
        except RecordError as e:  # the folder is gone when this is read
            raise renamed(e, {f"{tree / name}/": f"{run}/" for run, name in zip(runs, names, strict=True)}) from None
        manifest = Manifest(code_commit=commit, code_dirty=dirty, runs=sorted(names), cells=cells, files=files)
        _write(tree, manifest, out)
    return manifest


def _check_names(run: Path, files: Sequence[str]) -> None:
    """Raises: BadInput for a run's folder, or one below it, with a name that no bundle has."""
    for path in (f"{run.resolve().name}/{f}" for f in files):
        if not is_plain(path):
            parts = path.split("/")
            below = parts[1 : plain_parts(path) + 1]
            raise BadInput(
                "a bundle cannot hold this name",
                found=run.joinpath(*below),
                expected="letters from A to Z, digits and _.+=@- and blanks, the first a letter, a digit or _, "
                "the last no dot and no blank; at most 200 of them",
                next_step="rename the run's folder",
            )


def _copy_responses(run: Path, target: Path) -> None:
    """Samples, verdicts and judgements of every evaluation that was collected, each record validated."""
    root = str(run.resolve())
    for record_file in sorted(target.rglob("run.json")):
        for name in RESPONSES:
            source = run / record_file.parent.relative_to(target) / name
            if not source.exists():
                continue
            with open(record_file.with_name(name), "wb") as out:
                for record in store.read(source, LINES[name]):
                    if isinstance(record, (Sample, Judgement)) and record.error:  # an engine's text can name paths
                        record = record.model_copy(update={"error": without_paths(shorten(record.error, root))})
                    out.write(store.to_line(record).encode() + b"\n")


def _member(name: str, size: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.create_system = 3  # Unix, on every system: the same bytes
    info.file_size = size
    return info


def _write(tree: Path, manifest: Manifest, out: Path) -> None:
    text = (manifest.model_dump_json(indent=1) + "\n").encode()
    with store.replacing(out) as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.comment = MARK + b"0" * DIGITS
            with archive.open(_member(MANIFEST, len(text)), "w") as target:
                target.write(text)
            for f in manifest.files:
                with open(tree / f.path, "rb") as source, archive.open(_member(f.path, f.bytes), "w") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        file.flush()
        with open(file.name, "rb") as written:
            found = digest(written)
        file.seek(-DIGITS, 2)
        file.write(found.encode())
