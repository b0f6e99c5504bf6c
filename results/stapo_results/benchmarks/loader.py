"""From a name or a path to checked problems."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stapo_results.benchmarks.registry import (
    check_name,
    describe,
    own_entries,
    packaged,
    registry,
)
from stapo_results.benchmarks.sources import Rows, check_columns, from_file, from_hub, is_file_name, value_at
from stapo_results.benchmarks.spec import FIELDS, Benchmark, Problem, Spec, check_identity, text_hash
from stapo_results.errors import BadInput, meant

OWN = {field: field for field in FIELDS}
_UNKNOWN = (
    "stapo-eval benchmarks lists them; --add registers one of your own; a .jsonl or .parquet file goes by its path; "
    "--data-dir names the folder that registers more (the miniature's: BASE/benchmarks)"
)
HUB = {k: v for k, v in OWN.items() if k != "id"}  # the hub's ids differ from copy to copy


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
    if is_file_name(name):
        return _load_file(Path(name), accept_variant=accept_variant, strict=strict)
    specs = registry(data_dir)
    name = meant("benchmark", name, specs, _UNKNOWN)
    spec = specs[name]
    path = Path(data_dir) / (spec.file or f"{name}.jsonl") if data_dir is not None else None
    if path is not None and (path.exists() or name in packaged() or not spec.hub):
        if not path.exists():
            fetch = f"stapo-eval benchmarks --write {data_dir} --names {name} fetches it from the hub"
            raise BadInput(f"{path}: no such file", next_step=fetch if spec.hub else "check --data-dir")
        found, columns = from_file(path), OWN
    elif spec.hub:
        hint = f"put {name}.jsonl (fields id, problem, answer) into a directory and give it as --data-dir DIR"
        found = from_hub(spec.hub, revision=spec.revision, split=spec.split, next_step=hint)
        columns = HUB | spec.columns
    else:
        raise BadInput(f"the benchmark {name} has no hub copy", next_step="give --data-dir")
    return checked(name, spec, found, columns, accept_variant=accept_variant, strict=strict)


def name_of_file(path: Path) -> str:
    """The name under which a benchmark file is loaded: its entry's beside it, else the file's own in lower case."""
    names = [n for n, s in own_entries(path.parent).items() if (s.file or f"{n}.jsonl") == path.name]
    name = names[0] if names else re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")
    check_name(name, str(path))
    return name


def _load_file(path: Path, *, accept_variant: bool, strict: bool) -> Benchmark:
    found, name = from_file(path), name_of_file(path)
    if spec := (packaged() | own_entries(path.parent)).get(name):
        return checked(name, spec, found, OWN, accept_variant=accept_variant, strict=strict)
    problems = problems_of(name, None, found, OWN)
    spec = describe(problems, title=path.stem)
    return Benchmark(name, spec, problems, check_identity(name, spec, problems, found.source), found.source)


def checked(
    name: str,
    spec: Spec,
    found: Rows,
    columns: Mapping[str, str],
    *,
    accept_variant: bool = False,
    strict: bool = False,
) -> Benchmark:
    """The benchmark that rows are, compared with its entry."""
    problems = problems_of(name, spec, found, columns)
    identity = check_identity(name, spec, problems, found.source, accept_variant=accept_variant, strict=strict)
    return Benchmark(name, spec, problems, identity, found.source)


def _golds(value: object) -> tuple[str, ...] | None:
    """The gold answers; None for what is no answer. A float stays as it is written, 3.0 is an integer's copy."""
    values = value if isinstance(value, list) else [value]
    if not values or any(isinstance(v, bool) or not isinstance(v, str | int | float) for v in values):
        return None
    return tuple(str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values)


def _tolerance(value: object, where: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise BadInput(f"{where}: the tolerance is not a number", found=value, next_step="correct the row")
    return number


def _optional(row: Mapping[str, Any], column: str) -> Any:
    try:
        return value_at(row, column)
    except KeyError:
        return None


def _problem(row: Mapping[str, Any], columns: Mapping[str, str], spec: Spec | None, where: str) -> Problem:
    """One row; its id is "" where it has none."""
    text, golds = value_at(row, columns["problem"]), _golds(value_at(row, columns["answer"]))
    if not isinstance(text, str) or not text.strip() or golds is None:
        raise BadInput(
            f"{where}: problem is text, answer text or a list of texts",
            found={f: _optional(row, columns[f]) for f in ("problem", "answer")},
            next_step="correct the row, or name other columns with --columns",
        )
    if any(not g.strip(" \t\r\n$") for g in golds):
        raise BadInput(
            f"{where}: the gold answer is empty",
            found=_optional(row, columns["answer"]),
            expected="an answer: an empty one would say nothing of a response",
            next_step="correct the row, or leave it out",
        )
    given = _optional(row, columns["id"]) if "id" in columns else None
    tolerance = _tolerance(_optional(row, columns["tolerance"]), where)
    return Problem(
        "" if given is None else str(given),
        text,
        golds[0] if len(golds) == 1 else golds,
        str(_optional(row, columns["unit"]) or ""),
        tolerance if tolerance is not None or spec is None else spec.tolerance,
    )


def problems_of(name: str, spec: Spec | None, found: Rows, columns: Mapping[str, str]) -> tuple[Problem, ...]:
    """The problems of rows.

    A copy without ids gets the registry's, by a problem's text, so that the copy's order does not matter; rows with
    unknown texts get what is left, and rows of an unregistered file their place.

    Args:
        columns: our fields (see `FIELDS`) to the rows' columns.

    Raises:
        BadInput: naming source and row, for a missing column or a value of another kind.
    """
    assert set(columns) <= set(FIELDS)
    hint = f"stapo-eval benchmarks --write DIR (or --add) with --names {name} --columns problem=COLUMN,answer=COLUMN"
    check_columns(found, columns, hint)
    known = spec.text_hashes.split() if spec else []
    free: dict[str, list[int]] = {}
    for i, h in enumerate(known):
        free.setdefault(h, []).append(i)
    problems, unplaced = [], []
    for number, row in enumerate(found.rows, 1):
        p = _problem(row, columns, spec, f"{found.source}, row {number}")
        places = free.get(text_hash(p.problem), [])
        place = places.pop(0) if places else None
        if not p.id and place is None:
            unplaced.append(len(problems))
        problems.append(p if p.id or place is None else replace(p, id=f"{name}-{place:04d}"))
    beyond = range(len(known), len(known) + len(problems))
    left = iter([*sorted(i for places in free.values() for i in places), *beyond])
    for at in unplaced:
        problems[at] = replace(problems[at], id=f"{name}-{next(left):04d}")
    double = [i for i, c in Counter(p.id for p in problems).items() if c > 1]
    if double:
        raise BadInput(f"{found.source}: an id stands twice", found=double[:5], next_step="give each problem its own")
    return tuple(problems)
