"""Run folders to bundle, and bundles that somebody else has put together."""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

import finished_run
from test_collect import make_run

from stapo_repro.sharing.pack import MANIFEST, Entry, Manifest


def run_folder(root: Path) -> Path:
    """A finished run: one evaluation (toy benchmark, both settings, 24 samples) and one training of a step."""
    built = finished_run.build(root.with_name(f"{root.name}-built"))
    shutil.copytree(built / "run", root / "eval" / "stapo-s0")
    make_run(root / "train" / "stapo-s0")
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def members(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as z:
        return {name: z.read(name) for name in z.namelist()}


def zipped(files: Sequence[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    """A zip of these members, in this order, whatever they are."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files:
            z.writestr(name, data)
    return out.getvalue()


def manifest_of(files: Sequence[tuple[str, bytes]]) -> bytes:
    """A manifest that agrees with the files."""
    entries = [Entry(path=n, bytes=len(d), sha256=hashlib.sha256(d).hexdigest()) for n, d in files]
    return Manifest(code_commit="c", code_dirty="", files=entries).model_dump_json().encode()


def forged(path: Path, files: Sequence[tuple[str, bytes]]) -> Path:
    """A bundle whose hashes all agree, whatever its files say."""
    path.write_bytes(zipped([(MANIFEST, manifest_of(files)), *files]))
    return path


def link(name: str, target: str) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info, target.encode()
