"""The testbed as one value, made from records alone; `render` writes it as Markdown and JSON."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stapo_repro import labels
from stapo_repro.read import Loaded, TrainingRun, inputs_hash, load_cells, load_training_runs
from stapo_repro.table.build import provenance, scoring
from stapo_repro.testbed import counts, evidence
from stapo_repro.testbed.claims import Claims, Judged, Power, judge, power
from stapo_repro.testbed.evidence import MASK_OF, Evidence, Measure, Quantity, gather, quantity
from stapo_repro.testbed.plan import PARTS, SEEDS, Part
from stapo_results.statistics.crossed import over_seeds
from stapo_results.store import to_line

COLUMNS: tuple[Measure, ...] = (
    "accuracy_t1.0", "accuracy_t0.7", "pass8_t1.0", "reward_early", "useful_early", "useful_late", "spurious_late",
    "entropy_late",
)  # fmt: skip
Records = tuple[Sequence[Loaded], Sequence[TrainingRun]]


@dataclass(frozen=True)
class MaskRow:
    """What a mask would silence of JustRL's rare tokens in a world, in percent.

    Attributes:
        mask: the arm that trains with it. tokens: silenced in all runs together.
        precision: spurious tokens among the silenced. recall: silenced among the rare spurious; useful: among the rare
            useful.
    """

    world: str
    mask: str
    tokens: float
    precision: Quantity
    recall: Quantity
    useful: Quantity


@dataclass(frozen=True)
class ArmRow:
    """One arm of a world: every column, in printed units."""

    world: str
    arm: str
    label: str
    values: dict[str, Quantity]


@dataclass(frozen=True)
class Testbed:
    """Everything that the written formats and the figures show. `evidence` is what was read, by part; not written."""

    schema_version: int
    inputs_sha256: str
    paper: str
    rule: str
    synthetic: bool
    masks: list[MaskRow]
    rows: list[ArmRow]
    claims: list[Judged]
    power: list[Power]
    footnotes: list[str]
    records: int
    trainings: dict[str, int]
    evidence: dict[Part, Evidence] = field(repr=False, default_factory=dict)


def read(root: Path | None, roots: Sequence[Path] = ()) -> dict[Part, Records]:
    """The records of each part.

    Args:
        root: results/records/testbed or a folder like it; None or one that is not there has none.
        roots: folders of main runs alone, in its place.
    """
    if roots or root is None or not root.is_dir():
        return {"main": (load_cells(roots), load_training_runs(roots)), "pilot": ([], []), "long": ([], [])}
    found: dict[Part, Records] = {"main": (load_cells([root], PARTS), load_training_runs([root], PARTS))}
    for part in PARTS:
        own = [folder] if (folder := root / part).is_dir() else []
        found[part] = load_cells(own), load_training_runs(own)
    return found


def build(records: dict[Part, Records], claims: Claims) -> Testbed:
    """The whole testbed from all its records.

    Raises:
        RecordError: records that are not of one testbed (see `evidence.gather`).
    """
    parts: dict[Part, Evidence] = {part: gather(*of) for part, of in records.items()}
    cells, runs = records["long"]
    judging = gather(cells, [r for r in runs if r.seed in SEEDS["long"]])
    parts["long"] = replace(judging, runs=runs)
    main, judged = parts["main"], judge(claims, parts)
    cells = [c for of, _ in records.values() for c in of]
    runs = [r for _, of in records.values() for r in of]
    return Testbed(
        schema_version=1,
        inputs_sha256=inputs_hash(cells, *sorted(map(_stamp, runs)), claims.model_dump_json()),
        paper=claims.source,
        rule=claims.rule,
        synthetic=any(c.record.synthetic for c in cells) or any(r.synthetic for r in runs),
        masks=[row for world in labels.WORLDS for row in _masks(main, world)],
        rows=[row for world in labels.WORLDS for row in _rows(main, world)],
        claims=judged,
        power=power(claims, {"main": parts["pilot"]}, judged),
        footnotes=_footnotes(records),
        records=len(cells),
        trainings={part: len(of) for part, (_, of) in records.items()},
        evidence=parts,
    )


def _masks(e: Evidence, world: str) -> list[MaskRow]:
    by_seed = e.tokens.get(world, {})
    rows = []
    for arm, mask in MASK_OF.items() if by_seed else ():
        found = {s: evidence.silenced(r, mask) for s, r in by_seed.items()}
        whole = {s: evidence.total(r, next(x.tokens for x in r.rare if x.tau_p == 0.002)) for s, r in by_seed.items()}
        shares = (
            {s: _share(t[0], sum(t)) for s, t in found.items()},
            {s: _share(t[0], whole[s][0]) for s, t in found.items()},
            {s: _share(t[1], whole[s][1]) for s, t in found.items()},
        )
        rows.append(MaskRow(world, arm, round(sum(map(sum, found.values())), 6), *map(_over, shares)))
    return rows


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _over(shares: dict[int, float]) -> Quantity:
    """A share over runs, in percent, with an interval that ends where shares do."""
    known = {s: v for s, v in shares.items() if not math.isnan(v)}
    if not known:
        return Quantity("not run")
    c = over_seeds(list(known.values()))
    low, high = (None, None) if math.isnan(c.low) else (max(0.0, c.low), min(1.0, c.high))
    ends = (None if x is None else evidence.rounded(x, 100.0) for x in (c.mean, low, high))
    return Quantity("run", *ends, seeds={str(s): round(100 * v, 8) for s, v in known.items()})


def _rows(e: Evidence, world: str) -> list[ArmRow]:
    """The base model, the arms of every world, then others that have records."""
    base: dict[str, Quantity] = {}
    for measure in COLUMNS:
        found = e.scores.get((world, labels.BASE), {}).get(measure, {})
        values = [v for by in found.values() for v in by.values()]
        if values and not any(map(math.isnan, values)):  # of fewer than 8 samples there is no pass@8
            base[measure] = Quantity("run", evidence.rounded(math.fsum(values) / len(values), 100.0))
    rows = [ArmRow(world, labels.BASE, labels.method_label(labels.BASE), base)]
    for arm in dict.fromkeys((*labels.ARMS, *e.arms(world))):
        values = {m: quantity(e, world, m, [(1.0, arm)]) for m in COLUMNS}
        rows.append(ArmRow(world, arm, labels.method_label(arm), values))
    return rows


def _stamp(run: TrainingRun) -> str:
    """Hash of what a training says: labels, status, every step, and its tokens where they are on record."""
    digest = hashlib.sha256(f"{run.method}\0{run.size}\0{run.seed}\0{run.status}\n".encode())
    for step in run.steps:
        digest.update(to_line(step).encode() + b"\n")
    if (file := run.folder / counts.FILE).is_file():
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _footnotes(records: dict[Part, Records]) -> list[str]:
    out = []
    for part, (cells, runs) in records.items():
        unfinished = [f"{labels.method_label(r.method)} seed {r.seed} on {r.size} ({r.status})"
                      for r in runs if r.status != "done"]  # fmt: skip
        if unfinished:
            out.append(f"Trainings of part {part} that are not finished and not counted: {', '.join(unfinished)}.")
        absent = sum(p.verdicts.count("-") for c in cells for p in c.record.problems)
        if absent:
            out.append(f"MISSING SAMPLES in part {part}: {absent}; a seed that lacks one is not counted.")
    if cells := [c.record for c in records["main"][0]]:
        shapes = {(len(c.problems), c.n) for c in cells}
        out.append("; ".join(f"{q} problems x {n} samples" for q, n in sorted(shapes)) + " a world.")
        out += [*scoring(cells), provenance(cells)]
    return out
