"""What each mask silences of a training's tokens, by class: a pure function of the token log, small enough to commit.

A class is spurious (a planted filler), useful (a planted word that leads to right answers) or other. Only tokens of
responses with a positive advantage count, as in `masks`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from stapo_repro.collect import Files
from stapo_repro.paper import TAU_P, Q  # at which the masks are compared
from stapo_results import store, token_log
from stapo_results.errors import RecordError
from stapo_results.schema import Record
from stapo_results.token_log import TokenLog
from studies import masks

FILE = "planted.json"
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
        rare, masks: at `TAU_P`, where that is the run's own, and each mask at `Q`; earlier records have more.
        spurious, own: of earlier records alone: all spurious tokens of responses with A > 0, and what the run silenced.
    """

    run_id: str
    selector: str
    tau_p: float
    q: float
    steps: list[int]
    spurious: tuple[Count, ...] = ()
    own: tuple[ByClass, ...] = ()
    rare: list[Candidates]
    masks: list[Silenced]

    @model_validator(mode="after")
    def _consistent(self) -> PlantedCounts:
        lists = [*(c.tokens for c in (*self.rare, *self.masks)), *filter(len, (self.spurious, self.own))]
        if any(len(x) != len(self.steps) for x in lists) or sorted(set(self.steps)) != self.steps:
            raise ValueError(f"{len(self.steps)} steps, but lists of {sorted({len(x) for x in lists})} entries")
        rare = {c.tau_p: c.tokens for c in self.rare}
        if len(rare) < len(self.rare) or len({(m.mask, m.tau_p, m.q) for m in self.masks}) < len(self.masks):
            raise ValueError("two entries of one tau_p, or of one mask")
        for m in self.masks:
            if m.tau_p not in rare or (np.array(m.tokens) > np.array(rare[m.tau_p])).any():
                raise ValueError(f"{m.mask}, tau_p {m.tau_p:g}, q {m.q:g}: more silenced tokens than rare ones")
        return self

    def of_mask(self, mask: str) -> dict[str, float]:
        """What a mask with the paper's tau_p and q would silence in the first `NEAR_BASE` steps: its tokens, the
        spurious among them (precision), the silenced among the rare spurious (recall) and among the rare useful. NaN is
        a share of nothing; empty where the record does not have the mask."""
        wanted = (mask, TAU_P, 1.0 if mask == masks.FULL else Q)
        both = [m for m in self.masks if (m.mask, m.tau_p, m.q) == wanted] + [c for c in self.rare if c.tau_p == TAU_P]
        if len(both) < 2:
            return {}
        near = sum(step <= NEAR_BASE for step in self.steps)
        silenced, rare = ([math.fsum(of[k] for of in c.tokens[:near]) for k in range(3)] for c in both)
        shares = {"precision": (silenced[0], sum(silenced)), "recall": (silenced[0], rare[0]),
                  "useful_silenced": (silenced[1], rare[1])}  # fmt: skip
        found = {name: part / whole if whole else math.nan for name, (part, whole) in shares.items()}
        return {"tokens": sum(silenced)} | found


def of_log(log: TokenLog, run_id: str = "") -> PlantedCounts:
    """Count a log.

    Raises:
        RecordError: rows were left out of it (see `masks.tokens_of`).
    """
    tokens, header = masks.tokens_of(log), log.header
    steps = np.unique(log.histogram["step"].to_numpy())
    step = np.searchsorted(steps, tokens["step"])
    classes = (tokens["junk"], tokens["useful"], ~(tokens["junk"] | tokens["useful"]))

    def by_class(weight: NDArray) -> list[ByClass]:
        sums = [np.bincount(step, weight * c, len(steps)).round(6).tolist() for c in classes]
        return list(zip(*sums, strict=True))

    rare, silenced = [], []
    if header.tau_p == TAU_P:
        rare = [Candidates(tau_p=TAU_P, tokens=by_class(tokens["rare"]))]
        for mask, weight in masks.weights(tokens, Q).items():
            q = 1.0 if mask == masks.FULL else Q
            silenced.append(Silenced(mask=mask, tau_p=TAU_P, q=q, tokens=by_class(weight)))
    return PlantedCounts(run_id=run_id, selector=header.selector, tau_p=header.tau_p, q=header.q, steps=steps.tolist(),
                         rare=rare, masks=silenced)  # fmt: skip


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


def shorten(folder: Path, run_id: str) -> tuple[Files, dict[str, Any]]:
    """What a training's record keeps in the place of its token log: the counts of the steps that are read."""
    counted = of_run(folder, run_id)
    if counted is None:
        return {}, {}
    n = sum(step <= NEAR_BASE for step in counted.steps)
    near: dict[str, Any] = {name: getattr(counted, name)[:n] for name in ("steps", "spurious", "own")}
    for name in ("rare", "masks"):
        near[name] = [c.model_copy(update={"tokens": c.tokens[:n]}) for c in getattr(counted, name)]
    text = store.to_line(counted.model_copy(update=near)) + "\n"
    return {Path(FILE): text}, {"planted_steps": len(counted.steps) - n}
