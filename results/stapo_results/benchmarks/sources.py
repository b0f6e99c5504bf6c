"""Rows of JSONL files, Parquet files and the hub's data sets, and our fields in them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stapo_results.benchmarks.spec import FIELDS
from stapo_results.errors import BadInput

Row = Mapping[str, Any]

_REQUIRED = ("problem", "answer")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Rows:
    """Rows with where they come from, as messages and records name it."""

    rows: list[dict[str, Any]]
    source: str


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Objects of a JSONL file. Raises BadInput: with file and line, for a line that is not a JSON object."""
    rows = []
    try:
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise BadInput(f"{path}:{number} is not an object", found=type(row).__name__)
                rows.append(row)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", next_step="check the path") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{path}:{len(rows) + 1} is not a JSON line", found=e, next_step="correct the line") from None
    return rows


def _read_parquet(path: str | os.PathLike) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", next_step="check the path") from None
    except (pa.ArrowException, OSError) as e:
        raise BadInput(f"{path} is not a Parquet file", found=str(e).splitlines()[0], next_step="check it") from None


def is_file_name(text: str) -> bool:
    """Whether text names a file rather than a benchmark or a data set: by its ending."""
    return Path(text).suffix in (".jsonl", ".parquet")


def from_file(path: str | os.PathLike) -> Rows:
    """Rows of a .jsonl or .parquet file."""
    return Rows(_read_parquet(path) if Path(path).suffix == ".parquet" else read_jsonl(path), str(path))


def from_hub(hub: str, *, revision: str, split: str, next_step: str) -> Rows:
    """Rows of a data set on the hub, or in the hub's cache; `source` names the commit that was loaded.

    Raises:
        BadInput: with the library's own reason and `next_step`.
    """
    from datasets import load_dataset_builder

    try:
        builder = load_dataset_builder(hub, revision=revision)
        builder.download_and_prepare()
        data: Any = builder.as_dataset(split=split)
    except Exception as e:  # noqa: BLE001  the library raises many kinds; each means that the hub gave no data
        raise BadInput(
            f"{hub} could not be loaded from the hub (split {split}, revision {revision})",
            found=f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
            next_step=("set HF_HUB_OFFLINE=0, or " if "OfflineModeIsEnabled" in str(e) else "") + next_step,
        ) from None
    # the hash of a hub's data set is its commit, also where the cache served it; that of a folder is not
    commit = builder.hash if _COMMIT.fullmatch(builder.hash or "") else revision
    return Rows([dict(r) for r in data], f"{hub}@{commit}")


def value_at(row: Row, column: str) -> Any:
    """The value of a column; dots lead into nested ones, numbers into lists (`prompt.0.content`).

    Raises:
        KeyError: with the part of the path that is not there.
    """
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, Sequence) and not isinstance(value, str) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(column)
    return value


def check_columns(found: Rows, columns: Mapping[str, str], next_step: str) -> None:
    """Raises BadInput, naming the columns that there are, where a row lacks problem or answer."""
    if not found.rows:
        raise BadInput(f"{found.source} holds no row", next_step="check the file")
    for number, row in enumerate(found.rows, 1):
        for field in _REQUIRED:
            try:
                value_at(row, columns[field])
            except KeyError:
                raise BadInput(
                    f"{found.source}, row {number}: no column {columns[field]!r} for the {field}",
                    found=f"the columns {', '.join(sorted(row))}",
                    expected=", ".join(columns[f] for f in _REQUIRED),
                    next_step=next_step,
                ) from None


def parse_columns(text: str) -> dict[str, str]:
    """`problem=question,answer=final_answer` as a mapping from our fields to columns.

    Raises:
        BadInput: for another form or a field that does not exist.
    """
    columns = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        field, equals, column = (x.strip() for x in part.partition("="))
        if not equals or not column or field not in FIELDS:
            raise BadInput(
                "--columns does not name a field and its column",
                found=part,
                expected=f"FIELD=COLUMN joined by commas, with the fields {', '.join(FIELDS)}",
                next_step="for example --columns problem=question,answer=final_answer",
            )
        columns[field] = column
    return columns
