"""A prepared folder: rows in veRL's columns, their Parquet form and content hash, and the record beside them."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from stapo_results.answers import INSTRUCTION, strip_boxes
from stapo_results.schema import Part, Record
from stapo_results.store import write_atomic

RECORD = "data.json"

# Between problem and instruction: a blank line in the training, one space in the evaluation (JustRL's two scripts).
TRAIN_SEPARATOR = "\n\n"


_MATH = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])")  # what sets mathematics in a text
_WHOLE = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.0)?")
_STOP = re.compile(r"(?<![.\s])(?<!\.[A-Za-z])\.$")  # no ellipsis, and none of "p.m."
_LIST = re.compile(r"\[\s*[\"']")  # of texts, in JSON or as Python prints it
_LONGEST = 1990
"""Characters; the verifiers read 2,000 of a box."""


def plain_gold(gold: object) -> str | None:
    """A gold as the last box of a right response has it, which the reward compares as text.

    Without a box around it, signs of mathematics, white space and a full stop at its ends; a whole number in digits
    alone. None where no box can equal it: no text and no whole number, nothing, a list of texts, braces or boxes that
    do not close in it.
    """
    text = str(gold) if isinstance(gold, str) or type(gold) is int else ""
    if text.isdecimal():  # nearly every one, of two million rows
        return text
    text = _STOP.sub("", strip_boxes(_STOP.sub("", _MATH.sub("", text).strip())).strip()).strip()
    if _WHOLE.fullmatch(text):
        text = text.partition(".")[0].replace(",", "")
    depths = list(accumulate((c == "{") - (c == "}") for c in text))
    balanced = depths and len(text) < _LONGEST and min(depths) >= 0 == depths[-1]
    return text if balanced and "\\boxed{" not in text and not _LIST.match(text) else None


def is_set_as_mathematics(gold: object) -> bool:
    """Whether a gold stands in dollars, in other signs of mathematics, or in a box."""
    return bool(_MATH.search(str(gold))) or "\\boxed{" in str(gold)


def verl_rows(problems: Iterable[tuple[str, str, str]], *, data_source: str, split: str) -> list[dict[str, Any]]:
    """Rows in veRL's columns.

    Args:
        problems: of each its text without any instruction, the reference answer as text, and its id: stable and unique
            in the file, because the seed of every sample derives from it.
        data_source: the name of the validation metrics; also veRL's own key to a verifier.
    """
    return [
        {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": text + TRAIN_SEPARATOR + INSTRUCTION}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": gold},
            "extra_info": {"split": split, "index": i, "problem_id": problem_id},
        }
        for i, (text, gold, problem_id) in enumerate(problems)
    ]


def content_sha256(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 over the rows in order, each as JSON with sorted keys and a line end.

    Unlike the hash of a Parquet file it does not depend on the library that wrote it.
    """
    h = hashlib.sha256()
    for row in rows:
        h.update(json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return h.hexdigest()


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as one Parquet file, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def parquet_content_sha256(path: Path) -> str:
    """`content_sha256` of a Parquet file's rows.

    Raises:
        OSError, pyarrow.ArrowInvalid: where the file is missing or is no Parquet file.
    """
    import pyarrow.parquet as pq

    return content_sha256(pq.read_table(path).to_pylist())


class SourceInfo(Part):
    """`name` is a file's name or the hub's id; `revision` the hub's commit, "" for a local file."""

    name: str
    revision: str
    sha256: str
    rows: int


class FileInfo(Part):
    """`content_sha256` is `rows.content_sha256`: it does not depend on the writer of the Parquet file."""

    file: str
    data_source: str
    prompts: int
    content_sha256: str


class DataRecord(Record):
    """data.json: a function of source, benchmarks and options; it holds no time and no path.

    counts: `distinct` prompts, and how many each step took away, in the order of the steps: copies_dropped,
        conflicts_dropped, language_dropped, contaminated_dropped. `contaminated` prompts match a benchmark problem.
    contamination: problems of each benchmark that a prompt matches.
    """

    source: SourceInfo
    language: str
    exclude_contaminated: bool
    counts: dict[str, int]
    contamination: dict[str, int]
    train: FileInfo
    validation: FileInfo
