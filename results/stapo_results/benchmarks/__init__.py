"""The benchmarks: which problems, how often, and whether a copy is the right one.

`benchmarks.yaml` holds what identifies a benchmark (row count, a hash over its gold answers, a short hash a problem
text), never a problem or an answer. A `registry.yaml` in a data directory adds benchmarks in the same format, and a
JSONL file of a user's own is a benchmark without an entry. `spec` is the registry; here a name or a path becomes
checked problems, from rows of JSONL files, Parquet files and the hub's data sets.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from stapo_results.benchmarks.spec import (
    FIELDS,
    NAME,
    Benchmark,
    Identity,
    Problem,
    Spec,
    describe,
    golds_sha256,
    own_entries,
    packaged,
    registry,
    shown,
    text_hash,
)
from stapo_results.errors import BadInput, meant
from stapo_results.store import write_atomic

DATA_DIR_VARIABLE = "STAPO_DATA_DIR"
OWN = {field: field for field in FIELDS}
"""Columns of a file: our own names."""
HUB = {k: v for k, v in OWN.items() if k != "id"}
"""Columns of a hub's copy: its ids differ from copy to copy."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_UNKNOWN = (
    "stapo-eval benchmarks lists them; --add registers one of your own; a .jsonl or .parquet file goes by its path; "
    "--data-dir names the folder that registers more (the miniature's: BASE/benchmarks)"
)


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
            for line in f:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"it is of type {type(row).__name__}")
                rows.append(row)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", next_step="check the path") from None
    except ValueError as e:  # also broken JSON or UTF-8
        raise BadInput(f"{path}:{len(rows) + 1} is not a JSON object", found=e, next_step="correct the line") from None
    return rows


def _read_parquet(path: str | os.PathLike) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as e:
        raise BadInput(
            f"{path} cannot be read as Parquet", found=str(e).splitlines()[0], next_step="check it"
        ) from None


def find_data_dir(given: str | os.PathLike | None) -> Path | None:
    """The directory with benchmark files: as given, else from STAPO_DATA_DIR, else None (the hub)."""
    path = given or os.environ.get(DATA_DIR_VARIABLE)
    if not path:
        return None
    if not Path(path).is_dir():
        raise BadInput(
            "the data directory is no folder",
            found=path,
            expected="a folder with the benchmarks' JSONL files",
            next_step=f"check --data-dir, or ${DATA_DIR_VARIABLE} where it is not given",
        )
    return Path(path)


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


def load(
    name: str, data_dir: str | os.PathLike | None = None, *, accept_variant: bool = False, strict: bool = False
) -> Benchmark:
    """A benchmark's problems in the order of their source, checked against the registry.

    Args:
        name: a registered name, in any case; or the path of a .jsonl or .parquet file with id, problem, answer. A file
            that is named like a registered benchmark is checked as that one, any other is taken as it is.
        data_dir: directory with `<name>.jsonl` (or the entry's `file`); None loads from the hub.
        accept_variant: run a copy with other rows or golds; the identity says what differs.
        strict: refuse copies whose problem texts differ.

    Raises:
        BadInput: for an unknown name, a missing or broken file, or a copy that is not the benchmark.
    """
    columns: Mapping[str, str] = OWN
    if is_file_name(name):
        path = Path(name)
        found, name = from_file(path), name_of_file(path)
        spec = (packaged() | own_entries(path.parent)).get(name)
        spec = spec or describe(problems_of(name, None, found, OWN), title=path.stem)
        return checked(name, spec, found, OWN, accept_variant=accept_variant, strict=strict)
    specs = registry(data_dir)
    name = meant("benchmark", name, specs, _UNKNOWN)
    spec = specs[name]
    path = Path(data_dir) / (spec.file or f"{name}.jsonl") if data_dir is not None else None
    if path is not None and path.exists():
        found = from_file(path)
    elif path is not None and (name in packaged() or not spec.hub):
        fetch = f"stapo-eval benchmarks --write {data_dir} --names {name} fetches it from the hub"
        raise BadInput(f"{path}: no such file", next_step=fetch if spec.hub else "check --data-dir")
    else:
        hint = f"put {name}.jsonl (fields id, problem, answer) into a directory and give it as --data-dir DIR"
        found = from_hub(spec.hub, revision=spec.revision, split=spec.split, next_step=hint)
        columns = HUB | spec.columns
    return checked(name, spec, found, columns, accept_variant=accept_variant, strict=strict)


def check_name(name: str, where: str) -> str:
    """The name. Raises BadInput for one that would not do as part of a cell id and a file name."""
    if not re.fullmatch(NAME, name):
        raise BadInput(
            f"{where}: a benchmark's name is lower case letters, digits and hyphens",
            found=name,
            next_step="choose another name",
        )
    return name


def name_of_file(path: Path) -> str:
    """The name under which a benchmark file is loaded: its entry's beside it, else the file's own in lower case."""
    names = [n for n, s in own_entries(path.parent).items() if (s.file or f"{n}.jsonl") == path.name]
    return check_name(names[0] if names else re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-"), str(path))


def checked(
    name: str,
    spec: Spec,
    found: Rows,
    columns: Mapping[str, str],
    *,
    accept_variant: bool = False,
    strict: bool = False,
) -> Benchmark:
    """The benchmark that rows are, compared with its entry.

    Raises:
        BadInput: for another number of rows or other gold answers (unless `accept_variant`), with both values; under
            `strict` also for differing problem texts.
    """
    problems = problems_of(name, spec, found, columns)
    golds = golds_sha256(p.answer for p in problems)
    known, texts = Counter(spec.text_hashes.split()), []
    for p in problems:
        known[h := text_hash(p.problem)] -= 1
        if known[h] < 0:
            texts.append(p.id)
    differs: list[tuple[str, int | str, int | str]] = []
    if len(problems) != spec.rows:
        differs.append(("rows", len(problems), spec.rows))
    if golds != spec.golds_sha256:
        differs.append(("gold answers (sha256)", golds[:16], spec.golds_sha256[:16]))
    if differs and not accept_variant:
        raise BadInput(
            f"{found.source} is not the benchmark {name}",
            found=", ".join(f"{what} {here}" for what, here, _ in differs),
            expected=", ".join(f"{what} {there}" for what, _, there in differs),
            next_step="get the registered copy; stapo-eval run --accept-variant takes this one, and scores then say so",
        )
    if texts and strict:
        raise BadInput(
            f"{found.source}: {len(texts)} problem texts of {name} differ from the registered copy",
            found=shown(texts),
            expected="the registered texts (up to white space)",
            next_step="leave out --strict: the differing rows are then counted and named in the records",
        )
    variant = "; ".join(f"{what} {here} instead of {there}" for what, here, there in differs)
    identity = Identity(len(problems), golds, variant, tuple(texts))
    return Benchmark(name, spec, problems, identity, found.source)


def _value_at(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column, None without one; dots lead into nested ones, numbers into lists (`prompt.0.content`)."""
    value: Any = row
    for part in [column] if column in row else column.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _problem(row: Mapping[str, Any], columns: Mapping[str, str], spec: Spec | None, where: str) -> Problem:
    """One row; its id is "" where it has none."""
    try:
        p = Problem.model_validate({field: _value_at(row, column) for field, column in columns.items()})
    except ValidationError as e:
        first = e.errors()[0]
        field = str(first["loc"][0])
        raise BadInput(
            f"{where}: no {field} in the column {columns[field]!r}",
            found=f"{first['msg']}; the columns {', '.join(sorted(row))}",
            expected="problem is text, answer text or a list of texts, tolerance a number",
            next_step="correct the row or leave it out; other columns: stapo-eval benchmarks --write DIR (or --add) "
            "with --columns problem=COLUMN,answer=COLUMN",
        ) from None
    return p.model_copy(update={"tolerance": spec.tolerance}) if spec and p.tolerance is None else p


def problems_of(name: str, spec: Spec | None, found: Rows, columns: Mapping[str, str]) -> tuple[Problem, ...]:
    """The problems of rows.

    A copy without ids gets the registry's, by a problem's text, so that the copy's order does not matter; rows with
    unknown texts get what is left, and rows of an unregistered file their place.

    Args:
        columns: our fields (see `FIELDS`) to the rows' columns.

    Raises:
        BadInput: naming source and row, for a missing column or a value of another kind.
    """
    if not found.rows:
        raise BadInput(f"{found.source} holds no row", next_step="check the file")
    rows = [_problem(r, columns, spec, f"{found.source}, row {i}") for i, r in enumerate(found.rows, 1)]
    known = spec.text_hashes.split() if spec else []
    free: dict[str, list[int]] = {}
    for i, h in enumerate(known):
        free.setdefault(h, []).append(i)
    places = [where.pop(0) if (where := free.get(text_hash(p.problem))) else None for p in rows]
    left = iter([*sorted(i for rest in free.values() for i in rest), *range(len(known), len(known) + len(rows))])
    problems = []
    for p, place in zip(rows, places, strict=True):
        own = p.id or f"{name}-{next(left) if place is None else place:04d}"
        problems.append(p.model_copy(update={"id": own}))
    double = [i for i, c in Counter(p.id for p in problems).items() if c > 1]
    if double:
        raise BadInput(f"{found.source}: duplicate ids", found=double[:5], next_step="give each problem its own")
    return tuple(problems)


def registry_entry(path: str | os.PathLike, name: str, *, samples: int | None = None, **known: Any) -> Spec:
    """A registry entry for a file with the fields problem and answer.

    Args:
        path: the file; the entry names it without its folder, so that it stays valid beside its registry.yaml.
        samples: N of avg@N; None: the paper's for this number of problems.
        known: other fields of the entry (answer_type "integer" where it is left out).
    """
    defaults = {"title": name, "file": Path(path).name, "answer_type": "integer"}
    return describe(problems_of(name, None, from_file(path), OWN), samples=samples, **(defaults | known))


def write_registry(path: str | os.PathLike, entries: Mapping[str, Spec]) -> None:
    """Write `registry.yaml` with the entries by name, without what is at its default; the same bytes each time."""
    listed = {name: spec.model_dump(mode="json", exclude_defaults=True) for name, spec in entries.items()}
    value = {"schema_version": 1, "benchmarks": listed}
    write_atomic(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120))
