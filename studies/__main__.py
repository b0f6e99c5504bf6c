"""`python -m studies`: the pages of all studies."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from studies import command


def pages(check: bool = False) -> int:
    """Write the page of every study that has one, from the committed records.

    Args:
        check: Write nothing; compare with what is on disk and exit 1 with a diff if it is stale.
    """
    return command.write(_add, check=check)


def _add(files: dict[Path, bytes]) -> None:
    for page in sorted(Path(__file__).parent.glob("*/page.py")):
        import_module(f"studies.{page.parent.name}.page").add(files)


if __name__ == "__main__":
    command.run(pages, "studies", "tables")
