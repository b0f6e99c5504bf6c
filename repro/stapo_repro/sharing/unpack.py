"""Reading a bundle that may be damaged, tampered with or hostile, and merging it into a folder.

What the zip declares is looked at first: its end, the members' names, kinds and sizes, the manifest. Then every file
is written to a hidden folder beside the target, to its declared size and no further, and hashed. There the records
are read by their schema, compared with each other and with those of the target. Last, files are moved: a folder that
the target lacks in one step, single files into existing folders by a link, which never replaces. So nothing is
overwritten, and a kill at any moment leaves whole files only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from stapo_repro.driver.readiness import check_disk
from stapo_repro.planner.estimates import GIB
from stapo_repro.records.steps import read_steps
from stapo_repro.sharing.pack import (
    DIGITS,
    LINES,
    MANIFEST,
    MARK,
    MAX_FILE,
    Entry,
    Manifest,
    cell_ids,
    digest,
    is_plain,
    model_of,
    renamed,
)
from stapo_results import runs, store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, Run, Verdict

MAX_FILES = 50_000
MAX_DIRECTORY = 64 << 20  # bytes; and so below
MAX_MANIFEST = 16 << 20
MAX_TOTAL = 256 << 30
MAX_LINE = 64 << 20
MAX_RECORD = 256 << 20

# what zipfile and zlib raise on bytes that are no zip
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
           OverflowError, UnicodeError)  # fmt: skip
_END = struct.Struct("<4s4H2LH")  # the end record: signature, disks, entries, directory's size and offset, comment


@dataclass(frozen=True)
class Merged:
    """What was done: the manifest, files written, files that were there with the same content."""

    manifest: Manifest
    written: int
    equal: int


_AGAIN = "get the file again from whoever made it, and compare its sha256 with theirs"


def _refused(what: str, found: object, expected: object) -> RecordError:
    return RecordError(what, found=found, expected=expected, next_step=_AGAIN)


def check(path: Path) -> Manifest:
    """Check a bundle as a whole; raises as `unpack`."""
    with tempfile.TemporaryDirectory(prefix="stapo-bundle-") as folder:
        return _extract(path, Path(folder))


def unpack(path: Path, into: Path) -> Merged:
    """Check a bundle as a whole, then merge it.

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
            new = _new_files(manifest, into)
            if new and into.exists():
                cell_ids(into, staging)  # refuses two records of one cell that differ, by the rule of the tables
            _move(new, staging, into)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            # the lock last: FileLock gives no one a lock whose file has gone, so whoever comes next makes a new one
            (work / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody has come
                work.rmdir()
    return Merged(manifest, len(new), len(manifest.files) - len(new))


def _extract(path: Path, folder: Path) -> Manifest:
    """Write the bundle's files to a folder of its own and check every byte and record of them."""
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except (FileNotFoundError, IsADirectoryError):
        raise BadInput(f"{path} is no file", expected="a bundle of `stapo-repro pack`",
                       next_step="check the path") from None  # fmt: skip
    with file:
        said, found = _end(path, file), digest(file)
        try:
            with zipfile.ZipFile(file) as archive:
                manifest = _declared(archive)
                check_disk(folder, manifest.total / GIB, manifest.total / GIB)
                for f in manifest.files:
                    _write(archive, f, folder / f.path)
        except BadInput:
            raise
        except _BROKEN as e:
            raise _refused(f"{path} is damaged: the zip cannot be read", f"{type(e).__name__}: {e}",
                           f"a whole bundle (sha256 over it {said}, found {found})") from None  # fmt: skip
        if said != found:
            raise _refused(f"{path} was changed between the files that it holds", f"sha256 {found}", f"sha256 {said}")
    try:
        _check_records(folder, manifest)
    except RecordError as e:  # the folder is gone when this is read: the bundle's own names remain
        e = renamed(e, {f"{folder}/": ""})
        raise _refused(e.what, e.found, e.expected) from None
    return manifest


def _end(path: Path, file: BinaryIO) -> str:
    """The hash that the bundle says of itself; refuses what does not end as a bundle ends."""
    comment = len(MARK) + DIGITS
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size - comment))
    tail = file.read()
    match = re.fullmatch(rb".{%d}%s([0-9a-f]{%d})" % (_END.size, re.escape(MARK), DIGITS), tail, re.DOTALL)
    signature, *_, directory, _, length = _END.unpack(tail[: _END.size]) if match else (b"", 0, 0, 0)
    if match is None or (signature, length) != (b"PK\x05\x06", comment):
        raise _refused(f"{path} does not end as a bundle ends: cut off, or none", f"{size} bytes",
                       "a file of `stapo-repro pack`")  # fmt: skip
    if directory > MAX_DIRECTORY:
        raise _refused(f"{path}: the list of files is too long", f"{directory} bytes", f"at most {MAX_DIRECTORY}")
    return match[1].decode()


def _declared(archive: zipfile.ZipFile) -> Manifest:
    """The manifest, after everything that the zip declares was looked at."""
    members = archive.infolist()
    names = [m.filename for m in members]
    if len(members) > MAX_FILES:
        raise _refused("too many files in the bundle", len(members), f"at most {MAX_FILES}")
    if not members or names[0] != MANIFEST or members[0].file_size > MAX_MANIFEST:
        raise _refused(
            "the bundle has no manifest, or one that is too large", names[:1], f"{MANIFEST} as its first file"
        )
    for m in members:
        _check_member(m)
    # also none that a file system without cases would take for one another
    if len({n.casefold() for n in names}) < len(names):
        raise _refused("a file stands twice in the bundle", f"{len(names)} names", "each file once")
    if parent := _file_and_folder(names):
        raise _refused(f"{parent!r} is a file and a folder in the bundle", parent, "a file or a folder")
    manifest = store.parse(archive.read(MANIFEST), Manifest, MANIFEST)
    listed, there = ([(f.path, f.bytes) for f in manifest.files], [(m.filename, m.file_size) for m in members[1:]])
    if listed != there:
        differing = sorted({name for name, _ in set(listed) ^ set(there)})
        raise _refused("the manifest does not list the files of the bundle",
                       ", ".join(differing[:5]) or "another order", f"{len(listed)} files in its order")  # fmt: skip
    if manifest.total > MAX_TOTAL:
        raise _refused("the bundle is too large", f"{manifest.total} bytes declared", f"at most {MAX_TOTAL}")
    return manifest


def _file_and_folder(names: Sequence[str]) -> str:
    """The first file that is also a folder on the way to another one, whatever the case of its letters; "" for none."""
    folders = {str(folder) for n in names for folder in PurePosixPath(n.casefold()).parents}
    return next((n for n in names if n.casefold() in folders), "")


def _check_member(m: zipfile.ZipInfo) -> None:
    """Refuses a member whose name, kind or size no bundle has."""
    where = f"{m.filename!r} (offset {m.header_offset})"
    parts = m.filename.split("/")
    if not (is_plain(m.filename) and model_of(m.filename)) and m.filename != MANIFEST:
        raise _refused(f"{where} is not the plain path of a record's file", m.filename, "RUN/.../FILE, no ..")
    kind = stat.S_IFMT(m.external_attr >> 16)
    if m.is_dir() or kind not in (0, stat.S_IFREG):
        raise _refused(
            f"{where} is no plain file", "a link" if stat.S_ISLNK(kind) else f"kind {kind:o}", "a plain file"
        )
    if m.flag_bits & 0x1 or m.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        raise _refused(f"{where} is packed in another way", f"method {m.compress_type}, flags {m.flag_bits:#x}",
                       "deflate, no password")  # fmt: skip
    limit = MAX_FILE if parts[-1] in LINES else MAX_RECORD
    if m.file_size > limit:
        raise _refused(f"{where} is too large", f"{m.file_size} bytes declared", f"at most {limit}")


def _write(archive: zipfile.ZipFile, f: Entry, target: Path) -> None:
    """A file's bytes in pieces; it is refused when its size, its hash or a line's length is another one."""
    found, size, line = hashlib.sha256(), 0, 0
    where = f"{f.path} (offset {archive.getinfo(f.path).header_offset})"
    expected = f"{f.bytes} bytes with sha256 {f.sha256}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with archive.open(f.path) as stream, open(target, "xb") as out:
            while block := stream.read(min(1 << 20, f.bytes - size + 1)):
                size += len(block)
                if size > f.bytes:
                    raise _refused(f"{where} is longer than declared", f"more than {f.bytes} bytes", expected)
                end = block.rfind(b"\n")
                line = line + len(block) if end < 0 else len(block) - end - 1
                if line > MAX_LINE and target.name in LINES:
                    raise _refused(f"{where}: a line is too long", f"more than {MAX_LINE} bytes", "a record a line")
                found.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
    except BadInput:
        raise
    except _BROKEN as e:
        raise _refused(f"{where} is damaged after {size} bytes", f"{type(e).__name__}: {e}", expected) from None
    if (size, found.hexdigest()) != (f.bytes, f.sha256):
        raise _refused(f"{where} is not what the manifest says", f"{size} bytes, sha256 {found.hexdigest()}", expected)


def _check_records(folder: Path, manifest: Manifest) -> None:
    """Every record of every file, what the records say of each other, and the manifest's list of cells."""
    ids = cell_ids(folder)
    if ids != manifest.cells:
        differing = sorted(set(ids) ^ set(manifest.cells))
        raise _refused(
            "the manifest lists other cells than the bundle holds", ", ".join(differing[:5]), "the same ones"
        )
    for f in manifest.files:
        path = folder / f.path
        if path.name == "run.json":
            store.read_json(path, Run)
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
        letters, sample = left.get((v.cell, v.problem_id), []), f"{v.problem_id} sample {v.sample_index}"
        letter = letters[v.sample_index] if v.sample_index < len(letters) else "not there"
        if letter not in ("-", "01"[v.correct]):  # "-": the engine failed, whatever the grader said of nothing
            what = "stands twice" if not letter else f"and the record of the cell {v.cell} contradict each other"
            raise _refused(f"{path}:{number} {what}", f"{sample}: {letter or 'again'} in the cell", "01"[v.correct])
        letters[v.sample_index] = ""  # met
    missing = [f"{problem} of {cell}" for (cell, problem), letters in left.items() if any(letters)]
    if missing:
        raise _refused(f"{path}: verdicts are missing", f"{len(missing)} problems, such as {missing[0]}",
                       "a verdict of each sample")  # fmt: skip


def _way(into: Path, f: Entry) -> list[Path]:
    """The target's folders on the way to a file, outermost first, and the file itself."""
    return [into / p for p in (*reversed(Path(f.path).parents), Path(f.path))]


def _new_files(manifest: Manifest, into: Path) -> list[Entry]:
    """The files that the target lacks; refuses those that it has with another content, and links on the way."""
    new, differing = [], []
    for f in manifest.files:
        *folders, target = way = _way(into, f)
        if link := next((p for p in way if p.is_symlink()), None):
            raise RecordError(f"{link} is a symbolic link", found=os.readlink(link), expected="plain files and folders",
                              next_step="name another folder with --into")  # fmt: skip
        if any(p.is_file() for p in folders) or target.is_dir():
            differing.append(f"{f.path} (a file and a folder of one name)")
        elif not target.exists():
            new.append(f)
        elif store.sha256_file(target) != f.sha256:
            differing.append(f.path)
    if differing:
        raise RecordError(
            f"{into} holds other files of the same names; nothing was written",
            found=f"{len(differing)}: {', '.join(differing[:5])}",
            expected="files that are not there, or equal ones",
            next_step="unpack into another folder with --into, and compare",
        )
    return new


def _move(new: Sequence[Entry], staging: Path, into: Path) -> None:
    """Each file with the outermost folder on its way that the target lacks, the target itself included."""
    for f in new:
        if not (staging / f.path).exists():
            continue  # went with its folder
        target = next(p for p in _way(into, f) if not p.exists())
        source = staging / target.relative_to(into)
        if source.is_dir():
            os.rename(source, target)
        else:
            os.link(source, target)  # fails where something is: a rename would replace it
            source.unlink()
