"""Reading a bundle that may be damaged, tampered with or hostile, and adding its runs to a folder.

What the zip declares is looked at first: the members' names, kinds and sizes, the manifest. Then every file is written
to a hidden folder beside the target, to its declared size and no further, and hashed. There the records are read by
their schema, compared with each other and with those of the target. Last, each run that the target lacks is moved there
in one step. So nothing is overwritten, and a kill at any moment leaves whole runs only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from stapo_repro.read import read_steps
from stapo_repro.run.checks import check_disk
from stapo_repro.run.cost import GIB
from stapo_repro.sharing.pack import LINES, MANIFEST, MAX_FILE, Entry, Manifest, cell_ids, is_plain, model_of
from stapo_repro.testbed import counts
from stapo_results import runs, store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, Run, Verdict

MAX_FILES = 50_000
MAX_MANIFEST = 16 << 20  # bytes; and so below
MAX_TOTAL = 256 << 30
MAX_LINE = 64 << 20
MAX_RECORD = 256 << 20

# what zipfile and zlib raise on bytes that are no zip
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
           OverflowError, UnicodeError)  # fmt: skip


def _refused(what: str, found: object, expected: object) -> RecordError:
    again = "get the file again from whoever made it, and compare its sha256 with theirs"
    return RecordError(what, found=found, expected=expected, next_step=again)


def check(path: Path) -> tuple[Manifest, list[str]]:
    """Check a bundle as a whole; its manifest and the ids of its cells. Raises as `unpack`."""
    with tempfile.TemporaryDirectory(prefix="stapo-bundle-") as folder:
        manifest = _extract(path, Path(folder))
        return manifest, cell_ids(Path(folder))


def unpack(path: Path, into: Path) -> tuple[Manifest, list[str]]:
    """Check a bundle as a whole, then add its runs to a folder.

    Returns:
        The manifest and the runs that were added; the others were there with the same content.

    Raises:
        BadInput: no such file, a target that cannot be one, too little disk, another unpack at work.
        RecordError: the bundle is refused, or says something else than what is there; nothing was written.
    """
    into = into.absolute()
    if into.is_symlink() or (into.exists() and not into.is_dir()):
        raise BadInput(f"{into} is no folder", expected="a folder, or nothing", next_step="name another with --into")
    work = into.with_name(f".{into.name}.unpacking")
    with runs.one_writer(work, "--into"):
        staging = work / "files"
        shutil.rmtree(staging, ignore_errors=True)  # of an unpack that was killed: the lock is ours
        try:
            manifest = _extract(path, staging)
            new = [run for run in manifest.runs if _lacks(into, run, manifest)]
            for run in set(manifest.runs) - set(new):
                shutil.rmtree(staging / run)
            if new and into.exists():
                cell_ids(into, staging)  # refuses two records of one cell that differ, by the rule of the tables
            into.mkdir(parents=True, exist_ok=True)
            for run in new:
                os.rename(staging / run, into / run)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            # the lock last: FileLock gives no one a lock whose file has gone, so whoever comes next makes a new one
            (work / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody has come
                work.rmdir()
    return manifest, new


def _extract(path: Path, folder: Path) -> Manifest:
    """Write the bundle's files to a folder of its own and check every byte and record of them."""
    if not path.is_file():
        raise BadInput(f"{path} is no file", expected="a bundle of `stapo-repro pack`", next_step="check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _declared(archive, path.stat().st_size)
            check_disk(folder, manifest.total / GIB)
            for f in manifest.files:
                _write(archive, f, folder / f.path)
    except BadInput:
        raise
    except _BROKEN as e:
        found = f"{type(e).__name__}: {e}"
        raise _refused(f"{path} is damaged: the zip cannot be read", found, "a whole bundle") from None
    for f in manifest.files:
        _check_records(folder / f.path)
    cell_ids(folder)
    return manifest


def _declared(archive: zipfile.ZipFile, size: int) -> Manifest:
    """The manifest, after everything that the zip declares was looked at."""
    members = archive.infolist()
    names = [m.filename for m in members]
    if len(members) > MAX_FILES:
        raise _refused("too many files in the bundle", len(members), f"at most {MAX_FILES}")
    if not members or names[0] != MANIFEST or members[0].file_size > MAX_MANIFEST:
        raise _refused("the bundle has no manifest, or one that is too large", names[:1], f"{MANIFEST} first")
    for m in members:
        _check_member(m, size)
    # also none that a file system without cases would take for one another
    folded = [n.casefold() for n in names]
    if len(set(folded)) < len(names):
        raise _refused("a file stands twice in the bundle", f"{len(names)} names", "each file once")
    if both := {str(folder) for n in folded for folder in PurePosixPath(n).parents} & set(folded):
        raise _refused(f"{min(both)!r} is a file and a folder in the bundle", min(both), "a file or a folder")
    manifest = store.parse(archive.read(MANIFEST), Manifest, MANIFEST)
    listed, there = ([(f.path, f.bytes) for f in manifest.files], [(m.filename, m.file_size) for m in members[1:]])
    if listed != there:
        differing = sorted({name for name, _ in set(listed) ^ set(there)})
        raise _refused("the manifest does not list the files of the bundle",
                       ", ".join(differing[:5]) or "another order", f"{len(listed)} files in its order")  # fmt: skip
    if manifest.total > MAX_TOTAL:
        raise _refused("the bundle is too large", f"{manifest.total} bytes declared", f"at most {MAX_TOTAL}")
    return manifest


def _check_member(m: zipfile.ZipInfo, archive_size: int) -> None:
    """Refuses a member whose name, place, kind or size no bundle has."""
    if not (is_plain(m.filename) and model_of(m.filename)) and m.filename != MANIFEST:
        raise _refused(f"{m.filename!r} is not the plain path of a record's file", m.filename, "RUN/.../FILE, no ..")
    # zipfile itself seeks there, and what the system says of such a place would pass for a fault of the disk
    if not 0 <= m.header_offset < archive_size:
        raise _refused(f"{m.filename!r} begins outside of the file", f"byte {m.header_offset}",
                       f"0 to {archive_size - 1}")  # fmt: skip
    kind = stat.S_IFMT(m.external_attr >> 16)
    if m.is_dir() or kind not in (0, stat.S_IFREG):
        found = "a link" if stat.S_ISLNK(kind) else f"kind {kind:o}"
        raise _refused(f"{m.filename!r} is no plain file", found, "a plain file")
    if m.flag_bits & 0x1 or m.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        raise _refused(f"{m.filename!r} is packed in another way", f"method {m.compress_type}, flags {m.flag_bits:#x}",
                       "deflate, no password")  # fmt: skip
    limit = MAX_FILE if m.filename.split("/")[-1] in LINES else MAX_RECORD
    if m.file_size > limit:
        raise _refused(f"{m.filename!r} is too large", f"{m.file_size} bytes declared", f"at most {limit}")


def _write(archive: zipfile.ZipFile, f: Entry, target: Path) -> None:
    """A file's bytes in pieces; it is refused when its size, its hash or a line's length is another one."""
    found, size, line = hashlib.sha256(), 0, 0
    expected = f"{f.bytes} bytes with sha256 {f.sha256}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with archive.open(f.path) as stream, open(target, "xb") as out:
            while block := stream.read(min(1 << 20, f.bytes - size + 1)):
                size += len(block)
                if size > f.bytes:
                    raise _refused(f"{f.path} is longer than declared", f"more than {f.bytes} bytes", expected)
                end = block.rfind(b"\n")
                line = line + len(block) if end < 0 else len(block) - end - 1
                if line > MAX_LINE and target.name in LINES:
                    raise _refused(f"{f.path}: a line is too long", f"more than {MAX_LINE} bytes", "a record a line")
                found.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
    except BadInput:
        raise
    except _BROKEN as e:
        raise _refused(f"{f.path} is damaged after {size} bytes", f"{type(e).__name__}: {e}", expected) from None
    if (size, found.hexdigest()) != (f.bytes, f.sha256):
        raise _refused(f"{f.path} is not what the manifest says", f"{size} bytes, sha256 {found.hexdigest()}", expected)


def _check_records(path: Path) -> None:
    """Every record of a file; the steps of a training, and verdicts by the cells beside them. Cells: `cell_ids`."""
    if path.name in ("run.json", counts.FILE):
        store.read_json(path, Run if path.name == "run.json" else counts.PlantedCounts)
    elif path.name == "metrics.jsonl":
        read_steps(path)
    elif path.name == "verdicts.jsonl":
        _check_verdicts(path)
    elif path.name in LINES:
        for _ in store.read(path, LINES[path.name]):
            pass


def _check_verdicts(path: Path) -> None:
    """The verdicts of a run are those that the cells beside it say: each sample once, none missing."""
    cells = [store.read_json(p, CellRecord) for p in sorted(path.parent.glob("cells/*.json"))]
    left: dict[tuple[str, str], list[str]] = {
        (c.cell.id, p.problem_id): list(p.verdicts) for c in cells for p in c.problems
    }
    for number, v in enumerate(store.read(path, Verdict), 1):
        letters = left.get((v.cell, v.problem_id), [])
        letter = letters[v.sample_index] if v.sample_index < len(letters) else "nothing"
        if letter not in ("-", "01"[v.correct]):  # "-": the engine failed, whatever the grader said of nothing
            what = f"{path}:{number} contradicts the cell {v.cell}, or stands twice"
            found = f"{v.problem_id} sample {v.sample_index}: {letter or 'there already'} in the cell"
            raise _refused(what, found, "01"[v.correct])
        letters[v.sample_index] = ""  # met
    if missing := [f"{problem} of {cell}" for (cell, problem), letters in left.items() if any(letters)]:
        raise _refused(f"{path}: verdicts are missing", f"{len(missing)} problems, such as {missing[0]}",
                       "a verdict of each sample")  # fmt: skip


def _lacks(into: Path, run: str, manifest: Manifest) -> bool:
    """Whether the target has no such run; refuses one with another content, and a link in its place."""
    target = into / run
    if not os.path.lexists(target):
        return True
    files = {f.path: f.sha256 for f in manifest.files if f.path.split("/")[0] == run}
    differing = [name for name, digest in files.items()
                 if not (into / name).is_file() or store.sha256_file(into / name) != digest]  # fmt: skip
    if target.is_symlink() or differing:
        raise RecordError(
            f"{target} is a symbolic link, or another run of this name; nothing was written",
            found=f"{len(differing)} files differ or are missing: {', '.join(differing[:5])}",
            expected="a run that is not there, or an equal one",
            next_step="unpack into another folder with --into, and compare",
        )
    return False
