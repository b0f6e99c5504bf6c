"""Generated files: writing them, or comparing them with what is on disk; the marked blocks of pages."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from stapo_results.errors import BadInput
from stapo_results.store import write_atomic

_SHOWN_LINES = 60  # of a difference


def renew(files: dict[Path, bytes], page: Path, name: str, block: str) -> None:
    """Replace what a page has between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->`.

    Args:
        files: bytes of the pages that have changed so far; the page's are among them afterwards.

    Raises:
        BadInput: no such page, or the two markers are not there exactly once and in order.
    """
    begin, end = f"<!-- generated:{name} -->", f"<!-- /generated:{name} -->"
    if page not in files and not page.exists():
        raise BadInput("the file with the generated block is not there", found=page, next_step="git checkout it")
    old = (files[page] if page in files else page.read_bytes()).decode()
    counts = old.count(begin), old.count(end)
    if counts != (1, 1) or old.index(begin) > old.index(end):
        raise BadInput(
            f"{page} lacks the markers of the generated block {name!r}",
            found=f"{counts[0]} x {begin}, {counts[1]} x {end}",
            expected="each once, in this order",
            next_step="put both markers, each on a line of its own, where the block belongs",
        )
    head, tail = old.split(begin)[0], old.split(end)[1]
    files[page] = f"{head}{begin}\n{block.strip()}\n{end}{tail}".encode()


def write(files: Mapping[Path, bytes], *, check: bool = False) -> int:
    """Write what differs and say which; or compare alone, and show differences as a diff on stderr.

    Returns:
        1 when a compared file differs, else 0.
    """
    if check:
        return _check(files)
    for path, data in files.items():
        same = path.exists() and path.read_bytes() == data
        if not same:
            write_atomic(path, data)
        print(f"{'unchanged' if same else 'written  '} {path}")
    return 0


def _check(files: Mapping[Path, bytes]) -> int:
    stale = [path for path, data in files.items() if not path.exists() or path.read_bytes() != data]
    for path in stale:
        print(f"stale: {path}{'' if path.exists() else ' (not there)'}", file=sys.stderr)
        if not path.exists():
            continue
        old, new = (text.decode(errors="replace").splitlines() for text in (path.read_bytes(), files[path]))
        for line in islice(difflib.unified_diff(old, new, "on disk", "generated", lineterm="", n=1), _SHOWN_LINES):
            print(f"  {line[:200]}", file=sys.stderr)
    if stale:
        print(
            f"{len(stale)} of {len(files)} generated files are stale\n  next:     the command without --check",
            file=sys.stderr,
        )
        return 1
    print(f"{len(files)} generated files are up to date")
    return 0
