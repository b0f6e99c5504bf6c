"""The page of the labelled sample."""

from __future__ import annotations

from pathlib import Path

from studies import command
from studies.labels import readers

_HEAD = """# Rare tokens labelled by two readers

Rare tokens of four trainings of Qwen2.5-Coder-0.5B-Instruct on MATH. How they were drawn and read:
[the record](../records/labels/README.md). What follows: [tokens](../../docs/tokens.md#labelled-by-readers)."""


def add(files: dict[Path, bytes]) -> None:
    """Add the page of the committed record."""
    section = readers.section(command.RECORDS / "labels" / readers.FILE)
    files[command.TABLES / "labels.md"] = "\n".join([_HEAD, "", *section, ""]).encode()
