"""What each mask silences of a training's tokens, by class: a pure function of the token log, small enough to commit.

A class is spurious (a planted filler), useful (a planted word that leads to right answers) or other. Only tokens of
responses with a positive advantage count, as in `stapo_repro.tokens.masks`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from stapo_repro.tokens import masks
from stapo_results import store, token_log
from stapo_results.errors import RecordError
from stapo_results.schema import Record
from stapo_results.token_log import TokenLog

FILE = "planted.json"
QS, TAUS = (0.25, 0.5, 0.75), (0.0002, 0.002)
MASKS = (*((mask, q) for q in QS for mask in (masks.S2T, masks.HIGH, masks.RANDOM)), (masks.FULL, 1.0))
"""(mask, q)"""
NEAR_BASE = 2
"""Steps in which precision is measured. The first one's learning rate is 0 and the second's half of the rest's: until
the second's end the policy is the base model's, or three small updates away."""
Count = Annotated[float, Field(ge=0)]
ByClass = tuple[Count, Count, Count]
"""Tokens: spurious, useful, other."""


class Candidates(BaseModel):
    """The rare tokens of each step under one tau_p."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tau_p: float
    tokens: list[ByClass]


class Silenced(Candidates):
    """What a mask would silence of them. Of the random mask the tokens are expectations; the full mask has q = 1."""

    mask: str
    q: float


class PlantedCounts(Record):
    """planted.json: a training's tokens by step and class.

    Attributes:
        selector, tau_p, q: the run's own.
        steps: in their order; every list below has an entry a step.
        spurious: all spurious tokens of responses with A > 0, rare or not.
        own: what the run itself silenced.
        rare: for each of `TAUS` that is at most the log's tau_p: of rarer tokens alone the log has every one.
    """

    run_id: str
    selector: str
    tau_p: float
    q: float
    steps: list[int]
    spurious: list[Count]
    own: list[ByClass]
    rare: list[Candidates]
    masks: list[Silenced]

    @model_validator(mode="after")
    def _consistent(self) -> PlantedCounts:
        lists = [self.spurious, self.own, *(c.tokens for c in (*self.rare, *self.masks))]
        if any(len(x) != len(self.steps) for x in lists) or sorted(set(self.steps)) != self.steps:
            raise ValueError(f"{len(self.steps)} steps, but lists of {sorted({len(x) for x in lists})} entries")
        rare = {c.tau_p: c.tokens for c in self.rare}
        found = sorted((m.tau_p, m.mask, m.q) for m in self.masks)
        if len(rare) != len(self.rare) or found != sorted((tau_p, *m) for tau_p in rare for m in MASKS):
            raise ValueError(f"the masks are not each of {len(QS)} q once for every tau_p of {sorted(rare)}")
        for m in self.masks:
            if (np.array(m.tokens) > np.array(rare[m.tau_p])).any():
                raise ValueError(f"{m.mask}, tau_p {m.tau_p:g}, q {m.q:g}: more silenced tokens than rare ones")
        return self

    def of_mask(self, mask: str) -> dict[str, float]:
        """What a mask with the paper's tau_p and q would silence in the first `NEAR_BASE` steps: its tokens, the
        spurious among them (precision), the silenced among the rare spurious (recall) and among the rare useful. NaN is
        a share of nothing."""
        wanted = (mask, 0.002, 1.0 if mask == masks.FULL else 0.75)
        of_mask = next(m.tokens for m in self.masks if (m.mask, m.tau_p, m.q) == wanted)
        of_rare = next(c.tokens for c in self.rare if c.tau_p == 0.002)
        near = [i for i, step in enumerate(self.steps) if step <= NEAR_BASE]
        silenced, rare = ([math.fsum(of[i][k] for i in near) for k in range(3)] for of in (of_mask, of_rare))
        shares = {"precision": (silenced[0], sum(silenced)), "recall": (silenced[0], rare[0]),
                  "useful_silenced": (silenced[1], rare[1])}  # fmt: skip
        found = {name: part / whole if whole else math.nan for name, (part, whole) in shares.items()}
        return {"tokens": sum(silenced)} | found


def of_log(log: TokenLog, run_id: str = "") -> PlantedCounts:
    """Count a log.

    Raises:
        RecordError: rows were left out of it (see `masks.tokens_of`).
    """
    tokens, header, counts = masks.tokens_of(log), log.header, log.histogram
    steps, of_count = np.unique(counts["step"].to_numpy(), return_inverse=True)
    step = np.searchsorted(steps, tokens.step)

    def by_class(weight: NDArray) -> list[ByClass]:
        classes = (tokens.junk, tokens.useful, ~(tokens.junk | tokens.useful))
        sums = [np.bincount(step, weights=weight * c, minlength=len(steps)) for c in classes]
        return [(round(float(s), 6), round(float(u), 6), round(float(o), 6)) for s, u, o in zip(*sums, strict=True)]

    silenced = (counts["sign"].to_numpy() > 0) & counts["silenced"].to_numpy()
    all_of_them = np.bincount(of_count, weights=counts["tokens"].to_numpy() * silenced, minlength=len(steps))
    rows = by_class(tokens.silenced)  # the counts know silenced tokens that have no row
    own = [(s, u, float(all_of_them[i]) - s - u) for i, (s, u, _) in enumerate(rows)]
    rare, silenced_by = [], []
    for tau_p in [t for t in TAUS if t <= header.tau_p]:
        candidates = tokens.rare if tau_p == header.tau_p else np.exp(tokens.logprob) < tau_p
        rare.append(Candidates(tau_p=tau_p, tokens=by_class(candidates)))
        weights = {q: masks.weights(tokens, q, candidates) for q in (*QS, 1.0)}
        silenced_by += [Silenced(mask=m, tau_p=tau_p, q=q, tokens=by_class(weights[q][m])) for m, q in MASKS]
    spurious = np.bincount(step, weights=tokens.junk, minlength=len(steps))
    return PlantedCounts(
        run_id=run_id, selector=header.selector, tau_p=header.tau_p, q=header.q, steps=steps.tolist(),
        spurious=spurious.tolist(), own=own, rare=rare, masks=silenced_by,
    )  # fmt: skip


def of_run(folder: Path, run_id: str = "") -> PlantedCounts | None:
    """The counts of a run folder: its record where it has one, else counted from its token log; None without either.

    Raises:
        RecordError: a broken record, one of another run, a damaged log, or one that lacks rows.
    """
    if (file := folder / FILE).is_file():
        found = store.read_json(file, PlantedCounts)
        if run_id and found.run_id != run_id:
            raise RecordError(f"{file}: these are the tokens of another run", found=found.run_id, expected=run_id,
                              next_step=f"collect the run again, or remove {FILE}")  # fmt: skip
        return found
    log = token_log.read(folder)
    return of_log(log, run_id) if log is not None and log.header.watch else None
