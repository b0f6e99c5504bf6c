"""Numbers that a paper prints outside its table, as data: what each is about, in a form that can be computed again."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stapo_repro.audit.gains import Measure, Over
from stapo_repro.audit.schema import AuditTable, Name, Percent, parse_json, validated
from stapo_results.errors import BadInput

Plain = Annotated[str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?$")]
Words = Annotated[str, Field(min_length=1, max_length=300)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    values: Annotated[list[Plain], Field(min_length=1)]
    limit: Plain


class AdvantageQuantity(_Strict):
    """Printed advantages of right answers, standardised in groups of `group_size` with rewards +1 and -1."""

    kind: Literal["advantages"]
    values: Annotated[list[Plain], Field(min_length=1)]
    group_size: Annotated[int, Field(ge=2, le=1024)]


class RecordsQuantity(_Strict):
    """Nothing that a table can give."""

    kind: Literal["records"]
    needs: Words


class Claim(_Strict):
    """One printed number."""

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
    def _once(self) -> PaperClaims:
        ids = [c.id for c in self.claims]
        if len(set(ids)) != len(ids):
            raise ValueError("two claims have one id")
        return self


def load(path: Path, table: AuditTable) -> PaperClaims:
    """The claims of a file, whose gains name what the table has.

    Raises:
        BadInput: the file is not there, does not validate, or names a column, method or group that the table lacks.
    """
    claims = validated(path, parse_json(path), PaperClaims)
    known = {"column": [c.id for c in table.columns], "group": table.groups, "method": table.methods}
    for i, c in enumerate(claims.claims):
        if not isinstance(c.quantity, GainQuantity):
            continue
        q = c.quantity
        named = [("column", q.column), *(("method", m) for m in (q.method, *q.baselines))]
        for what, name in [*named, *(("group", g) for g in q.groups)]:
            if name not in known[what]:
                raise BadInput(
                    f"{path}: claims.{i}.quantity ({c.id}) names a {what} that the table does not have",
                    found=name,
                    expected=" | ".join(known[what]),
                    next_step="correct the name, or give the table that the claims are about with --table",
                )
    return claims
