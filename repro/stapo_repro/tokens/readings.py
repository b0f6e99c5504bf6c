"""What two readers say of a sheet of rare tokens (`labelling`): agreement, and the labels by mask.

A reading is a file of lines {"id": "017", "label": "harmful" | "neutral" | "useful"}, one for each line of the sheet.
labels.json holds both labels of every token; agreement and shares are computed from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from stapo_repro.text import grid, model_text, shown, signed
from stapo_repro.tokens import labelling, planted
from stapo_repro.tokens.labelling import Drawn, Hidden, Shown
from stapo_repro.tokens.logged_run import marked
from stapo_repro.tokens.shares import Interval, Share, Sums, percentiles
from stapo_results import store
from stapo_results.errors import RecordError
from stapo_results.schema import Record
from stapo_results.statistics import resampled_sums

Label = Literal["harmful", "neutral", "useful"]
LABELS: tuple[Label, ...] = get_args(Label)
FILE = "labels.json"
KEPT = "kept"
_NAMES = planted.NAMES | {KEPT: "rare tokens that S2T keeps"}
# the random mask's shares are those of all rare tokens, of which S2T's are a part
_ROWS, _LESS = (planted.S2T, KEPT, planted.HIGH, planted.FULL), (KEPT, planted.HIGH)
_AROUND = 60  # characters on each side of a token in the record
_EACH = 4  # cases that a page shows of one kind


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
        shares: mask -> label -> share among the tokens that it would silence (KEPT: that S2T would not), the mean of
            both readings, weighted so that silenced and kept tokens count as often as they occur.
        differences: mask -> label -> S2T's share less this one's, in the same draws.
        alone: label -> the same against KEPT, by each reader alone.
    """

    tokens: int
    table: dict[tuple[Label, Label], int]
    agreement: Share
    kappa: Interval
    shares: dict[str, dict[str, Share]]
    differences: dict[str, dict[str, Interval]]
    alone: tuple[dict[str, Interval], dict[str, Interval]]


class LabelledToken(Hidden):
    """A line of the key with what both readers said. before, after: characters around it, `_AROUND` at most."""

    before: str
    token: str
    after: str
    labels: tuple[Label, Label]


class LabelRecord(Record):
    """labels.json. sheet: SHA-256 of sheet.jsonl; readings: of both files."""

    drawn: Drawn
    sheet: str
    readings: tuple[str, str]
    tokens: list[LabelledToken]


def joined(
    sheet: Sequence[Shown], key: Sequence[Hidden], first: Mapping[str, Label], second: Mapping[str, Label]
) -> list[LabelledToken]:
    """Sheet, key and both readings, token by token. Whole responses stay behind.

    Raises:
        RecordError: sheet and key are not of one drawing, or not in one order.
    """
    shown, hidden = [s.id for s in sheet], [k.id for k in key]
    if shown != hidden:
        first_apart = next(((a, b) for a, b in zip_longest(shown, hidden, fillvalue="nothing") if a != b))
        raise RecordError("the sheet and its key do not go together", found=" beside ".join(first_apart),
                          expected="the same ids in one order",
                          next_step="take both as stapo-repro label wrote them")  # fmt: skip
    return [
        LabelledToken(
            **k.model_dump(), before=s.before[-_AROUND:], token=s.token, after=s.after[:_AROUND],
            labels=(first[k.id], second[k.id]),
        )
        for s, k in zip(sheet, key, strict=True)
    ]  # fmt: skip


def score(key: Sequence[LabelledToken]) -> Labelled:
    """Agreement, and the labels by mask, with 95 % intervals over prompts."""
    both = [k.labels for k in key]
    _, prompt_N = np.unique([f"{k.run}\0{k.prompt_id}" for k in key], return_inverse=True)
    weight_N = np.array([k.weight for k in key])
    columns = {"all": np.ones(len(key)), "equal": np.array([float(a == b) for a, b in both])}
    for mask in _ROWS:
        columns[mask] = weight_N * [1 - k.masks[planted.S2T] if mask == KEPT else k.masks[mask] for k in key]
        for label in LABELS:
            columns[f"{mask} {label}"] = columns[mask] * [((a == label) + (b == label)) / 2 for a, b in both]
            for reader in (0, 1):
                columns[f"{mask} {label} {reader}"] = columns[mask] * [labels[reader] == label for labels in both]
    sums = Sums(prompt_N, columns, "prompts")

    def difference(mask: str, share: str) -> Interval:
        return sums.difference((f"{planted.S2T} {share}", planted.S2T), (f"{mask} {share}", mask))

    return Labelled(
        tokens=len(key),
        table={(a, b): both.count((a, b)) for a in LABELS for b in LABELS},
        agreement=sums.share("equal", "all"),
        kappa=_kappa(prompt_N, both),
        shares={m: {label: sums.share(f"{m} {label}", m) for label in LABELS} for m in _ROWS},
        differences={m: {x: difference(m, x) for x in LABELS} for m in _LESS},
        alone=({x: difference(KEPT, f"{x} 0") for x in LABELS}, {x: difference(KEPT, f"{x} 1") for x in LABELS}),
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


def to_markdown(found: Labelled) -> list[str]:
    """Agreement in a sentence, the labels by mask as a table."""
    rows = [[_NAMES[m], *(_text(found.shares[m][x]) for x in LABELS)] for m in _ROWS]
    differences = {
        f"S2T minus {_NAMES[KEPT]}": found.differences[KEPT],
        "the first reader alone": found.alone[0],
        "the second reader alone": found.alone[1],
        f"S2T minus {_NAMES[planted.HIGH]}": found.differences[planted.HIGH],
    }
    for name, difference in differences.items():
        rows.append([name, *(_text(difference[x], sign=True) for x in LABELS)])
    return [
        f"{found.tokens} tokens, read twice: {_text(found.agreement)} % equal, "
        f"Cohen's kappa {_text(found.kappa, 2, factor=1)}.",
        "",
        *grid(("Tokens that the mask silences", *(f"{x} (%)" for x in LABELS)), rows),
    ]


def _text(i: Interval, digits: int = 1, *, factor: float = 100, sign: bool = False) -> str:
    if i.value is None:
        return "n/a"
    low, high = (None if x is None else shown(factor * x, digits) for x in (i.low, i.high))
    ends = "" if low is None else f" ({low} to {high})"
    return f"{(signed if sign else shown)(factor * i.value, digits)}{ends}"


def page_block(folder: Path) -> str:
    """The committed sample: what was drawn, agreement, labels by mask, the readers against each other, cases.

    Args:
        folder: with labels.json.

    Raises:
        RecordError: a broken record.
    """
    if not (folder / FILE).exists():
        return "No sample of real text has been labelled yet."
    record = store.read_json(folder / FILE, LabelRecord)
    found, (silenced, kept) = score(record.tokens), labelling.PARTS
    drawn = (f"{record.drawn.drawn[part]} of {record.drawn.there[part]:,} that S2T {what}"
             for part, what in ((silenced, "silences"), (kept, "keeps")))  # fmt: skip
    table = [[a, *(str(found.table[a, b]) for b in LABELS)] for a in LABELS]
    return "\n".join([
        f"Drawn: {' and '.join(drawn)}.", "", *to_markdown(found), "",
        *grid(("First reader, down; second, across", *LABELS), table), "",
        f"The first {_EACH} of each kind on which both readers agree, then {2 * _EACH} on which they do not:", "",
        *grid(("Response, <b>the token</b>", "p", "Entropy (nats)", "S2T", "Readers"), _cases(record.tokens)),
    ])  # fmt: skip


def _cases(tokens: Sequence[LabelledToken]) -> list[list[str]]:
    alike = [[t for t in tokens if t.labels == (x, x) and bool(t.masks[planted.S2T]) == s]
             for x in LABELS for s in (True, False)]  # fmt: skip
    apart = [t for t in tokens if t.labels[0] != t.labels[1]]
    return [
        [
            f"{model_text(t.before)}<b>{model_text(marked(t.token))}</b>{model_text(t.after)}",
            f"{t.probability:.1e}",
            f"{t.entropy:.2f}",
            "silences" if t.masks[planted.S2T] else "keeps",
            " / ".join(dict.fromkeys(t.labels)),
        ]
        for t in [t for kind in alike for t in kind[:_EACH]] + apart[: 2 * _EACH]
    ]
