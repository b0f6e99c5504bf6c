"""The benchmarks: which problems, how often, and whether a copy is the right one.

`benchmarks.yaml` holds what identifies a benchmark (row count, a hash over its gold answers, a short hash a problem
text), never a problem or an answer. A `registry.yaml` in a data directory adds benchmarks in the same format, and a
JSONL file of a user's own is a benchmark without an entry. A name or a path becomes checked problems, from rows of
JSONL files, Parquet files and the hub's data sets.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from stapo_results.answers import normalise_gold
from stapo_results.errors import BadInput, meant, message_of
from stapo_results.store import write_atomic

DATA_DIR_VARIABLE = "STAPO_DATA_DIR"
REGISTRY_FILE = "registry.yaml"

_NAME = r"^[a-z0-9][a-z0-9\-]*$"
_INTEGER = re.compile(r"[+-]?\d+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHOWN = 20  # differing rows that a message names
_UNKNOWN = (
    "stapo-eval benchmarks lists them; --add registers one of your own; a .jsonl or .parquet file goes by its path; "
    "--data-dir names the folder that registers more (the miniature's: BASE/benchmarks)"
)


class Spec(BaseModel):
    """One registry entry.

    `pairs_sha256` is that of `pairs_sha256` over its problems, "" where it is not known.
    `columns` maps our fields (id, problem, answer, unit, tolerance) to the hub copy's columns of other names, with
    dots for nested ones (`reward_model.ground_truth`); without an `id` there, ids are the name and the row's place in
    the registry. Files in a data directory use our field names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    hub: str = ""
    revision: str = "main"
    split: str = "test"
    file: str = ""
    columns: dict[Literal["id", "problem", "answer", "unit", "tolerance"], str] = {}
    rows: int = Field(ge=1)
    golds_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    pairs_sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    text_hashes: str = Field(pattern=r"^[0-9a-f]{8}(\s+[0-9a-f]{8})*$")
    samples: int = Field(ge=1)
    answer_type: Literal["integer", "math"] = "math"
    unordered: bool = False
    tolerance: float | None = Field(None, ge=0, allow_inf_nan=False)
    license: str = ""
    miniature: bool = False


def _empty_as_none(value: Any) -> Any:
    return str(value) if isinstance(value, bool) else None if value == "" else value  # true is no tolerance of 1


def _as_text(value: Any) -> Any:
    """Numbers as text, 3.0 as the integer that it copies; what is no finite number and no text stays and is refused."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value) if value.is_integer() else value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Problem(BaseModel):
    """One problem, as a row of a file gives it. Columns of other names are ignored.

    `answer` is a tuple where several answers, in any order, are asked for. `tolerance` is the largest absolute error
    that still counts as right; None where an answer has to be exact. `id` is "" until the loader gives one.
    """

    model_config = ConfigDict(frozen=True)

    id: Annotated[str, BeforeValidator(lambda v: "" if v is None else _as_text(v))] = ""
    problem: Annotated[str, Field(pattern=r"\S")]
    answer: str | tuple[str, ...]
    unit: Annotated[str, BeforeValidator(lambda v: v or "")] = ""
    tolerance: Annotated[float | None, Field(ge=0, allow_inf_nan=False), BeforeValidator(_empty_as_none)] = None

    @field_validator("answer", mode="before")
    @classmethod
    def _answers(cls, value: Any) -> Any:
        values = tuple(map(_as_text, value if isinstance(value, list | tuple) else [value]))
        if not values or any(isinstance(v, str) and not v.strip(" \t\r\n$") for v in values):
            raise ValueError("an empty gold answer would say nothing of a response")
        return values[0] if len(values) == 1 else values


FIELDS = {field: field for field in Problem.model_fields}
"""Our fields, and the columns of a file that has our names."""


@dataclass(frozen=True)
class Benchmark:
    """Checked problems in the order of their source.

    Attributes:
        source: a path, or the hub's id and commit.
        variant: "" for the registered copy, else what differs in words; text_variants: ids of differing texts.
    """

    name: str
    spec: Spec
    problems: tuple[Problem, ...]
    source: str
    golds_sha256: str
    variant: str = ""
    text_variants: tuple[str, ...] = ()

    @property
    def content(self) -> str:
        """Rows and hashes in words: copies of one content give the same prompts and the same verdicts.

        Unlike the registry, it tells texts apart that differ in white space, and it depends on the order of the rows.
        """
        rows = json.dumps([p.model_dump() for p in self.problems], sort_keys=True)
        problems = hashlib.sha256(rows.encode()).hexdigest()
        return f"{len(self.problems)} rows, golds sha256:{self.golds_sha256}, problems sha256:{problems}"


def golds_sha256(golds: Iterable[str | Sequence[str]]) -> str:
    """Hash of the multiset of normalised gold answers: the order of the rows does not count."""
    return hashlib.sha256("\n".join(sorted(map(normalise_gold, golds))).encode()).hexdigest()


def pairs_sha256(problems: Iterable[Problem]) -> str:
    """Hash of the problems' texts, each with its gold answer, in any order."""
    pairs = sorted(f"{text_hash(p.problem)} {normalise_gold(p.answer)}" for p in problems)
    return hashlib.sha256("\n".join(pairs).encode()).hexdigest()


def normal_text(problem: str) -> str:
    """A problem text in NFC with runs of white space as one space: what identifies a problem."""
    return " ".join(unicodedata.normalize("NFC", problem).split())


def text_hash(problem: str) -> str:
    """8 hex digits of a problem text's normal form."""
    return hashlib.sha256(normal_text(problem).encode()).hexdigest()[:8]


def shown(ids: Sequence[str]) -> str:
    """The ids joined by commas, the first twenty of many."""
    return ", ".join(ids[:_SHOWN]) + (" ..." if len(ids) > _SHOWN else "")


class _Registry(BaseModel):
    schema_version: Literal[1]
    benchmarks: dict[Annotated[str, Field(pattern=_NAME)], Spec]


def _entries(data: bytes, where: str) -> dict[str, Spec]:
    try:
        raw = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _Registry.model_validate(raw).benchmarks
    except (yaml.YAMLError, ValidationError) as e:
        raise BadInput(
            f"{where} is not a benchmark registry",
            found=e,
            next_step="make its entries with `stapo-eval benchmarks --add FILE --data-dir DIR`",
        ) from None


@cache
def packaged() -> dict[str, Spec]:
    """The paper's six."""
    file = Path(__file__).with_suffix(".yaml")
    return _entries(file.read_bytes(), str(file))


def own_entries(data_dir: str | os.PathLike | None) -> dict[str, Spec]:
    """The entries of a data directory's registry.yaml; none where it has no such file.

    Raises:
        BadInput: for a file that is no registry, or one that redefines a packaged name.
    """
    if data_dir is None or not (path := Path(data_dir) / REGISTRY_FILE).exists():
        return {}
    specs = _entries(path.read_bytes(), str(path))
    if taken := specs.keys() & packaged().keys():
        raise BadInput(
            f"{path} redefines a benchmark of the paper",
            found=", ".join(sorted(taken)),
            expected="names that the suite does not use",
            next_step="rename the entry: a score must not change its meaning with a directory",
        )
    return specs


def registry(data_dir: str | os.PathLike | None = None) -> dict[str, Spec]:
    """All known benchmarks by name: the packaged six, then `own_entries`, whose errors it raises."""
    return packaged() | own_entries(data_dir)


@dataclass(frozen=True)
class Rows:
    """Rows with where they come from, as messages and records name it, and the columns of our fields."""

    rows: list[dict[str, Any]]
    source: str
    columns: Mapping[str, str]


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Objects of a JSONL file. Raises BadInput: with file and line, for a line that is not a JSON object."""
    rows = []
    try:
        with open(path, encoding="utf-8-sig") as f:
            text = f.read().rstrip()
            for line in text.split("\n") if text else ():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"it is of type {type(row).__name__}")
                rows.append(row)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", next_step="check the path") from None
    except (ValueError, RecursionError) as e:  # broken JSON or UTF-8, or nested too deep
        raise BadInput(f"{path}:{len(rows) + 1} is not a JSON object", found=e, next_step="correct the line") from None
    return rows


def _read_parquet(path: str | os.PathLike) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as e:
        raise BadInput(f"{path} cannot be read as Parquet", found=message_of(e), next_step="check it") from None


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


def from_file(path: str | os.PathLike, columns: Mapping[str, str] | None = None) -> Rows:
    """Rows of a .jsonl or .parquet file; `columns`: those that have not our names."""
    rows = _read_parquet(path) if Path(path).suffix == ".parquet" else read_jsonl(path)
    return Rows(rows, str(path), {**FIELDS, **(columns or {})})


def from_hub(hub: str, *, revision: str, split: str, columns: Mapping[Any, str], next_step: str) -> Rows:
    """Rows of a data set on the hub, or in the hub's cache; `source` names the commit that was loaded.

    Its ids are taken only where `columns` names them: they differ from copy to copy.

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
            found=message_of(e),
            next_step=("set HF_HUB_OFFLINE=0, or " if "OfflineModeIsEnabled" in str(e) else "") + next_step,
        ) from None
    # the hash of a hub's data set is its commit, also where the cache served it; that of a folder is not
    commit = builder.hash if _COMMIT.fullmatch(builder.hash or "") else revision
    fields = {k: v for k, v in FIELDS.items() if k != "id"}
    return Rows([dict(r) for r in data], f"{hub}@{commit}", {**fields, **columns})


def load(
    name: str, data_dir: str | os.PathLike | None = None, *, accept_variant: bool = False, strict: bool = False
) -> Benchmark:
    """A benchmark's problems in the order of their source, checked against the registry.

    Args:
        name: a registered name, in any case; or the path of a .jsonl or .parquet file with id, problem, answer. A file
            that is named like a registered benchmark is checked as that one, any other is taken as it is.
        data_dir: directory with `<name>.jsonl` (or the entry's `file`); None loads from the hub.
        accept_variant: run a copy with other rows or golds; its `variant` says what differs.
        strict: refuse copies whose problem texts differ.

    Raises:
        BadInput: for an unknown name, a missing or broken file, or a copy that is not the benchmark.
    """
    if is_file_name(name):
        path = Path(name)
        rows, name = from_file(path), name_of_file(path)
        spec = registry(path.parent).get(name) or describe(problems_of(name, None, rows), title=path.stem)
    else:
        specs = registry(data_dir)
        name = meant("benchmark", name, specs, _UNKNOWN)
        spec = specs[name]
        path = Path(data_dir) / (spec.file or f"{name}.jsonl") if data_dir is not None else None
        if path is not None and path.exists():
            rows = from_file(path)
        elif path is not None and (name in packaged() or not spec.hub):
            fetch = f"stapo-eval benchmarks --write {data_dir} --names {name} fetches it from the hub"
            raise BadInput(f"{path}: no such file", next_step=fetch if spec.hub else "check --data-dir")
        else:
            hint = f"put {name}.jsonl (fields id, problem, answer) into a directory and give it as --data-dir DIR"
            rows = from_hub(spec.hub, revision=spec.revision, split=spec.split, columns=spec.columns, next_step=hint)
    return checked(name, spec, rows, accept_variant=accept_variant, strict=strict)


def check_name(name: str, where: str) -> str:
    """The name. Raises BadInput for one that would not do as part of a cell id and a file name."""
    if not re.fullmatch(_NAME, name) or name == "avg":  # a table's average
        raise BadInput(
            f"{where}: a benchmark's name is lower case letters, digits and hyphens, and not avg",
            found=name,
            next_step="choose another name",
        )
    return name


def name_of_file(path: Path) -> str:
    """The name under which a benchmark file is loaded: its entry's beside it, else the file's own in lower case."""
    names = [n for n, s in own_entries(path.parent).items() if (s.file or f"{n}.jsonl") == path.name]
    return check_name(names[0] if names else re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-"), str(path))


def checked(name: str, spec: Spec, found: Rows, *, accept_variant: bool = False, strict: bool = False) -> Benchmark:
    """The benchmark that rows are, compared with its entry.

    Raises:
        BadInput: for another number of rows or other gold answers (unless `accept_variant`), with both values; under
            `strict` also for differing problem texts.
    """
    problems = problems_of(name, spec, found)
    golds = golds_sha256(p.answer for p in problems)
    known, texts = Counter(spec.text_hashes.split()), []
    for p in problems:
        known[h := text_hash(p.problem)] -= 1
        if known[h] < 0:
            texts.append(p.id)
    pairs = [("rows", len(problems), spec.rows), ("gold answers (sha256)", golds, spec.golds_sha256)]
    if spec.pairs_sha256 and not texts:
        pairs.append(("problems with their answers (sha256)", pairs_sha256(problems), spec.pairs_sha256))
    differs = [(what, str(ours)[:16], str(theirs)[:16]) for what, ours, theirs in pairs if ours != theirs]
    if differs and not accept_variant:
        raise BadInput(
            f"{found.source} is not the benchmark {name}",
            found=", ".join(f"{what} {ours}" for what, ours, _ in differs),
            expected=", ".join(f"{what} {theirs}" for what, _, theirs in differs),
            next_step="get the registered copy; stapo-eval run --accept-variant takes this one, and scores then say so",
        )
    if texts and strict:
        raise BadInput(
            f"{found.source}: {len(texts)} problem texts of {name} differ from the registered copy",
            found=shown(texts),
            expected="the registered texts (up to white space)",
            next_step="leave out --strict: the differing rows are then counted and named in the records",
        )
    variant = "; ".join(f"{what} {ours} instead of {theirs}" for what, ours, theirs in differs)
    return Benchmark(name, spec, problems, found.source, golds, variant, tuple(texts))


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
    if "####" in str(p.answer):  # no answer could equal it
        raise BadInput(f"{where}: the answer is a worked solution", found=str(p.answer)[-40:],
                       next_step="keep the answer alone: what stands behind #### in GSM8K")  # fmt: skip
    return p.model_copy(update={"tolerance": spec.tolerance}) if spec and p.tolerance is None else p


def problems_of(name: str, spec: Spec | None, found: Rows) -> tuple[Problem, ...]:
    """The problems of rows.

    A copy without ids gets the registry's, by a problem's text, so that the copy's order does not matter; rows with
    unknown texts get what is left, and rows of an unregistered file their place.

    Raises:
        BadInput: naming source and row, for a missing column or a value of another kind.
    """
    if not found.rows:
        raise BadInput(f"{found.source} holds no row", next_step="check the file")
    rows = [_problem(r, found.columns, spec, f"{found.source}, row {i}") for i, r in enumerate(found.rows, 1)]
    known = spec.text_hashes.split() if spec else []
    free: dict[str, list[int]] = {}
    for i, h in enumerate(known):
        free.setdefault(h, []).append(i)
    places = [where.pop(0) if (where := free.get(text_hash(p.problem))) else None for p in rows]
    left = iter([*sorted(i for rest in free.values() for i in rest), *range(len(known), len(known) + len(rows))])
    problems = []
    for p, place in zip(rows, places, strict=True):
        problem_id = p.id or f"{name}-{next(left) if place is None else place:04d}"
        problems.append(p.model_copy(update={"id": problem_id}))
    double = [i for i, c in Counter(p.id for p in problems).items() if c > 1]
    if double:
        raise BadInput(f"{found.source}: duplicate ids", found=double[:5], next_step="give each problem its own")
    return tuple(problems)


def describe(problems: Sequence[Problem], *, title: str, samples: int | None = None, **known: Any) -> Spec:
    """The entry of problems as they are: their count and hashes, and the paper's N for their number, which is 32 for
    its sets of 30 and 40 problems and 4 for the larger ones.

    Raises:
        BadInput: a value of `known`, or a number of samples, that no entry can have.
    """
    golds = [p.answer for p in problems]
    integers = all(isinstance(g, str) and _INTEGER.fullmatch(normalise_gold(g)) for g in golds)
    try:
        return Spec(
            title=title,
            rows=len(problems),
            golds_sha256=golds_sha256(golds),
            pairs_sha256=pairs_sha256(problems),
            text_hashes=" ".join(text_hash(p.problem) for p in problems),
            samples=samples or (32 if len(problems) <= 100 else 4),
            **{"answer_type": "integer" if integers else "math", **known},
        )
    except ValidationError as e:
        first = e.errors()[0]
        raise BadInput(f"{title}: no benchmark has such a {first['loc'][0]}", found=first["input"],
                       expected=first["msg"], next_step="correct it") from None  # fmt: skip


def registry_entry(path: str | os.PathLike, name: str, *, samples: int | None = None, **known: Any) -> Spec:
    """`describe` of a file, which the entry names without its folder: it stays valid beside its registry.yaml."""
    problems = problems_of(name, None, from_file(path))
    return describe(problems, samples=samples, **{"title": name, "file": Path(path).name, **known})


def write_registry(path: str | os.PathLike, entries: Mapping[str, Spec]) -> None:
    """Write `registry.yaml` with the entries by name, without what is at its default; the same bytes each time."""
    listed = {name: spec.model_dump(mode="json", exclude_defaults=True) for name, spec in entries.items()}
    value = {"schema_version": 1, "benchmarks": listed}
    write_atomic(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120))
