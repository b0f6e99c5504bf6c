"""Where a method of one's own stands beside the testbed's committed arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stapo_repro import labels
from stapo_repro.testbed.evidence import Evidence, Measure, Quantity, quantity
from stapo_repro.testbed.render import MEASURES
from stapo_repro.text import shown, signed

MEASURED: tuple[Measure, ...] = ("accuracy_t1.0", "accuracy_t0.7", "reward_early", "useful_early", "spurious_late")
AGAINST = ("justrl", "stapo")


@dataclass(frozen=True)
class Standing:
    """One line of a world: an arm's values, or the method minus an arm over the seeds that both have."""

    world: str
    text: str
    values: dict[Measure, Quantity]
    difference: bool


def joined(own: Evidence, committed: Evidence, method: str) -> Evidence:
    """The committed arms' records with the method's own; one of that name among the committed gives way."""

    def both(theirs: Mapping, mine: Mapping) -> dict:
        kept = {k: v for k, v in theirs.items() if k[1] != method}
        return kept | {k: v for k, v in mine.items() if k[1] == method}

    scores, values = both(committed.scores, own.scores), both(committed.values, own.values)
    return replace(committed, scores=scores, values=values)


def standing(own: Evidence, committed: Evidence, method: str) -> list[Standing]:
    """The method's lines, world by world: itself, the committed arms, and its differences to JustRL and STAPO.

    Differences are paired: of a seed that is not on both sides there is none, nor with another number of steps or other
    problems.
    """
    e, alike = joined(own, committed, method), committed.steps in (None, own.steps)
    alike = alike and all(_problems(own, w) == _problems(committed, w) for w, arm in own.scores if arm == method)
    out = []
    for world in labels.WORLDS:
        if not any(w == world for w, arm in own.values if arm == method):
            continue
        for arm in dict.fromkeys((method, *labels.ARMS)):
            values: dict[Measure, Quantity] = {m: quantity(e, world, m, [(1.0, arm)]) for m in MEASURED}
            out.append(Standing(world, labels.method_label(arm), values, difference=False))
        for arm in AGAINST if alike else ():
            if arm != method:
                terms = [(1.0, method), (-1.0, arm)]
                text = f"{labels.method_label(method)} minus {labels.method_label(arm)}"
                out.append(Standing(world, text, {m: quantity(e, world, m, terms) for m in MEASURED}, difference=True))
    return out


def _problems(e: Evidence, world: str) -> set[str]:
    """The ids of a world's problems, which are the same for all arms (see `evidence.gather`)."""
    tables = (by for (w, _), of in e.scores.items() if w == world for seeds in of.values() for by in seeds.values())
    return set(next(tables, ()))


def rows(lines: Sequence[Standing]) -> list[list[str]]:
    """What a terminal prints of a world: line, and of each measure the mean, its number of seeds, and its interval."""
    return [[s.text, *(_cell(m, s.values[m], s.difference) for m in MEASURED)] for s in lines]


def _cell(measure: Measure, q: Quantity, difference: bool) -> str:
    if q.mean is None:
        return "not run"
    digits = MEASURES[measure][2]
    ends = "" if q.low is None else f"\n{shown(q.low, digits)} to {shown(q.high, digits)}"
    return f"{(signed if difference else shown)(q.mean, digits)}, n={len(q.seeds)}{ends}"
