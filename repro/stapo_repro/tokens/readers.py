"""What two readers who did not know the mask said of a sample of rare tokens: agreement, and their labels by mask.

The sample was drawn and read once; results/records/labels/README.md says how. labels.json holds what each mask does
with every token and both labels of it; everything printed is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict

from stapo_repro.text import grid
from stapo_repro.tokens import masks
from stapo_repro.tokens.log import in_text
from stapo_repro.tokens.masks import HIGH, S2T, Interval, Share, Sums
from stapo_results import store
from stapo_results.schema import Record
from stapo_results.statistics import resampled_sums

Label = Literal["harmful", "neutral", "useful"]
LABELS: tuple[Label, ...] = get_args(Label)
FILE = "labels.json"
KEPT = "rare tokens that S2T keeps"
_EACH = 4  # cases that the page shows of one kind


class LabelledToken(BaseModel):
    """A rare token, where it stands in the log of `run`, and what both readers said of it.

    Attributes:
        weight: how many rare tokens of its part (silenced by S2T, kept) it stands for.
        masks: the chance with which each mask silences it (`masks.weights`).
        before, after: characters around it, 60 at most.
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


class Drawn(Record):
    """there, drawn: tokens by part. logs: run -> file -> SHA-256 of what was read."""

    seed: int
    each: int
    there: dict[str, int]
    drawn: dict[str, int]
    logs: dict[str, dict[str, str]]


class LabelRecord(Record):
    """labels.json. sheet: SHA-256 of what the readers saw; readings: of both files of labels."""

    drawn: Drawn
    sheet: str
    readings: tuple[str, str]
    tokens: list[LabelledToken]


def score(tokens: Sequence[LabelledToken]) -> tuple[Share, Interval, dict[str, list[Interval]]]:
    """Agreement and the labels by mask, with 95 % intervals over prompts.

    Returns:
        The share of equal labels; Cohen's kappa; name -> an interval for each of LABELS. Of a mask it is the share
        among the tokens that it would silence (KEPT: that S2T would not), the mean of both readings, weighted so that
        silenced and kept tokens count as often as they occur. The other rows are S2T's shares minus these.
    """
    _, prompt_N = np.unique([f"{t.run}\0{t.prompt_id}" for t in tokens], return_inverse=True)
    weight_N = np.array([t.weight for t in tokens])
    silenced = {
        name: weight_N * [t.masks[mask] for t in tokens] for mask, name in masks.NAMES.items() if mask != masks.RANDOM
    }  # the random mask's shares are those of all rare tokens, of which S2T's are a part
    silenced[KEPT] = weight_N - silenced["S2T"]
    columns = {"all": np.ones(len(tokens)), "equal": np.array([t.labels[0] == t.labels[1] for t in tokens], float)}
    for name, of_mask in silenced.items():
        columns[name] = of_mask
        for label in LABELS:
            said = np.array([[x == label for x in t.labels] for t in tokens], float)
            columns[f"{name} {label}"] = of_mask * said.mean(axis=1)
            columns |= {f"{name} {label} {reader}": of_mask * said[:, reader] for reader in (0, 1)}
    sums = Sums(prompt_N, columns)

    def minus(name: str, reader: str = "") -> list[Interval]:
        return [sums.difference((f"S2T {x}{reader}", "S2T"), (f"{name} {x}{reader}", name)) for x in LABELS]

    order = ("S2T", KEPT, masks.NAMES[HIGH], masks.NAMES[masks.FULL])
    rows: dict[str, list[Interval]] = {name: [sums.share(f"{name} {x}", name) for x in LABELS] for name in order}
    rows[f"S2T minus {KEPT}"] = minus(KEPT)
    rows["the first reader alone"] = minus(KEPT, " 0")
    rows["the second reader alone"] = minus(KEPT, " 1")
    rows[f"S2T minus {masks.NAMES[HIGH]}"] = minus(masks.NAMES[HIGH])
    return sums.share("equal", "all"), _kappa(prompt_N, tokens), rows


def _kappa(prompt_N: np.ndarray, tokens: Sequence[LabelledToken]) -> Interval:
    """Cohen's kappa (1960) with its percentile interval over draws of prompts; no number where chance explains all."""
    counts_C = np.zeros((int(prompt_N.max()) + 1, len(LABELS), len(LABELS)))
    for c, t in zip(prompt_N, tokens, strict=True):
        counts_C[c, LABELS.index(t.labels[0]), LABELS.index(t.labels[1])] += 1

    def kappa(table_B: np.ndarray) -> np.ndarray:
        n = table_B.sum(axis=(1, 2))
        observed = np.trace(table_B, axis1=1, axis2=2) / n
        chance = (table_B.sum(axis=2) * table_B.sum(axis=1)).sum(axis=1) / n**2
        return np.divide(observed - chance, 1 - chance, out=np.full(len(n), np.nan), where=chance < 1)

    drawn_B = resampled_sums(counts_C.reshape(len(counts_C), -1)).reshape(-1, *counts_C.shape[1:])
    return masks.percentiles(float(kappa(counts_C.sum(axis=0)[None])[0]), kappa(drawn_B))


def section(file: Path) -> list[str]:
    """Markdown of a labels.json: what was drawn, agreement, labels by mask, the readers against each other, cases.

    Raises:
        RecordError: a broken record.
    """
    record = store.read_json(file, LabelRecord)
    (equal, kappa, rows), both = score(record.tokens), [t.labels for t in record.tokens]
    texts = [[name, *(x.text(1, 100, sign=not isinstance(x, Share)) for x in row)] for name, row in rows.items()]
    table = [[a, *(str(both.count((a, b))) for b in LABELS)] for a in LABELS]
    kinds = [[t for t in record.tokens if t.labels == (x, x) and bool(t.masks[S2T]) == silenced]
             for x in LABELS for silenced in (True, False)]  # fmt: skip
    apart = [t for t in record.tokens if t.labels[0] != t.labels[1]]
    cases = [
        [
            in_text(t.before, t.token, t.after),
            f"{t.probability:.1e}",
            f"{t.entropy:.2f}",
            "silences" if t.masks[S2T] else "keeps",
            " / ".join(dict.fromkeys(t.labels)),
        ]
        for t in [t for kind in kinds for t in kind[:_EACH]] + apart[: 2 * _EACH]
    ]
    parts = (("silenced", "silences"), ("kept", "keeps"))
    drawn = [f"{record.drawn.drawn[part]} of {record.drawn.there[part]:,} that S2T {what}" for part, what in parts]
    return [
        f"Drawn: {' and '.join(drawn)}.",
        "",
        f"{len(both)} tokens, read twice: {equal.text(1, 100)} % equal, Cohen's kappa {kappa.text(2)}.",
        "",
        *grid(("Tokens that the mask silences", *(f"{x} (%)" for x in LABELS)), texts),
        "",
        *grid(("First reader, down; second, across", *LABELS), table),
        "",
        f"The first {_EACH} of each kind on which both readers agree, then {2 * _EACH} on which they do not:",
        "",
        *grid(("Response, <b>the token</b>", "p", "Entropy (nats)", "S2T", "Readers"), cases),
    ]
