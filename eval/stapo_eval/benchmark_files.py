"""Writing copies into a data directory: registered benchmarks, and files or data sets of a user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stapo_results.benchmarks.load import (
    HUB,
    OWN,
    Rows,
    checked,
    from_file,
    from_hub,
    is_file_name,
    load,
    problems_of,
)
from stapo_results.benchmarks.spec import (
    FIELDS,
    REGISTRY_FILE,
    Benchmark,
    Spec,
    check_name,
    describe,
    own_entries,
    packaged,
    to_entry,
    write_registry,
)
from stapo_results.errors import BadInput
from stapo_results.store import write_atomic


def find_rows(source: str, *, revision: str, split: str) -> Rows:
    """Rows of a .jsonl or .parquet file, else of a data set on the hub."""
    if is_file_name(source):
        return from_file(source)
    hint = "give the path of a .jsonl or .parquet file, or check the id, --split and --revision"
    return from_hub(source, revision=revision, split=split, next_step=hint)


def to_jsonl(benchmark: Benchmark) -> str:
    """The benchmark as a data directory holds it: our fields, then source and licence."""
    known = {"source": benchmark.source, "license": benchmark.spec.license}
    rows = [p.model_dump(mode="json", exclude_defaults=True) | known for p in benchmark.problems]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def parse_columns(text: str) -> dict[str, str]:
    """`problem=question,answer=final_answer` as a mapping from our fields to columns.

    Raises:
        BadInput: for another form or a field that does not exist.
    """
    columns = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        field, _, column = (x.strip() for x in part.partition("="))
        if not column or field not in FIELDS:
            raise BadInput(
                "--columns does not name a field and its column",
                found=part,
                expected=f"FIELD=COLUMN joined by commas, with the fields {', '.join(FIELDS)}",
                next_step="for example --columns problem=question,answer=final_answer",
            )
        columns[field] = column
    return columns


def write_copy(
    name: str,
    spec: Spec,
    folder: Path,
    *,
    source: str = "",
    columns: Mapping[str, str] | None = None,
    revision: str = "",
    split: str = "",
) -> tuple[Path, Benchmark, bool]:
    """Write `<name>.jsonl` from the hub, or from another source, once it is known to be the benchmark.

    Args:
        source: a file or another data set (default: the entry's hub copy).
        columns, revision, split: where they differ from the entry's.

    Returns:
        The file, its benchmark, and whether it was written (False: the right copy was there).

    Raises:
        BadInput: for a source that is not the benchmark, or a file of that name that is not.
    """
    path = folder / (spec.file or f"{name}.jsonl")
    if path.exists():
        return path, load(name, folder), False
    if not (source or spec.hub):
        raise BadInput(f"the benchmark {name} has no hub copy", next_step="give --source FILE")
    found = find_rows(source or spec.hub, revision=revision or spec.revision, split=split or spec.split)
    mapping = OWN if is_file_name(found.source) else HUB | spec.columns
    benchmark = checked(name, spec, found, {**mapping, **(columns or {})})
    write_atomic(path, to_jsonl(benchmark))
    return path, benchmark, True


def add(
    name: str,
    source: str,
    folder: Path,
    *,
    columns: Mapping[str, str] | None = None,
    revision: str = "main",
    split: str = "test",
    **known: Any,
) -> tuple[Path, Spec]:
    """Register a file or a data set of the hub as a benchmark of a data directory, under a new name.

    Writes `<name>.jsonl` (unless it is the source) and the entry in registry.yaml.

    Args:
        known: fields of the entry that are not read off the problems: title, samples, answer_type, unordered,
            tolerance, license.

    Returns:
        The file and the entry.

    Raises:
        BadInput: for a name that is taken by something else, or rows that are no benchmark.
    """
    check_name(name, "--names")
    entries = own_entries(folder)
    if name in packaged():
        raise BadInput(f"{name} is a benchmark of the paper", next_step="choose another name")
    hub = {} if is_file_name(source) else {"hub": source, "revision": revision, "split": split}
    mapping = {**(HUB if hub else OWN), **(columns or {})}
    found = find_rows(source, revision=revision, split=split)
    problems = problems_of(name, None, found, mapping)
    kept = {f: c for f, c in mapping.items() if f != c} if hub else {}
    known = {k: v for k, v in known.items() if v not in (None, "")}
    path = folder / f"{name}.jsonl"
    fields: dict[str, Any] = {"title": name, **known, "file": path.name, "columns": kept, **hub}
    spec = describe(problems, **fields)
    if name in entries and entries[name] != spec:
        raise BadInput(
            f"{folder / REGISTRY_FILE} has another benchmark {name}",
            found=f"{spec.rows} rows, golds {spec.golds_sha256[:16]}, N {spec.samples}",
            expected=f"{entries[name].rows} rows, golds {entries[name].golds_sha256[:16]}, N {entries[name].samples}",
            next_step="choose another name, or delete the entry",
        )
    text = to_jsonl(Benchmark(name, spec, problems, checked(name, spec, found, mapping).identity, found.source))
    if not (is_file_name(source) and path.exists() and path.samefile(source)):
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise BadInput(f"{path} exists and is another file", next_step="choose another name, or delete it")
        write_atomic(path, text)
    elif columns:
        raise BadInput(f"{path} is the source itself", next_step="rename its columns, or keep it in another folder")
    write_registry(folder / REGISTRY_FILE, {n: to_entry(s) for n, s in (entries | {name: spec}).items()})
    return path, spec
