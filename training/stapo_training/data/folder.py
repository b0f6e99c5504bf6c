"""The record of a folder that `stapo-train data` prepared, and whether its files still hold that content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from stapo_results.errors import BadInput
from stapo_training.data.rows import parquet_content_sha256

RECORD = "data.json"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceInfo(_Record):
    """`name` is a file's name or the hub's id; `revision` the hub's commit, "" for a local file."""

    name: str
    revision: str
    sha256: str
    rows: int


class FileInfo(_Record):
    """`content_sha256` is `rows.content_sha256`: it does not depend on the writer of the Parquet file."""

    file: str
    data_source: str
    prompts: int
    content_sha256: str


class Counts(_Record):
    """Distinct prompts, and how many each step took away, in the order of the steps.

    `contaminated` counts the prompts that match a benchmark problem.
    """

    distinct: int
    copies_dropped: int
    conflicts_dropped: int
    language_dropped: int
    contaminated: int
    contaminated_dropped: int


class DataRecord(_Record):
    """data.json: a function of source, benchmarks and options; it holds no time and no path."""

    schema_version: Literal[1] = 1
    source: SourceInfo
    language: str
    exclude_contaminated: bool
    counts: Counts
    contamination: dict[str, int]
    train: FileInfo
    validation: FileInfo


def to_json(record: BaseModel) -> str:
    """The text of a record as a file: the same bytes for the same record."""
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"


def check_content(out: Path, files: Mapping[str, object], record: DataRecord) -> None:
    """Compare a finished folder with the content that its command gives: texts by bytes, Parquet files by content.

    Raises:
        BadInput: naming the files that differ.
    """
    import pyarrow as pa

    differing = [n for n, text in files.items() if isinstance(text, str) and (out / n).read_bytes() != text.encode()]
    for info in (record.train, record.validation):
        try:
            found = parquet_content_sha256(out / info.file)
        except (OSError, pa.ArrowInvalid) as e:
            found = type(e).__name__
        if found != info.content_sha256:
            differing.append(info.file)
    if differing:
        raise BadInput(
            f"{out} holds other content, or files that were changed",
            found=f"different: {', '.join(differing)}",
            expected="what this command gives",
            next_step="give another --out, or delete that folder",
        )
