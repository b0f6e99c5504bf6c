"""A printed table as data, in a form that any table of accuracies fits; and how such a file is read.

The form is described for readers in docs/statistics.md. Values are strings, because 7.6 and 7.60 are different prints.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from stapo_results.errors import BadInput


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a name holds characters that cannot be shown")
    return text


def _percent(text: str) -> str:
    if Decimal(text) > 100:
        raise ValueError("a percentage above 100")
    return text


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_printable)]
Percent = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?$"), AfterValidator(_percent)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Column(BaseModel):
    """A benchmark (`rows` problems, `samples` answers to each), or the unweighted mean of other columns.

    `rows` lists the row counts to try, the presumed one first. A column with neither is compared, but not checked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Name
    rows: list[Count] = []
    samples: Count | None = None
    mean_of: list[Name] = []

    @model_validator(mode="after")
    def _one_kind(self) -> Column:
        if bool(self.rows) != (self.samples is not None):
            raise ValueError(f"{self.id}: rows and samples go together")
        if self.rows and self.mean_of:
            raise ValueError(f"{self.id}: either rows and samples, or mean_of")
        if len(set(self.rows)) != len(self.rows) or len(set(self.mean_of)) != len(self.mean_of):
            raise ValueError(f"{self.id}: an entry of rows or mean_of stands twice")
        return self


class Row(BaseModel):
    """One method inside one group: what is printed, and which values are marked best (null: nothing is marked)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group: Name
    method: Name
    values: dict[Name, Percent]
    best: list[Name] | None = None


class AuditTable(BaseModel):
    """A table of accuracies in percent. Inside a group the methods compete for the best value of each column."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    source: Name
    version: Name | None = None
    proposed: Name | None = None
    columns: Annotated[list[Column], Field(min_length=1)]
    rows: Annotated[list[Row], Field(min_length=1)]
    labels: dict[Name, Name] = {}

    @model_validator(mode="after")
    def _consistent(self) -> AuditTable:
        ids = [c.id for c in self.columns]
        if len(set(ids)) != len(ids):
            raise ValueError("two columns have one id")
        plain = {c.id for c in self.columns if not c.mean_of}
        for c in self.columns:
            if unknown := set(c.mean_of) - plain:
                raise ValueError(f"column {c.id}: mean_of names {sorted(unknown)}, which are no plain columns")
        seen = set()
        for i, row in enumerate(self.rows):
            if (row.group, row.method) in seen:
                raise ValueError(f"rows.{i}: {row.group} / {row.method} stands twice")
            seen.add((row.group, row.method))
            if unknown := (set(row.values) | set(row.best or [])) - set(ids):
                raise ValueError(f"rows.{i}: unknown columns {sorted(unknown)}")
            if unprinted := set(row.best or []) - set(row.values):
                raise ValueError(f"rows.{i}: {sorted(unprinted)} are marked best and have no value")
        if self.proposed is not None and self.proposed not in {r.method for r in self.rows}:
            raise ValueError(f"proposed: no row of the method {self.proposed}")
        return self

    @property
    def groups(self) -> list[str]:
        """Group ids in order of appearance."""
        return list(dict.fromkeys(r.group for r in self.rows))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(r.method for r in self.rows))

    @property
    def plain(self) -> list[Column]:
        """The columns that are no means of others."""
        return [c for c in self.columns if not c.mean_of]

    @property
    def means(self) -> list[Column]:
        return [c for c in self.columns if c.mean_of]

    def of_group(self, group: str) -> list[Row]:
        return [r for r in self.rows if r.group == group]

    def label(self, name: str) -> str:
        return self.labels.get(name, name)

    def where(self, row: Row, column: str | None = None) -> str:
        """A row or a cell in words."""
        parts = [row.group, row.method] + ([column] if column is not None else [])
        return ", ".join(self.label(p) for p in parts)


M = TypeVar("M", bound=BaseModel)
_HELP = 'docs/statistics.md shows the form of the file; printed values are strings, as in "7.60": trailing zeros count'


def parse_json(path: Path) -> object:
    """A JSON file whose keys stand once.

    Raises:
        BadInput: no such file, not UTF-8, not JSON, or a key stands twice in one object.
    """
    if not path.is_file():
        raise BadInput("no such file", found=path, next_step="check the path")
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=partial(_once, path))
    except json.JSONDecodeError as e:
        where, what = f"{path}:{e.lineno}", f"column {e.colno}: {e.msg}"
    except UnicodeDecodeError as e:
        where, what = str(path), f"byte {e.start} is not UTF-8"
    except RecursionError:
        where, what = str(path), "too many nested brackets"
    raise BadInput(f"{where}: not JSON", found=what, expected="a JSON object", next_step=_HELP)


def _once(path: Path, pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [k for k, _ in pairs]
    if twice := sorted({k for k in keys if keys.count(k) > 1}):
        raise BadInput(f"{path}: a key stands twice in one object", found=twice[0][:80], expected="each key once")
    return dict(pairs)


def validated(path: Path, data: object, model: type[M]) -> M:
    """`data` as a model.

    Raises:
        BadInput: with the file, the key of the first fault, what stands there and what is expected.
    """
    try:
        return model.model_validate(data)
    except ValidationError as e:
        errors = e.errors()
        first = errors[0]
        key = ".".join(map(str, first["loc"])) or "the whole file"
        found = repr(first.get("input")) if first["type"] != "missing" else "nothing"
        more = f" (and {len(errors) - 1} more faults)" if len(errors) > 1 else ""
        raise BadInput(
            f"{path}: {key} is not as it should be{more}",
            found=found if len(found) <= 100 else f"{found[:97]}...",
            expected=first["msg"].removeprefix("Value error, "),
            next_step=_HELP,
        ) from None
