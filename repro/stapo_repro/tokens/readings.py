"""What two readers say of a sheet of rare tokens (`labelling`): agreement, and the labels by mask.

A reading is a file of lines {"id": "017", "label": "harmful" | "neutral" | "useful"}, one for each line of the sheet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.tables import shown, signed
from stapo_repro.tables.render import grid
from stapo_repro.tokens import planted
from stapo_repro.tokens.labelling import MASKS, Drawn, Hidden, Shown
from stapo_repro.tokens.shares import Interval, Share, Sums, percentiles
from stapo_results import store
from stapo_results.errors import RecordError
from stapo_results.schema import Record
from stapo_results.statistics import resampled_sums

Label = Literal["harmful", "neutral", "useful"]
LABELS: tuple[Label, ...] = get_args(Label)


class Reading(BaseModel):
    """A line of a reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    label: Label


def read_labels(file: Path, sheet: Sequence[Shown]) -> dict[str, Label]:
    """A reading, by id. Raises: RecordError for an id that is missing, twice, or not on the sheet."""
    lines = list(store.read(file, Reading))
    wanted, count = {s.id for s in sheet}, Counter(x.id for x in lines)
    kinds = {
        "missing": wanted - count.keys(),
        "not on the sheet": count.keys() - wanted,
        "twice": {i for i, n in count.items() if n > 1},
    }
    if wrong := "; ".join(f"{kind}: {', '.join(sorted(ids)[:5])}" for kind, ids in kinds.items() if ids):
        expected = f"each of the {len(wanted)} ids once"
        again = f"correct these lines of {file}, then the same command again"
        raise RecordError(f"{file} is no reading of this sheet", found=wrong, expected=expected, next_step=again)
    return {x.id: x.label for x in lines}


@dataclass(frozen=True)
class Labelled:
    """What two readings say.

    Attributes:
        tokens: how many were read.
        table: (first reading's label, second's) -> tokens.
        agreement: share of equal labels. kappa: Cohen's, of the unweighted tokens.
        shares: mask -> label -> share among the tokens that it would silence, the mean of both readings, weighted so
            that silenced and kept tokens count as often as they occur.
        differences: mask -> label -> S2T's share less this mask's, in the same draws.
    """

    tokens: int
    table: dict[tuple[Label, Label], int]
    agreement: Share
    kappa: Interval
    shares: dict[str, dict[str, Share]]
    differences: dict[str, dict[str, Interval]]


def score(key: Sequence[Hidden], first: Mapping[str, Label], second: Mapping[str, Label]) -> Labelled:
    """Agreement, and the labels by mask, with 95 % intervals over prompts."""
    both: list[tuple[Label, Label]] = [(first[k.id], second[k.id]) for k in key]
    _, prompt_N = np.unique([f"{k.run}\0{k.prompt_id}" for k in key], return_inverse=True)
    weight_N = np.array([k.weight for k in key])
    columns = {"all": np.ones(len(key)), "equal": np.array([float(a == b) for a, b in both])}
    for mask in MASKS:
        columns[mask] = weight_N * [k.masks[mask] for k in key]
        for label in LABELS:
            columns[f"{mask} {label}"] = columns[mask] * [((a == label) + (b == label)) / 2 for a, b in both]
    sums = Sums(prompt_N, columns, "prompts")
    return Labelled(
        tokens=len(key),
        table={(a, b): both.count((a, b)) for a in LABELS for b in LABELS},
        agreement=sums.share("equal", "all"),
        kappa=_kappa(prompt_N, both),
        shares={m: {label: sums.share(f"{m} {label}", m) for label in LABELS} for m in MASKS},
        differences={
            m: {x: sums.difference((f"{planted.S2T} {x}", planted.S2T), (f"{m} {x}", m)) for x in LABELS}
            for m in MASKS[1:]
        },
    )


def _kappa(prompt_N: np.ndarray, both: Sequence[tuple[Label, Label]]) -> Interval:
    """Cohen's kappa (1960) with its percentile interval over draws of prompts; no number where chance explains all."""
    pairs = [(a, b) for a in LABELS for b in LABELS]
    counts_CK = np.zeros((int(prompt_N.max()) + 1, len(pairs)))
    for c, pair in zip(prompt_N, both, strict=True):
        counts_CK[c, pairs.index(pair)] += 1

    def kappa(counts_BK: np.ndarray) -> np.ndarray:
        table = counts_BK.reshape(-1, len(LABELS), len(LABELS))
        n = table.sum(axis=(1, 2))
        observed = np.trace(table, axis1=1, axis2=2) / n
        chance = (table.sum(axis=2) * table.sum(axis=1)).sum(axis=1) / n**2
        return np.divide(observed - chance, 1 - chance, out=np.full(len(n), np.nan), where=chance < 1)

    return percentiles(float(kappa(counts_CK.sum(axis=0)[None])[0]), kappa(resampled_sums(counts_CK)))


Printed = tuple[float | None, float | None, float | None]
"""A value and the ends of its interval."""


class LabelRecord(Record):
    """labels.json: shares and differences in percent. readings: SHA-256 of both files. table: first reading's label,
    second's, tokens. shares, differences: see `Labelled`."""

    drawn: Drawn
    readings: tuple[str, str]
    tokens: int
    table: dict[str, dict[str, int]]
    agreement: Printed
    kappa: Printed
    shares: dict[str, dict[str, Printed]]
    differences: dict[str, dict[str, Printed]]


def to_record(found: Labelled, drawn: Drawn, readings: tuple[str, str]) -> LabelRecord:
    """What is written."""
    return LabelRecord(
        drawn=drawn,
        readings=readings,
        tokens=found.tokens,
        table={a: {b: found.table[a, b] for b in LABELS} for a in LABELS},
        agreement=_printed(found.agreement),
        kappa=_printed(found.kappa, 1.0),
        shares={m: {x: _printed(s) for x, s in by.items()} for m, by in found.shares.items()},
        differences={m: {x: _printed(d) for x, d in by.items()} for m, by in found.differences.items()},
    )


def _printed(i: Interval, factor: float = 100.0) -> Printed:
    value, low, high = (None if x is None else round(factor * x, 8) for x in (i.value, i.low, i.high))
    return value, low, high


def to_markdown(r: LabelRecord) -> list[str]:
    """Agreement in a sentence, the labels by mask as a table."""
    rows = [[planted.NAMES[m], *(_text(r.shares[m][x]) for x in LABELS)] for m in MASKS]
    for m in MASKS[1:]:
        differences = (_text(r.differences[m][x], sign=True) for x in LABELS)
        rows.append([f"S2T minus {planted.NAMES[m]}", *differences])
    return [
        f"{r.tokens} tokens, read twice: {_text(r.agreement)} % equal, Cohen's kappa {_text(r.kappa, 2)}.",
        "",
        *grid(("Tokens that the mask silences", *(f"{x} (%)" for x in LABELS)), rows),
    ]


def _text(p: Printed, digits: int = 1, *, sign: bool = False) -> str:
    value, low, high = p
    if value is None:
        return "n/a"
    ends = "" if low is None else f" ({shown(low, digits)} to {shown(high, digits)})"
    return f"{(signed if sign else shown)(value, digits)}{ends}"
