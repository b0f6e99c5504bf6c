"""A printed table and the claims about it as data, in a form that any table of accuracies fits.

docs/statistics.md describes both files for readers. Values are strings, because 7.6 and 7.60 are different prints.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a name holds characters that cannot be shown")
    return text


def _percent(text: str) -> str:
    if Decimal(text) > 100:
        raise ValueError("a percentage above 100")
    return text


def _refuse(what: str, names: Iterable[str]) -> None:
    if names := sorted(names):
        raise ValueError(f"{what}: {', '.join(names)}")


def _once(what: str, names: Iterable[str]) -> None:
    names = list(names)
    _refuse(f"{what} stands twice", {n for n in names if names.count(n) > 1})


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_printable)]
Words = Annotated[str, Field(min_length=1, max_length=300)]
Percent = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?$"), AfterValidator(_percent)]
Decimals = Annotated[str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?$")]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Measure = Literal["relative", "points"]
Over = Literal["strongest", "each"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Strict):
    """A benchmark (`rows` problems, `samples` answers to each), or the unweighted mean of other columns.

    `rows` lists the row counts to try, the presumed one first. A column with neither is compared, but not checked.
    """

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
        _once(f"{self.id}: an entry", [*map(str, self.rows), *self.mean_of])
        return self


class Row(_Strict):
    """One method inside one group: what is printed, and which values are marked best (null: nothing is marked)."""

    group: Name
    method: Name
    values: dict[Name, Percent]
    best: list[Name] | None = None


class AuditTable(_Strict):
    """A table of accuracies in percent. Inside a group the methods compete for the best value of each column."""

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
        _once("a column", ids)
        _once("a method of a group", [f"{r.group} / {r.method}" for r in self.rows])
        _refuse(
            "mean_of names no plain column", {m for c in self.means for m in c.mean_of} - {c.id for c in self.plain}
        )
        for row in self.rows:
            where = f"{row.group} / {row.method}"
            _refuse(f"{where} has unknown columns", {*row.values, *(row.best or [])} - set(ids))
            _refuse(f"{where} marks what has no value", set(row.best or []) - set(row.values))
        _refuse("proposed is no method of the table", {self.proposed or self.rows[0].method} - set(self.methods))
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

    def competing(self, group: str, column: str) -> list[Row]:
        """The rows of a group with a value in the column."""
        return [r for r in self.rows if r.group == group and column in r.values]

    def label(self, name: str) -> str:
        return self.labels.get(name, name)

    def where(self, row: Row, column: str) -> str:
        """A cell in words."""
        return ", ".join(map(self.label, (row.group, row.method, column)))


class GainQuantity(_Strict):
    """A gain of one method, averaged over groups; over all other methods where `baselines` is empty.

    `measure` and `over` are null where the text does not say which is meant.
    """

    kind: Literal["gain"]
    method: Name
    baselines: list[Name] = []
    column: Name
    groups: Annotated[list[Name], Field(min_length=1)]
    measure: Measure | None = None
    over: Over | None = None


class BelowQuantity(_Strict):
    """Printed values that should all lie below a limit."""

    kind: Literal["below"]
    values: Annotated[list[Decimals], Field(min_length=1)]
    limit: Decimals


class AdvantageQuantity(_Strict):
    """Printed advantages of right answers, standardised in groups of `group_size` with rewards +1 and -1."""

    kind: Literal["advantages"]
    values: Annotated[list[Decimals], Field(min_length=1)]
    group_size: Annotated[int, Field(ge=2, le=1024)]


class RecordsQuantity(_Strict):
    """What no table can give."""

    kind: Literal["records"]
    needs: Words


class Claim(_Strict):
    """One number that the paper prints outside of its table."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9.-]+$")]
    version: Name
    date: datetime.date | None = None
    place: Words
    about: Words
    value: Percent | None = None
    qualifier: Literal["about", "below"] | None = None
    unit: Name | None = None
    quantity: Annotated[GainQuantity | BelowQuantity | AdvantageQuantity | RecordsQuantity, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _value_of_a_gain(self) -> Claim:
        if self.quantity.kind == "gain" and self.value is None:
            raise ValueError(f"{self.id}: a gain needs its printed value")
        return self


class PaperClaims(_Strict):
    """The file of claims."""

    schema_version: Literal[1]
    source: Name
    claims: Annotated[list[Claim], Field(min_length=1)]

    @model_validator(mode="after")
    def _ids(self) -> PaperClaims:
        _once("a claim's id", [c.id for c in self.claims])
        return self
