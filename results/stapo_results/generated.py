"""Generated files: writing them, or comparing them with what is on disk; the marked blocks of pages."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path

from stapo_results.errors import BadInput
from stapo_results.store import write_atomic

_SHOWN_LINES = 60  # of a difference


def replace_block(path: Path, name: str, block: str, text: bytes | None = None) -> bytes:
    """The file's text with the part between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->` replaced.

    Args:
        text: of the file, where another block of it was replaced before. Default: what is on disk.

    Raises:
        BadInput: no such file, or the two markers do not stand there exactly once and in order.
    """
    begin, end = f"<!-- generated:{name} -->", f"<!-- /generated:{name} -->"
    if text is None and not path.exists():
        raise BadInput("the file with the generated block is not there", found=path, next_step="git checkout it")
    old = (path.read_bytes() if text is None else text).decode()
    counts = old.count(begin), old.count(end)
    if counts != (1, 1) or old.index(begin) > old.index(end):
        raise BadInput(
            f"{path} lacks the markers of the generated block {name!r}",
            found=f"{counts[0]} x {begin}, {counts[1]} x {end}",
            expected="each once, in this order",
            next_step="put both markers, each on a line of its own, where the block belongs",
        )
    head, tail = old.split(begin)[0], old.split(end)[1]
    return f"{head}{begin}\n{block.strip()}\n{end}{tail}".encode()


def renew(files: dict[Path, bytes], page: Path, name: str, block: str) -> None:
    """Replace a block of a page among `files`, where another block of the page may have been replaced already."""
    files[page] = replace_block(page, name, block, files.get(page))


def write(files: Mapping[Path, bytes]) -> int:
    """Write what differs and say which; returns 0."""
    for path, data in files.items():
        same = path.exists() and path.read_bytes() == data
        if not same:
            write_atomic(path, data)
        print(f"{'unchanged' if same else 'written  '} {path}")
    return 0


def check(files: Mapping[Path, bytes], command: str) -> int:
    """Compare with what is on disk, show differences as a diff on stderr.

    Returns:
        0 when all are equal, else 1.
    """
    stale = [path for path, data in files.items() if not path.exists() or path.read_bytes() != data]
    for path in stale:
        print(f"stale: {path}{'' if path.exists() else ' (not there)'}", file=sys.stderr)
        if path.exists():
            _show(path, files[path])
    if stale:
        print(f"{len(stale)} of {len(files)} generated files are stale\n  next:     {command}", file=sys.stderr)
        return 1
    print(f"{len(files)} generated files are up to date")
    return 0


def _show(path: Path, data: bytes) -> None:
    old, new = (x.decode(errors="replace").splitlines() for x in (path.read_bytes(), data))
    for line in list(difflib.unified_diff(old, new, "on disk", "generated", lineterm="", n=1))[:_SHOWN_LINES]:
        print(f"  {line[:200]}", file=sys.stderr)
