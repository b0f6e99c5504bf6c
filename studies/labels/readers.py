"""What two readers who did not know the mask said of a sample of rare tokens: agreement, and their labels by mask.

The sample was drawn and read once; results/records/labels/README.md says how. Everything printed is computed from
labels.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict

from stapo_repro.text import grid, number_shown
from stapo_repro.tokens.log import in_text
from stapo_repro.tokens.shares import Sums, interval
from stapo_results import store
from stapo_results.schema import Record
from stapo_results.statistics import Number
from studies.masks import FULL, HIGH, NAMES, S2T

Label = Literal["harmful", "neutral", "useful"]
LABELS: tuple[Label, ...] = get_args(Label)
FILE = "labels.json"
KEPT = "rare tokens that S2T keeps"
_EACH = 4  # cases that the page shows of one kind


class LabelledToken(BaseModel):
    """A rare token, its place in the log of `run`, and what both readers said of it.

    Attributes:
        weight: how many rare tokens of its part (silenced by S2T, kept) it represents.
        masks: the chance with which each mask silences it (`masks.weights`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    weight: float
    masks: dict[str, float]
    run: str
    step: int
    prompt_id: str
    sample: int
    position: int
    probability: float
    entropy: float
    before: str
    token: str
    after: str
    labels: tuple[Label, Label]


class LabelRecord(Record):
    """labels.json. drawn: how, of which logs; sheet, readings: SHA-256 of what the readers saw and of their labels."""

    drawn: dict[str, Any]
    sheet: str
    readings: tuple[str, str]
    tokens: list[LabelledToken]


def different(tokens: Sequence[LabelledToken]) -> list[LabelledToken]:
    """Each token once: trainings that begin with the same weights and seeds make the same responses at first."""
    once = {(t.prompt_id, t.sample, t.position, t.before, t.token, t.after): t for t in reversed(tokens)}
    return list(once.values())[::-1]


def score(tokens: Sequence[LabelledToken]) -> tuple[Number, Number, dict[str, list[Number]]]:
    """Agreement and the labels by mask, with 95 % intervals over prompts.

    Returns:
        The share of equal labels; Cohen's kappa (1960); name -> a number for each of LABELS. Of a mask it is the share
        among the tokens that it would silence (KEPT: that S2T would not), the mean of both readings, weighted by how
        many rare tokens each drawn one stands for. The other rows are S2T's shares minus these.
    """
    _, prompt_N = np.unique([t.prompt_id for t in tokens], return_inverse=True)
    weight_N = np.array([t.weight for t in tokens])
    silenced = {NAMES[m]: weight_N * [t.masks[m] for t in tokens] for m in (S2T, HIGH, FULL)}
    silenced[KEPT] = weight_N - silenced["S2T"]
    columns = {"all": np.ones(len(tokens)), "equal": np.array([t.labels[0] == t.labels[1] for t in tokens]), **silenced}
    for label in LABELS:
        first, second = np.array([[x == label for x in t.labels] for t in tokens], float).T
        for reader, said in {"": (first + second) / 2, " 0": first, " 1": second}.items():
            columns[label + reader] = said
            columns |= {f"{name} {label}{reader}": of_mask * said for name, of_mask in silenced.items()}
    sums = Sums(prompt_N, columns)

    def minus(name: str, reader: str = "") -> list[Number]:
        return [sums.difference((f"S2T {x}{reader}", "S2T"), (f"{name} {x}{reader}", name)) for x in LABELS]

    order = ("S2T", KEPT, NAMES[HIGH], NAMES[FULL])
    rows = {name: [sums.share(f"{name} {x}", name) for x in LABELS] for name in order}
    rows[f"S2T minus {KEPT}"] = minus(KEPT)
    rows["the first reader alone"] = minus(KEPT, " 0")
    rows["the second reader alone"] = minus(KEPT, " 1")
    rows[f"S2T minus {NAMES[HIGH]}"] = minus(NAMES[HIGH])
    chance = sum((sums.ratio(f"{x} 0", "all") * sums.ratio(f"{x} 1", "all") for x in LABELS), np.zeros(()))
    with np.errstate(invalid="ignore"):  # where chance explains all there is no kappa
        kappa = (sums.ratio("equal", "all") - chance) / (1 - chance)
    return sums.share("equal", "all"), interval(kappa), rows


def _by_probability(tokens: Sequence[LabelledToken]) -> str:
    """The share of harmful labels among the tokens of a range of probabilities, without an interval."""
    parts = []
    for low, high in ((0.0, 1e-5), (1e-5, 5e-4), (5e-4, 1.0)):
        labels = [x == "harmful" for t in tokens if low <= t.probability < high for x in t.labels]
        where = f"below {high:g}" if not low else f"from {low:g}" + (f" to {high:g}" if high < 1 else "")
        parts.append(
            f"{100 * sum(labels) / len(labels):.1f} % {where} ({len(labels) // 2})" if labels else f"none {where}"
        )
    return ", ".join(parts)


def section(file: Path) -> list[str]:
    """Markdown of a labels.json: what was drawn, agreement, labels by mask, the readers against each other, cases.

    Raises:
        RecordError: a broken record.
    """
    record = store.read_json(file, LabelRecord)
    tokens = different(record.tokens)  # agreement is of these; a share is of all rows of the logs, repeated ones too
    (equal, kappa, _), (*_, rows), both = score(tokens), score(record.tokens), [t.labels for t in tokens]
    drawn = [f"{record.drawn['drawn'][part]} of {record.drawn['there'][part]:,} that S2T {what}"
             for part, what in (("silenced", "silences or would silence"), ("kept", "keeps"))]  # fmt: skip
    texts = [[name, *(number_shown(x, 1, 100, sign=not x.whole) for x in row)] for name, row in rows.items()]
    kinds = [[t for t in tokens if t.labels == (x, x) and bool(t.masks[S2T]) == silenced][:_EACH]
             for x in LABELS for silenced in (True, False)]  # fmt: skip
    apart = [t for t in tokens if t.labels[0] != t.labels[1]][: 2 * _EACH]
    cases = [[in_text(t.before, t.token, t.after), f"{t.probability:.1e}", f"{t.entropy:.2f}",
              "silences" if t.masks[S2T] else "keeps", " / ".join(dict.fromkeys(t.labels))]
             for t in chain(*kinds, apart)]  # fmt: skip
    return [
        f"Drawn: {' and '.join(drawn)}.", "",
        f"{len(both)} different tokens, read twice: {number_shown(equal, 1, 100)} % equal, "
        f"Cohen's kappa {number_shown(kappa, 2)}. Shares by mask are of all {len(record.tokens)}, weighted.", "",
        *grid(("Tokens that the mask silences", *(f"{x} (%)" for x in LABELS)), texts), "",
        f"Called harmful by probability, of the {len(both)}, seen afterwards: {_by_probability(tokens)}.", "",
        *grid(("First reader, down; second, across", *LABELS),
              [[a, *(str(both.count((a, b))) for b in LABELS)] for a in LABELS]), "",
        f"The first {_EACH} of each kind on which both readers agree, then {2 * _EACH} on which they do not:", "",
        *grid(("Response, <b>the token</b>", "p", "Entropy (nats)", "S2T", "Readers"), cases),
    ]  # fmt: skip
