"""Run folders to one bundle: records without a path of this machine, responses compressed, the same bytes each time.

A bundle is a zip of record files; its first member is a manifest with the size and SHA-256 of each. A zip, because
anybody can look into it with what a system has. The hashes find damage; they prove nothing about who made it.
"""

from __future__ import annotations

import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.collect import collect, shorten, without_paths
from stapo_repro.read import load_cells
from stapo_repro.testbed import counts
from stapo_repro.testbed.plan import FOLDER
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.provenance import code_version
from stapo_results.schema import CellRecord, Judgement, Run, Sample, StepMetrics, Verdict

MANIFEST = "manifest.json"
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
    """The first member: which code packed, and every file in its order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    code_commit: str
    code_dirty: str
    files: list[Entry]

    @property
    def total(self) -> int:
        return sum(f.bytes for f in self.files)

    @property
    def runs(self) -> list[str]:
        """The folders that were packed."""
        return list(dict.fromkeys(f.path.split("/")[0] for f in self.files))


def model_of(name: str) -> type[BaseModel] | None:
    """The record that a file of this name holds, None for a name that no bundle has."""
    path = PurePosixPath(name)
    if path.parent.name == "cells":
        return CellRecord if path.suffix == ".json" else None
    return {"run.json": Run, counts.FILE: counts.PlantedCounts}.get(path.name) or LINES.get(path.name)


def is_plain(path: str) -> bool:
    """Whether a bundle may hold a file of this path: `pack` writes no other one, and `unpack` takes no other one."""
    parts = path.split("/")
    return len(parts) > 1 and all(map(_PLAIN.fullmatch, parts))


def cell_ids(*trees: Path) -> list[str]:
    """The ids of all cell records below the folders, sorted; the testbed's, which share ids with others, apart.

    Raises:
        RecordError: a cell that contradicts itself or another one of its id.
    """
    found = load_cells(trees, skip=(FOLDER,))
    found += load_cells([p for tree in trees if (p := tree / FOLDER).is_dir()])
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
            collect(run, tree / name, token_logs=False)
            if responses:
                _copy_responses(run, tree / name)
        cell_ids(tree)
        files = sorted((p.relative_to(tree).as_posix(), p) for p in tree.rglob("*") if p.is_file())
        if wrong := [name for name, _ in files if not is_plain(name)]:
            raise BadInput("a bundle cannot hold this name", found=wrong[0],
                           expected="letters from A to Z, digits and _.+=@- and blanks in each part, at most 200",
                           next_step="rename the run's folder")  # fmt: skip
        entries = [Entry(path=name, bytes=p.stat().st_size, sha256=store.sha256_file(p)) for name, p in files]
        commit, dirty = code_version()
        manifest = Manifest(code_commit=commit, code_dirty=dirty, files=entries)
        _write(tree, manifest, out)
    return manifest


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
    with store.replacing(out) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_member(MANIFEST, len(text)), text)
        for f in manifest.files:
            with open(tree / f.path, "rb") as source, archive.open(_member(f.path, f.bytes), "w") as target:
                shutil.copyfileobj(source, target, 1 << 20)
