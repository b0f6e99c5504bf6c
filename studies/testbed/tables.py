"""The testbed's tables (results/tables/testbed.md and .json), and a user's method beside the committed arms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from stapo_repro import labels
from stapo_repro.read import Loaded, TrainingRun, inputs_hash, load_cells, load_training_runs
from stapo_repro.table.build import provenance, scoring
from stapo_repro.text import escape, grid, number_shown, p_shown, shown, signed, written
from stapo_results.store import to_line
from studies import masks
from studies.testbed import counts
from studies.testbed.claims import Claim, Claims, Verdict, judge, judging, lost_over_all
from studies.testbed.evidence import MASKED, MEASURES, Evidence, Quantity, gather, quantity, run_values
from studies.testbed.plan import (
    COSTLY,
    PARTS,
    RATES,
    SEEDS,
    VALIDATION_EVERY,
    WORLDS,
    Part,
    arms_of,
    method_and_rate,
    rate_text,
)

COLUMNS = (
    "accuracy_t1.0", "accuracy_t0.7", "pass8_t1.0", "reward_early", "useful_early", "useful_late", "spurious_late",
    "entropy_late",
)  # fmt: skip
COSTLY_COLUMNS = (
    "hard_step10", "hard_step20", "hard_step40", "easy_step20", "easy_step40", "useful_early", "useful_late",
    "spurious_late",
)  # fmt: skip
FADE_COLUMNS = ("hard_step20", "hard_step40", "hard_step80", "hard_step120", "easy_step120", "spurious_late")
BESIDE = ("accuracy_t1.0", "accuracy_t0.7", "reward_early", "useful_early", "spurious_late")
"""What is shown of a user's method."""
MASKS = {method: masks.NAMES[mask] for mask, method in masks.METHODS.items()}
_UNCLAIMED = (
    ("useful_early", "stapo", "justrl"),
    ("reward_early", "stapo", "justrl"),
    *((m, "symmetric", other) for other in ("stapo", "justrl")
      for m in ("useful_early", "reward_early", "useful_late", "reward_late", "accuracy_t1.0")),
)  # fmt: skip
"""Measure, first and second arm of a difference that the page prints and no claim is of."""
_WRITTEN = "status number.mean number.low number.high number.se number.df p sd seeds missing"
"""What testbed.json holds of a quantity."""
Records = tuple[Sequence[Loaded], Sequence[TrainingRun]]


class Testbed:
    """What the tables and figures show, from all records; its attributes but `evidence`, what was read by part, are the
    keys of testbed.json, in their order.

    Raises:
        RecordError: records that are not of one testbed (see `evidence.gather`).
    """

    def __init__(self, records: Mapping[Part, Records], claims: Claims) -> None:
        cells = [c for of, _ in records.values() for c in of]
        runs = [r for _, of in records.values() for r in of]
        # of the long part some were seen before their claims were written
        parts: dict[Part, Evidence] = {
            part: gather(*of, SEEDS[part] if part in VALIDATION_EVERY else None) for part, of in records.items()
        }
        main = parts["main"]
        self.schema_version = 2
        self.inputs_sha256 = inputs_hash(cells, *sorted(map(_stamp, runs)), claims.model_dump_json())
        self.paper = claims.source
        self.rule, self.afterwards = claims.rule, claims.afterwards
        self.synthetic = any(c.record.synthetic for c in cells) or any(r.synthetic for r in runs)
        costly, long = (parts.get(part, Evidence({})) for part in ("costly", "costly-long"))
        self.masks = [
            _row(of, world, arm, MASKED)
            for of, worlds in ((main, WORLDS), (costly, COSTLY))
            for world in worlds
            for arm in MASKS
        ]
        self.rows = [_row(main, world, arm, COLUMNS) for world in WORLDS for arm in main.arms(world)]
        self.costly = [
            _row(costly, world, a.name, COSTLY_COLUMNS) for world in COSTLY for a in arms_of(world, "costly")
        ]
        self.costly_long = [_row(long, "costly", arm, FADE_COLUMNS) for arm in ("justrl", "stapo")]
        self.claims = judge(claims, parts)
        self.footnotes = _footnotes(records)
        self.records = len(cells)
        self.trainings = {str(part): len(of) for part, (_, of) in records.items()}
        self.evidence = parts


def read(root: Path, roots: Sequence[Path] = ()) -> dict[Part, Records]:
    """The records of each part below results/records/testbed or a folder like it; or, where `roots` names folders of
    main runs, of these alone."""
    named = {"main": roots} if roots else {"main": [root], **{part: [root / part] for part in PARTS}}
    there = {part: [f for f in named.get(part, []) if roots or f.is_dir()] for part in get_args(Part)}
    return {part: (load_cells(of, PARTS), load_training_runs(of, PARTS)) for part, of in there.items()}


def _stamp(run: TrainingRun) -> str:
    """Hash of what a training says: labels, status, every step, and its tokens where they are on record."""
    text = f"{run.method}\0{run.size}\0{run.seed}\0{run.status}\n" + "".join(f"{to_line(s)}\n" for s in run.steps)
    file = run.folder / counts.FILE
    return hashlib.sha256(text.encode() + (file.read_bytes() if file.is_file() else b"")).hexdigest()


def _row(e: Evidence, world: str, arm: str, columns: Sequence[str]) -> dict[str, Any]:
    values = {m: quantity(e, world, m, [(1.0, arm)]) for m in columns}
    if arm == labels.BASE:  # it has no training, and with fewer than 8 samples no pass@8
        values = {m: q for m, q in values.items() if q.status == "run"}
    label = MASKS[arm] if columns == MASKED else labels.method_label(arm)
    return {"world": world, "arm": arm, "label": label, "values": values}


def _footnotes(records: Mapping[Part, Records]) -> list[str]:
    out = []
    for part, (cells, runs) in records.items():
        unfinished = [f"{labels.method_label(r.method)} seed {r.seed} on {r.size} ({r.status})"
                      for r in runs if r.status != "done"]  # fmt: skip
        if unfinished:
            out.append(f"Trainings of part {part} that are not finished and not counted: {', '.join(unfinished)}.")
        if absent := sum(p.verdicts.count("-") for c in cells for p in c.record.problems):
            out.append(f"MISSING SAMPLES in part {part}: {absent}; a seed that lacks one is not counted.")
    if cells := [c.record for c in records["main"][0]]:
        shapes = sorted({(len(c.problems), c.n) for c in cells})
        out.append("; ".join(f"{q} problems x {n} samples" for q, n in shapes) + " a world.")
        out += [*scoring(cells), provenance(cells)]
    return out


def to_json(t: Testbed) -> str:
    """The full data: every number with its seeds, every claim with its quantity and verdicts."""

    def plain(value: Any) -> dict[str, Any]:
        if isinstance(value, Quantity):
            return written(value, _WRITTEN)
        of = value.model_dump() if isinstance(value, Claim) else vars(value)
        return {k: v for k, v in of.items() if k != "evidence"}

    return json.dumps(t, default=plain, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def quantity_words(c: Claim) -> str:
    """The claim's quantity in words, with its unit."""
    what, unit, *_ = MEASURES[c.measure]
    if c.kind == "optimum":
        pair = f"best of {', '.join(map(labels.method_label, c.inside))}, minus the better of "
        pair += " and ".join(map(labels.method_label, c.ends))
    elif c.measure in MASKED:
        pair = f"{MASKS[c.first]} minus {MASKS[c.second]} mask"
    else:
        (first, rate), (second, _) = method_and_rate(c.first), method_and_rate(c.second)
        pair = f"{labels.method_label(first)} minus {labels.method_label(second)}"
        pair += f" at learning rate {rate_text(rate)}" if rate else ""
    return f"{what}: {pair}{f' ({unit})' if unit else ''}"


def expected(c: Claim) -> str:
    """Where the claim puts its quantity."""
    return f"within ±{c.margin:g}" if c.margin is not None else f"{c.direction} {c.reference:g}"


def headline(t: Testbed) -> str:
    """How many claims came out how, and which; checks of the instrument apart."""
    parts = []
    for check in (False, True):
        judged = [j for j in t.claims if j.claim.check == check]
        named = f"checks of the instrument ({', '.join(j.claim.number for j in judged)})" if check else "claims"
        parts.append(f"Of {len(judged)} {named}, after Holm's correction.")
        for verdict in get_args(Verdict):
            numbers = [j.claim.number for j in judged if j.verdict_holm == verdict]
            which = f" ({', '.join(numbers)})" if 0 < len(numbers) < len(judged) else ""
            parts.append(f"{verdict.capitalize()}: {len(numbers)}{which}.")
    return " ".join(parts)


def _cell(q: Quantity, measure: str, printed: Callable[..., str] = shown) -> str:
    """Mean over its interval, with what is missing of it; a status where there is none."""
    digits, n = MEASURES[measure][2], q.number
    cell = printed(n.mean, digits) if n.known else q.status
    cell += f"<br><sub>{shown(n.low, digits)} to {shown(n.high, digits)}</sub>" if n.has_interval else ""
    return cell + (f"<br><sub>missing: {'; '.join(q.missing)}</sub>" if q.status == "incomplete" else "")


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    lines = []
    for r in rows:
        absent = "n/a" if r["values"] else "not run"
        cells = {m: _cell(r["values"][m], m) if m in r["values"] else absent for m in columns}
        if "tokens" in cells and (by_seed := r["values"]["tokens"].number.seeds):
            cells["tokens"] = shown(sum(by_seed), 0)  # of all runs together
        lines.append([r["world"], escape(r["label"]), *cells.values()])
    return grid(["World", "Arm", *(MEASURES[m][0] for m in columns)], lines, 2)


def _long_table(t: Testbed) -> list[str]:
    order, claims, rows = list(RATES), [j.claim for j in t.claims], []
    found = [(*method_and_rate(r.method), r) for r in t.evidence["long"].runs if r.status == "done"]
    for method, rate, run in sorted(found, key=lambda x: (order.index(x[1]), x[0], x[2].seed)):
        v = run_values(run.steps)
        columns = (("entropy_second", 1, 2), ("entropy_late", 1, 2), ("spurious_second", 100, 0),
                   ("spurious_late", 100, 0), ("validation_best", 100, 1), ("validation_last", 100, 1),
                   ("reward_late", 1, 2), ("learnt_step", 1, 0), ("collapsed_step", 1, 0))  # fmt: skip
        numbers = (shown(factor * v[name], digits) if name in v else "none" for name, factor, digits in columns)
        judges = "yes" if judging(claims, run.method, run.seed) else "no: exploratory"
        rows.append([rate_text(rate), labels.method_label(method), str(run.seed), judges, *numbers])
    head = ["Learning rate", "Method", "Seed", "Judges", "Entropy (nats), second quarter", "last quarter",
            "Spurious / 100, second quarter", "last quarter", "Validation (%), best", "last", "Reward, last quarter",
            "Learnt by step", "Collapse at step"]  # fmt: skip
    return grid(head, rows or [["not run"] * len(head)], 3)


def _over_all_claims(t: Testbed) -> str:
    lost = [f"{name} (p {p_shown(p)})" for name, p in lost_over_all(t.claims)]
    return f"A correction over all {len(t.claims)} claims of today, without families, takes the verdict of these: " + (
        f"{', '.join(lost) or 'none'}."
    )


def _unclaimed(t: Testbed) -> list[str]:
    """Differences that pages speak of and no claim is of."""
    lines = []
    for measure, first, second in _UNCLAIMED:
        what, unit, digits, _ = MEASURES[measure]
        q = quantity(t.evidence["main"], "paper", measure, ((1, first), (-1, second)))
        found = number_shown(q.number, digits, 1, f" {unit}".rstrip(), sign=True) + f", p {p_shown(q.p)}"
        pair = f"{labels.method_label(first)} minus {labels.method_label(second)}"
        lines.append(f"Seen afterwards, uncorrected, in paper, {what}: {pair} {found if q.number.known else q.status}.")
    return lines


def _claims_table(t: Testbed) -> list[str]:
    rows = []
    for j in t.claims:
        c, (_, _, digits, _) = j.claim, MEASURES[j.claim.measure]
        verdict = f"**{j.verdict}**"
        if j.verdict == "not distinguishable" and j.detectable is not None:
            verdict += f"<br><sub>{len(j.quantity.seeds)} seeds find {shown(j.detectable, digits)}</sub>"
        spread, needed = "not run", "not known"
        if j.pilot.number.has_interval:
            spread = f"{shown(j.pilot.sd, max(1, digits))} ({len(j.pilot.seeds)} seeds)"
            needed = "more than 10,000" if j.needed is None else str(j.needed)
        rows.append([
            c.number, c.world, f"{c.claim}<br><sub>{c.place}. Against it: {c.contradicted_by}.</sub>",
            f"{quantity_words(c)}; claimed {expected(c)}", _cell(j.quantity, c.measure, signed), verdict,
            "not run" if j.p_holm is None else f"{j.verdict_holm}<br><sub>p {p_shown(j.p_holm)}</sub>",
            f"{c.margin or c.smallest:g}", spread, needed, str(len(j.quantity.seeds)),
        ])  # fmt: skip
    head = ["#", "World", "Claim", "Quantity", "Value", "Verdict", "After Holm", "Difference that matters",
            "Spread between seeds, pilot", "Seeds for 80 %", "Seeds run"]  # fmt: skip
    return grid(head, rows, 4)


def to_markdown(t: Testbed) -> str:
    """The file in results/tables."""
    stamp = ", ".join(f"{n} {part}" for part, n in t.trainings.items())
    parts = [
        "# Testbed (a tiny model on sums modulo 4; not a result of the paper)", "",
        *([labels.SYNTHETIC, ""] if t.synthetic else []),
        "What was planted, and how each number is made: [the testbed's page](../../docs/testbed.md). Shares and "
        "accuracies are in percent, words per 100 responses, entropies in nats, with 95 % intervals.", "",
        headline(t), "",
        "## What each mask finds", "", *_table(t.masks, MASKED), "",
        "## What training made of it", "", *_table(t.rows, COLUMNS), "",
        "## Where spurious words cost something", "", *_table(t.costly, COSTLY_COLUMNS), "",
        "The same for 120 steps, exploratory:", "", *_table(t.costly_long, FADE_COLUMNS), "",
        "## Long trainings", "", *_long_table(t), "",
        "## The claims", "", *_claims_table(t), "", t.rule, "",
        "Written afterwards:", "",
        *(f"- {escape(n)}" for n in [*t.afterwards, _over_all_claims(t), *_unclaimed(t)]), "",
        *(f"- {escape(n)}" for n in t.footnotes), "",
        f"Generated by `python -m studies.testbed page` from {t.records} evaluation records and trainings ({stamp}), "
        f"inputs {t.inputs_sha256[:16]}.", "",
    ]  # fmt: skip
    return "\n".join(parts)


def standing(own: Evidence, committed: Evidence, method: str) -> dict[str, list[list[str]]]:
    """A user's method in each world that it was trained in: itself, the committed arms, and its differences to JustRL
    and STAPO. A committed arm of its name gives way.

    Differences are paired: of a seed that is not on both sides there is none, nor with another number of steps or other
    problems.

    Returns:
        World -> rows of a name and of each of `BESIDE` the mean, its number of seeds, and its interval.
    """
    values = {k: v for k, v in committed.values.items() if k[1] != method}
    e = replace(committed, values=values | {k: v for k, v in own.values.items() if k[1] == method})
    alike = committed.steps in (None, own.steps) and own.problems.items() <= committed.problems.items()
    found = {}
    for world in [w for w in WORLDS if own.arms(w).get(method)]:
        terms = {labels.method_label(arm): [(1.0, arm)] for arm in dict.fromkeys((method, *labels.ARMS))}
        for arm in ("justrl", "stapo") if alike else ():
            if arm != method:
                name = f"{labels.method_label(method)} minus {labels.method_label(arm)}"
                terms[name] = [(1.0, method), (-1.0, arm)]
        found[world] = [
            [name, *(_beside(quantity(e, world, m, of), MEASURES[m][2], len(of) > 1) for m in BESIDE)]
            for name, of in terms.items()
        ]
    return found


def _beside(q: Quantity, digits: int, difference: bool) -> str:
    n = q.number
    if not n.known:
        return "not run"
    ends = f"\n{shown(n.low, digits)} to {shown(n.high, digits)}" if n.has_interval else ""
    return f"{(signed if difference else shown)(n.mean, digits)}, n={len(q.seeds)}{ends}"
