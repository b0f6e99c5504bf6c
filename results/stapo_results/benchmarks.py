"""The benchmark registry and its loader: which problems, how often, and whether a copy is the right one.

`benchmarks.yaml` holds what identifies a benchmark (row count, a hash over its gold answers, a short hash a problem
text), never a problem or an answer. A `registry.yaml` in a data directory adds benchmarks in the same format.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stapo_results.answers import normalise_gold
from stapo_results.errors import BadInput
from stapo_results.store import write_atomic

DATA_DIR_VARIABLE = "STAPO_DATA_DIR"
REGISTRY_FILE = "registry.yaml"


class Spec(BaseModel):
    """One registry entry.

    `columns` maps our fields (id, problem, answer, unit) to the hub copy's columns of other names; without an
    `id` there, ids are the name and the row's place in the registry. Files in a data directory use our field names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    hub: str = ""
    revision: str = "main"
    split: str = "test"
    file: str = ""
    columns: dict[str, str] = {}
    rows: int = Field(ge=1)
    golds_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    text_hashes: str = Field(pattern=r"^[0-9a-f]{8}(\s+[0-9a-f]{8})*$")
    samples: int = Field(ge=1)
    answer_type: Literal["integer", "math"] = "math"
    unordered: bool = False
    tolerance: float | None = None
    license: str = ""
    miniature: bool = False


@dataclass(frozen=True)
class Problem:
    """One problem; `answer` is a tuple where several answers, in any order, are asked for."""

    id: str
    problem: str
    answer: str | tuple[str, ...]
    unit: str = ""


@dataclass(frozen=True)
class Identity:
    """What was compared with the registry. `variant` is "" for the right copy, else what differs in words."""

    rows: int
    golds_sha256: str
    variant: str
    text_variants: tuple[str, ...]


@dataclass(frozen=True)
class Benchmark:
    name: str
    spec: Spec
    problems: tuple[Problem, ...]
    identity: Identity
    source: str


def golds_sha256(golds: Iterable[str | Sequence[str]]) -> str:
    """Hash of the multiset of normalised gold answers: the order of the rows does not count."""
    return hashlib.sha256("\n".join(sorted(map(normalise_gold, golds))).encode()).hexdigest()


def normal_text(problem: str) -> str:
    """A problem text in NFC with runs of white space as one space: what identifies a problem."""
    return " ".join(unicodedata.normalize("NFC", problem).split())


def text_hash(problem: str) -> str:
    """8 hex digits of a problem text's normal form."""
    return hashlib.sha256(normal_text(problem).encode()).hexdigest()[:8]


def _entries(text: str, where: str) -> dict[str, Spec]:
    try:
        raw = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as e:
        raise BadInput(f"{where} is not YAML", found=e, next_step="correct the file") from None
    if not isinstance(raw, dict) or raw.get("schema_version") != 1 or not isinstance(raw.get("benchmarks"), dict):
        raise BadInput(
            f"{where} is not a benchmark registry",
            found=sorted(raw) if isinstance(raw, dict) else type(raw).__name__,
            expected="the keys schema_version (1) and benchmarks",
            next_step="compare it with stapo_results/benchmarks.yaml",
        )
    specs = {}
    for name, entry in raw["benchmarks"].items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9\-]*", str(name)):
            raise BadInput(f"{where}: a benchmark's name is lower case letters, digits and hyphens", found=name)
        try:
            specs[name] = Spec.model_validate(entry)
        except ValidationError as e:
            first = e.errors()[0]
            raise BadInput(
                f"{where}: the entry of {name} is not valid",
                found=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
                next_step="make the entry with stapo_results.benchmarks.registry_entry",
            ) from None
    return specs


@cache
def _packaged() -> dict[str, Spec]:
    text = resources.files("stapo_results").joinpath("benchmarks.yaml").read_text(encoding="utf-8")
    return _entries(text, "stapo_results/benchmarks.yaml")


def find_data_dir(given: str | os.PathLike | None) -> Path | None:
    """The directory with benchmark files: as given, else from STAPO_DATA_DIR, else None (the hub)."""
    path = given or os.environ.get(DATA_DIR_VARIABLE)
    if not path:
        return None
    if not Path(path).is_dir():
        raise BadInput("the data directory does not exist", found=path, next_step="check --data-dir")
    return Path(path)


def registry(data_dir: str | os.PathLike | None = None) -> dict[str, Spec]:
    """All known benchmarks by name: the packaged six, then those of the data directory's registry.yaml.

    Raises:
        BadInput: for a file that is no registry, or one that redefines a packaged name.
    """
    specs = dict(_packaged())
    if data_dir is not None and (path := Path(data_dir) / REGISTRY_FILE).exists():
        for name, spec in _entries(path.read_text(encoding="utf-8"), str(path)).items():
            if name in specs:
                raise BadInput(
                    f"{path} redefines the benchmark {name}",
                    found=name,
                    expected="a name that the suite does not use",
                    next_step="rename the entry: a score must not change its meaning with a directory",
                )
            specs[name] = spec
    return specs


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Objects of a JSONL file.

    Raises:
        BadInput: with file and line, for a line that is not a JSON object.
    """
    rows = []
    try:
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise BadInput(f"{path}:{number} is not an object", found=type(row).__name__)
                rows.append(row)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", next_step="check --data-dir") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{path}:{len(rows) + 1} is not a JSON line", found=e, next_step="correct the line") from None
    return rows


def _hub_rows(name: str, spec: Spec) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset

        return [dict(r) for r in load_dataset(spec.hub, revision=spec.revision, split=spec.split)]  # type: ignore
    except Exception as e:  # noqa: BLE001  the library raises many kinds; each means that the hub gave no data
        raise BadInput(
            f"the benchmark {name} could not be loaded from the hub ({spec.hub})",
            found=f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
            next_step=f"put {name}.jsonl (fields id, problem, answer) into a directory and give it as --data-dir DIR",
        ) from None


def _problems(
    name: str, spec: Spec, rows: list[dict[str, Any]], source: str, columns: Mapping[str, str]
) -> tuple[Problem, ...]:
    known = spec.text_hashes.split()
    free: dict[str, list[int]] = {}
    for i, h in enumerate(known):
        free.setdefault(h, []).append(i)
    column = {"problem": "problem", "answer": "answer", "unit": "unit", **columns}
    problems, unplaced = [], []
    for number, row in enumerate(rows, 1):
        try:
            text, answer = row[column["problem"]], row[column["answer"]]
        except KeyError as e:
            raise BadInput(
                f"{source}, row {number}: no column {e.args[0]!r}",
                found=sorted(row),
                expected=sorted(set(column.values()) - {"unit"}),
            ) from None
        if not isinstance(text, str) or not isinstance(answer, (str, int, list)):
            raise BadInput(f"{source}, row {number}: problem is text, answer text or a list of texts", found=row)
        golds = tuple(map(str, answer)) if isinstance(answer, list) else (str(answer),)
        # A copy without ids gets the registry's: by its text, so that the copy's order does not matter.
        places = free.get(text_hash(text), [])
        place = places.pop(0) if places else None
        given = row.get(column["id"]) if "id" in column else None
        problem_id = str(given) if given is not None else "" if place is None else f"{name}-{place:04d}"
        if not problem_id:
            unplaced.append(len(problems))
        problems.append(
            Problem(problem_id, text, golds[0] if len(golds) == 1 else golds, str(row.get(column["unit"]) or ""))
        )
    left = iter(sorted(i for places in free.values() for i in places) + list(range(len(known), len(known) + len(rows))))
    for at in unplaced:
        p = problems[at]
        problems[at] = Problem(f"{name}-{next(left):04d}", p.problem, p.answer, p.unit)
    double = [i for i, c in Counter(p.id for p in problems).items() if c > 1]
    if double:
        raise BadInput(f"{source}: an id stands twice", found=double[:5], next_step="give every problem its own id")
    return tuple(problems)


def check_identity(
    name: str,
    spec: Spec,
    problems: Sequence[Problem],
    source: str,
    *,
    accept_variant: bool = False,
    strict: bool = False,
) -> Identity:
    """Compare a copy with the registry.

    Raises:
        BadInput: for another number of rows or other gold answers (unless `accept_variant`), with both values; under
            `strict` also for differing problem texts.
    """
    golds = golds_sha256(p.answer for p in problems)
    known = Counter(spec.text_hashes.split())
    differing = []
    for p in problems:
        h = text_hash(p.problem)
        if known[h] > 0:
            known[h] -= 1
        else:
            differing.append(p.id)
    differs = []
    if len(problems) != spec.rows:
        differs.append(("rows", len(problems), spec.rows))
    if golds != spec.golds_sha256:
        differs.append(("gold answers (sha256)", golds[:16], spec.golds_sha256[:16]))
    if differs and not accept_variant:
        raise BadInput(
            f"{source} is not the benchmark {name}",
            found=", ".join(f"{what} {found}" for what, found, _ in differs),
            expected=", ".join(f"{what} {expected}" for what, _, expected in differs),
            next_step="get the registered copy, or give --accept-variant: scores then say so",
        )
    if differing and strict:
        raise BadInput(
            f"{source}: {len(differing)} problem texts of {name} differ from the registered copy",
            found=", ".join(differing[:20]) + (" ..." if len(differing) > 20 else ""),
            expected="the registered texts (up to white space)",
            next_step="leave out --strict: the differing rows are then counted and named in the records",
        )
    variant = "; ".join(f"{what} {found} instead of {expected}" for what, found, expected in differs)
    return Identity(len(problems), golds, variant, tuple(differing))


def load(
    name: str, data_dir: str | os.PathLike | None = None, *, accept_variant: bool = False, strict: bool = False
) -> Benchmark:
    """A benchmark's problems in the order of its file, checked against the registry.

    Args:
        data_dir: directory with `<name>.jsonl` (or the entry's `file`); None loads from the hub.
        accept_variant: run a copy with other rows or golds; the identity says what differs.
        strict: refuse copies whose problem texts differ.

    Raises:
        BadInput: for an unknown name, a missing or broken file, or a copy that is not the benchmark.
    """
    specs = registry(data_dir)
    if name not in specs:
        raise BadInput(
            "unknown benchmark", found=name, expected=", ".join(specs), next_step="stapo-eval benchmarks lists them"
        )
    spec = specs[name]
    if data_dir is not None:
        path = Path(data_dir) / (spec.file or f"{name}.jsonl")
        rows, source, columns = read_jsonl(path), str(path), {"id": "id"}
    elif spec.hub:
        rows, source, columns = _hub_rows(name, spec), f"{spec.hub}@{spec.revision}", spec.columns
    else:
        raise BadInput(f"the benchmark {name} has no hub copy", next_step="give --data-dir")
    problems = _problems(name, spec, rows, source, columns)
    identity = check_identity(name, spec, problems, source, accept_variant=accept_variant, strict=strict)
    return Benchmark(name, spec, problems, identity, source)


def registry_entry(
    path: str | os.PathLike,
    name: str,
    *,
    samples: int = 8,
    title: str = "",
    answer_type: str = "integer",
    unordered: bool = False,
    tolerance: float | None = None,
    license: str = "",
    miniature: bool = False,
) -> dict[str, Any]:
    """A registry entry for a JSONL file with the fields id, problem, answer.

    Args:
        path: the file; the entry names it without its folder, so that it stays valid beside its registry.yaml.
        samples: N of avg@N.
    """
    problems = [
        (str(r["problem"]), r["answer"] if isinstance(r["answer"], list) else str(r["answer"]))
        for r in read_jsonl(path)
    ]
    hashes = [text_hash(p) for p, _ in problems]
    spec = Spec(
        title=title or name,
        file=Path(path).name,
        rows=len(problems),
        golds_sha256=golds_sha256(a for _, a in problems),
        text_hashes="\n".join(" ".join(hashes[i : i + 12]) for i in range(0, len(hashes), 12)),
        samples=samples,
        answer_type=answer_type,  # type: ignore[arg-type]  # pydantic checks it
        unordered=unordered,
        tolerance=tolerance,
        license=license,
        miniature=miniature,
    )
    return spec.model_dump(mode="json", exclude_defaults=True)


def write_registry(path: str | os.PathLike, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Write `registry.yaml` with the entries (see `registry_entry`) by name, the same bytes each time."""
    write_atomic(path, _dump({"schema_version": 1, "benchmarks": {k: dict(v) for k, v in entries.items()}}))


class _Dumper(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _dump(value: object) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=200)
