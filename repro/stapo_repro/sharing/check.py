"""Reading a bundle that may be damaged, tampered with or hostile.

Everything is checked before anything is believed, in the order in which it becomes safe to look: the size of the zip's
directory, the members' names and kinds, the declared sizes, the manifest, then every file as a stream that ends at its
declared size: hash, and each record by its schema. Last, the records against each other (see `cells`).
"""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pydantic import BaseModel

from stapo_repro.records.steps import last_attempts
from stapo_repro.sharing import bundle
from stapo_repro.sharing.bundle import MANIFEST, Entry, Manifest
from stapo_repro.sharing.cells import AGAIN, Together, check_verdicts
from stapo_results import store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import CellRecord, StepMetrics, Verdict

# what zipfile and zlib raise on bytes that are no zip
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
           OverflowError, UnicodeError)  # fmt: skip
_END = struct.Struct("<4s4H2LH")  # the end record: signature, disks, entries, directory's size and offset, comment


def _refused(what: str, *, found: object, expected: object) -> RecordError:
    return RecordError(what, found=found, expected=expected, next_step=AGAIN)


@contextmanager
def opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """A bundle whose every byte was checked, for as long as the block lasts.

    Raises:
        BadInput: no such file. RecordError: a bundle that is refused, naming the file in it and the place.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except (FileNotFoundError, IsADirectoryError):
        raise BadInput(f"{path} is no file", expected="a bundle of `stapo-repro pack`",
                       next_step="check the path") from None  # fmt: skip
    with file:
        said, found = _end(path, file), bundle.digest(file)
        try:
            archive = zipfile.ZipFile(file)
            manifest = _manifest(archive)
            _files(archive, manifest)
        except RecordError:
            raise
        except _BROKEN as e:
            raise _refused(f"{path} is damaged: the zip cannot be read", found=f"{type(e).__name__}: {e}",
                           expected=f"a whole bundle (sha256 over it {said}, found {found})") from None  # fmt: skip
        if said != found:
            raise _refused(f"{path} was changed between the files that it holds", found=f"sha256 {found}",
                           expected=f"sha256 {said}")  # fmt: skip
        with archive:
            yield archive, manifest


def _end(path: Path, file: BinaryIO) -> str:
    """The hash that the bundle says of itself; refuses what does not end as a bundle ends."""
    size = file.seek(0, 2)
    tail = b""
    if size >= _END.size + bundle.COMMENT:
        file.seek(-(_END.size + bundle.COMMENT), 2)
        tail = file.read()
    mark, digits = tail[_END.size : -bundle.DIGITS], tail[-bundle.DIGITS :]
    signature, *_, directory, _, comment = _END.unpack(tail[: _END.size]) if tail else (b"", 0, 0, 0)
    if mark != bundle.MARK or signature != b"PK\x05\x06" or comment != bundle.COMMENT or not _is_hex(digits):
        raise _refused(f"{path} does not end as a bundle ends: cut off, or none", found=f"{size} bytes",
                       expected="a file of `stapo-repro pack`")  # fmt: skip
    if directory > bundle.MAX_DIRECTORY:
        raise _refused(f"{path}: the list of files is too long", found=f"{directory} bytes",
                       expected=f"at most {bundle.MAX_DIRECTORY}")  # fmt: skip
    return digits.decode()


def _is_hex(digits: bytes) -> bool:
    return all(c in b"0123456789abcdef" for c in digits)


def _manifest(archive: zipfile.ZipFile) -> Manifest:
    members = archive.infolist()
    if len(members) > bundle.MAX_FILES:
        raise _refused("too many files in the bundle", found=len(members), expected=f"at most {bundle.MAX_FILES}")
    for i, m in enumerate(members):
        _member(m, first=i == 0)
    _no_doubles([m.filename for m in members])
    if not members or members[0].filename != MANIFEST:
        raise _refused("the bundle has no manifest", found=members[0].filename if members else "no file",
                       expected=f"{MANIFEST} as its first file")  # fmt: skip
    if members[0].file_size > bundle.MAX_MANIFEST:
        raise _refused(f"{MANIFEST} is too large", found=f"{members[0].file_size} bytes declared",
                       expected=f"at most {bundle.MAX_MANIFEST}")  # fmt: skip
    manifest = store.parse(archive.read(MANIFEST), Manifest, MANIFEST)
    _agree(manifest, members[1:])
    return manifest


def _member(m: zipfile.ZipInfo, first: bool) -> None:
    """Refuses a member whose name, kind or size no bundle has."""
    where = f"{m.filename!r} (offset {m.header_offset})"
    if why := "" if first and m.filename == MANIFEST else bundle.bad_name(m.filename):
        raise _refused(f"{where}: {why}", found=m.filename, expected="RUN/.../FILE, a record's file")
    kind = stat.S_IFMT(m.external_attr >> 16)
    if m.is_dir() or kind not in (0, stat.S_IFREG):
        raise _refused(f"{where} is no plain file", found="a link" if stat.S_ISLNK(kind) else f"kind {kind:o}",
                       expected="a plain file")  # fmt: skip
    if m.flag_bits & 0x1 or m.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        raise _refused(f"{where} is packed in another way", found=f"method {m.compress_type}, flags {m.flag_bits:#x}",
                       expected="deflate, no password")  # fmt: skip
    if m.file_size > bundle.MAX_FILE:
        raise _refused(f"{where} is too large", found=f"{m.file_size} bytes declared",
                       expected=f"at most {bundle.MAX_FILE}")  # fmt: skip


def _no_doubles(names: list[str]) -> None:
    """Also none that a file system without cases would take for one another."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.casefold())) is not None:
            raise _refused(f"{name} stands twice in the bundle", found=f"{other}, {name}", expected="each file once")
        seen[name.casefold()] = name


def _agree(manifest: Manifest, members: list[zipfile.ZipInfo]) -> None:
    """Manifest and members name the same files with the same sizes, in the same order."""
    listed, there = [f.path for f in manifest.files], [m.filename for m in members]
    if listed != there:
        differing = sorted(set(listed) ^ set(there))
        raise _refused("the manifest does not list the files of the bundle",
                       found=", ".join(differing[:5]) or "another order",
                       expected=f"the {len(listed)} files that it lists, in their order")  # fmt: skip
    if manifest.total > bundle.MAX_TOTAL:
        raise _refused("the bundle is too large", found=f"{manifest.total} bytes declared",
                       expected=f"at most {bundle.MAX_TOTAL}")  # fmt: skip
    for f, m in zip(manifest.files, members, strict=True):
        if f.bytes != m.file_size:
            raise _refused(f"{f.path} (offset {m.header_offset}): two sizes are declared",
                           found=f"{m.file_size} bytes in the zip", expected=f"{f.bytes} in the manifest")  # fmt: skip


def blocks(archive: zipfile.ZipFile, f: Entry) -> Iterator[bytes]:
    """A file's bytes in pieces; it is refused at the end when its hash or size is another one.

    Raises:
        RecordError: damaged or tampered with.
    """
    found, size = hashlib.sha256(), 0
    where = f"{f.path} (offset {archive.getinfo(f.path).header_offset})"
    try:
        with archive.open(f.path) as stream:
            while block := stream.read(min(1 << 20, f.bytes - size + 1)):
                size += len(block)
                if size > f.bytes:
                    raise _refused(f"{where} is longer than declared", found=f"more than {f.bytes} bytes",
                                   expected=f"{f.bytes} bytes")  # fmt: skip
                found.update(block)
                yield block
    except RecordError:
        raise
    except _BROKEN as e:
        raise _refused(f"{where} is damaged after {size} bytes", found=f"{type(e).__name__}: {e}",
                       expected=f"{f.bytes} bytes with sha256 {f.sha256}") from None  # fmt: skip
    if (size, found.hexdigest()) != (f.bytes, f.sha256):
        raise _refused(f"{where} is not what the manifest says", found=f"{size} bytes, sha256 {found.hexdigest()}",
                       expected=f"{f.bytes} bytes, sha256 {f.sha256}")  # fmt: skip


def _lines(archive: zipfile.ZipFile, f: Entry) -> Iterator[bytes]:
    """Whole lines with their ends; a last one without an end is refused."""
    rest = io.BytesIO()
    for block in blocks(archive, f):
        *whole, last = block.split(b"\n")
        for piece in whole:
            rest.write(piece + b"\n")
            yield rest.getvalue()
            rest = io.BytesIO()
        rest.write(last)
        if rest.tell() > bundle.MAX_LINE:
            raise _refused(f"{f.path}: a line is too long", found=f"more than {bundle.MAX_LINE} bytes",
                           expected="a record a line")  # fmt: skip
    if rest.tell():
        raise _refused(f"{f.path}: the last line is half-written", found=f"{rest.tell()} bytes without a line end",
                       expected="whole lines")  # fmt: skip


def records(archive: zipfile.ZipFile, f: Entry) -> Iterator[BaseModel]:
    """The records of a file, each validated by its schema.

    Raises:
        RecordError: naming file and line.
    """
    model = bundle.model_of(f.path)
    assert model is not None  # _member has looked at the name
    if PurePosixPath(f.path).name in bundle.LINES:
        for number, line in enumerate(_lines(archive, f), 1):
            yield store.parse(line, model, f"{f.path}:{number}", number)
    else:
        if f.bytes > bundle.MAX_RECORD:
            raise _refused(f"{f.path} is too large for a record", found=f"{f.bytes} bytes",
                           expected=f"at most {bundle.MAX_RECORD}")  # fmt: skip
        yield store.parse(_content(archive, f), model, f.path)


def _files(archive: zipfile.ZipFile, manifest: Manifest) -> None:
    """Every record of every file; what the records say of each other; the manifest's list of cells."""
    beside: dict[str, list[CellRecord]] = defaultdict(list)
    together = Together()
    verdicts: dict[str, Entry] = {}
    for f in manifest.files:
        at = PurePosixPath(f.path)
        if at.name == "metrics.jsonl":
            last_attempts((m for m in records(archive, f) if isinstance(m, StepMetrics)), f.path)
            continue
        for record in records(archive, f):
            if isinstance(record, CellRecord):
                together.add(record, f.path, partial(_content, archive, f))
                beside[str(at.parent.parent)].append(record)
        if at.name == "verdicts.jsonl":
            verdicts[str(at.parent)] = f
    for folder, f in verdicts.items():
        check_verdicts((v for v in records(archive, f) if isinstance(v, Verdict)), f.path, beside[folder])
    if together.ids != manifest.cells:
        raise _refused("the manifest lists other cells than the bundle holds",
                       found=", ".join(sorted(set(together.ids) ^ set(manifest.cells))[:5]),
                       expected=f"{len(manifest.cells)} cells")  # fmt: skip


def _content(archive: zipfile.ZipFile, f: Entry) -> bytes:
    return b"".join(blocks(archive, f))
