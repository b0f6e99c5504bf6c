"""Merging a bundle into a folder: nothing is overwritten, and a kill at any moment leaves whole files only.

The checked files are written to a folder beside the target, compared there with the records that the target holds, and
then moved: a folder that the target lacks in one step, single files into existing folders by a link, which never
replaces.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from stapo_repro.ablation import build as ablation
from stapo_repro.records.reading import load_cells
from stapo_repro.sharing import check
from stapo_repro.sharing.bundle import Entry, Manifest, is_link
from stapo_results import store
from stapo_results.errors import BadInput, RecordError


@dataclass(frozen=True)
class Merged:
    """What was done: the manifest, files written, files that were there with the same content."""

    manifest: Manifest
    written: int
    equal: int


def unpack(path: Path, into: Path) -> Merged:
    """Check a bundle as a whole, then merge it.

    Raises:
        BadInput: no such file, a target that cannot be one, too little disk, another unpack at work.
        RecordError: the bundle is refused, or says something else than what is there; nothing was written.
    """
    into = into.absolute()
    if into.is_symlink() or (into.exists() and not into.is_dir()):
        raise BadInput(f"{into} is no folder", expected="a folder, or nothing", next_step="name another with --into")
    with check.opened(path) as (archive, manifest):
        into.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(into.parent / f".{into.name}.unpack.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BadInput(f"another unpack works on {into}", next_step="wait until it ends") from None
        try:
            return _merge(archive, manifest, into)
        finally:
            lock.release()


def _merge(archive: zipfile.ZipFile, manifest: Manifest, into: Path) -> Merged:
    staging = into.parent / f".{into.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)  # of an unpack that was killed: the lock is ours
    new = _new_files(manifest, into)
    _check_room(new, into)
    try:
        for f in new:
            _stage(archive, f, staging / f.path)
        if new and into.exists():
            # two records of one cell that differ are refused here, by the rule that the tables have
            load_cells([into, staging], skip=(ablation.FOLDER,))
            load_cells([p for root in (into, staging) if (p := root / ablation.FOLDER).is_dir()])
        _move(new, staging, into)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Merged(manifest, len(new), len(manifest.files) - len(new))


def _new_files(manifest: Manifest, into: Path) -> list[Entry]:
    """The files that the target lacks; refuses those that it has with another content, and links on the way."""
    new, differing = [], []
    for f in manifest.files:
        target = into / f.path
        if link := is_link(target, into):
            raise RecordError(f"{link} is a symbolic link", found=os.readlink(link), expected="plain files and folders",
                              next_step="name another folder with --into")  # fmt: skip
        blocked = next((p for p in target.relative_to(into).parents if (into / p).is_file()), None)
        if blocked is not None or (target.exists() and not target.is_file()):
            differing.append(f"{f.path} (a file and a folder of one name)")
        elif not target.exists():
            new.append(f)
        elif store.sha256_file(target) != f.sha256:
            differing.append(f.path)
    if differing:
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise RecordError(
            f"{into} holds other files of the same names; nothing was written",
            found=", ".join(differing[:5]) + more,
            expected="files that are not there, or equal ones",
            next_step="unpack into another folder with --into, and compare",
        )
    return new


def _check_room(new: Sequence[Entry], into: Path) -> None:
    need, free = sum(f.bytes for f in new), shutil.disk_usage(into.parent).free
    if need > free:
        raise BadInput(
            "too little disk is free for the bundle",
            found=f"{free / 2**30:.1f} GiB at {into.parent}",
            expected=f"{need / 2**30:.1f} GiB",
            next_step="free some space, or name another --into",
        )


def _stage(archive: zipfile.ZipFile, f: Entry, target: Path) -> None:
    """The file once more from the bundle, hashed again while it is written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as out:
        for block in check.blocks(archive, f):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())


def _move(new: Sequence[Entry], staging: Path, into: Path) -> None:
    for f in new:
        staged = staging / f.path
        if not staged.exists():
            continue  # went with its folder
        unit = _highest_new(into / f.path, into)
        source = staging / unit.relative_to(into)
        if source.is_dir():
            os.rename(source, unit)
        else:
            os.link(source, unit)  # fails where something is: a rename would replace it
            source.unlink()


def _highest_new(target: Path, into: Path) -> Path:
    """The outermost folder on the way to `target` that is not there, `into` itself included; else the file."""
    for path in (into, *reversed(target.relative_to(into).parents[:-1])):
        whole = into / path
        if not whole.exists():
            return whole
    return target
