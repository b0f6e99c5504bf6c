"""Run folders to one bundle: records without a path of this machine, responses compressed, the same bytes each time."""

from __future__ import annotations

import shutil
import stat
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from stapo_repro.sharing.bundle import DIGITS, LINES, MANIFEST, MARK, Entry, Manifest, bad_name, digest
from stapo_repro.sharing.cells import Together
from stapo_repro.sharing.collect import collect, shorten, without_paths
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.provenance import code_version
from stapo_results.schema import CellRecord, Judgement, Sample

RESPONSES = ("samples.jsonl", "verdicts.jsonl", "judgements.jsonl")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold


def pack(runs: Sequence[Path], out: Path, responses: bool = True) -> Manifest:
    """Bundle finished runs.

    Args:
        runs: folders that `stapo-repro run` or `stapo-eval run` wrote, or that an earlier bundle was unpacked to.
        out: the file to write; it appears whole or not at all.
        responses: with samples, verdicts and judgements; else cell records, run records and metrics alone.

    Raises:
        BadInput: two folders of one name, a folder without records, an unfinished run, a file that exists.
        RecordError: a broken record, one that names a path of this machine, or a cell that contradicts itself or
            another one of its id.
    """
    if out.suffix != ".zip":
        raise BadInput("a bundle is a zip", found=out.name, expected="a name that ends in .zip",
                       next_step=f"--out {out.with_suffix('.zip')}")  # fmt: skip
    if out.exists():
        raise BadInput(f"{out} exists", expected="a new file", next_step="name another one with --out")
    names = [r.resolve().name for r in runs]
    if not names or len(set(names)) != len(names):
        raise BadInput("two folders of one name cannot be in one bundle", found=", ".join(names) or "no folder",
                       expected="folders of different names", next_step="rename one, or make two bundles")  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".packing-") as folder:
        tree = Path(folder)
        for run, name in zip(runs, names, strict=True):
            collect(run, tree / name, token_logs=False)  # no reader of a bundle should have to trust a Parquet file
            if responses:
                _responses(run, tree / name)
        manifest = _manifest(tree, names)
        _write(tree, manifest, out)
    return manifest


def _responses(run: Path, target: Path) -> None:
    """Samples, verdicts and judgements of every evaluation that was collected."""
    for record in sorted(target.rglob("run.json")):
        folder = run / record.parent.relative_to(target)
        for name in RESPONSES:
            if (folder / name).exists():
                _copy(folder / name, record.with_name(name), str(run.resolve()))


def _copy(source: Path, target: Path, root: str) -> None:
    """Record by record, each validated; an engine's error text can name paths of this machine."""
    with open(target, "wb") as out:
        for record in store.read(source, LINES[source.name]):
            if isinstance(record, (Sample, Judgement)) and record.error:
                plain = without_paths(shorten(record.error, root))
                record = record.model_copy(update={"error": plain})
            out.write(store.to_line(record).encode() + b"\n")


def _manifest(tree: Path, runs: Sequence[str]) -> Manifest:
    files = []
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        name = path.relative_to(tree).as_posix()
        if why := bad_name(name):
            raise BadInput(f"{name} cannot stand in a bundle", found=why, expected="plain letters, digits, . _ + = @ -",
                           next_step="rename the run's folder")  # fmt: skip
        files.append(Entry(path=name, bytes=path.stat().st_size, sha256=store.sha256_file(path)))
    files.sort(key=lambda f: f.path)
    together = Together()
    for f in files:
        if "/cells/" in f.path:
            together.add(store.read_json(tree / f.path, CellRecord), f.path, (tree / f.path).read_bytes)
    commit, dirty = code_version()
    return Manifest(code_commit=commit, code_dirty=dirty, runs=sorted(runs), cells=together.ids, files=files)


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


def summary(manifest: Manifest, out: Path) -> str:
    """What was packed, in a few lines."""
    return (
        f"{out}: {len(manifest.files)} files of {len(manifest.runs)} runs, {len(manifest.cells)} cells, "
        f"{manifest.total / 2**20:.1f} MiB in {out.stat().st_size / 2**20:.1f} MiB\n  sha256 {store.sha256_file(out)}"
    )
