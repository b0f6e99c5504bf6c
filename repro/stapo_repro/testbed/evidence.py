"""What the testbed's records say, by world, arm and seed; and the quantities that are formed of it. Pure.

A quantity is a sum of terms, such as (+1, stapo) and (-1, justrl). It is formed seed by seed, and accuracies also
problem by problem, before anything is averaged: seed s of two arms starts from the same weights and sees the same
prompts in the same order, so what a seed does to both drops out of their difference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from stapo_repro import labels
from stapo_repro.read import Loaded, TrainingRun, final_step
from stapo_repro.testbed import counts
from stapo_repro.testbed.plan import VALIDATION_EVERY, world_of
from stapo_repro.tokens import planted
from stapo_results.errors import RecordError
from stapo_results.schema import StepMetrics
from stapo_results.statistics import parse_verdicts, pass_at_k
from stapo_results.statistics.crossed import Crossed, crossed, over_seeds, t_test_p

Answered = Literal["accuracy_t1.0", "accuracy_t0.7", "pass8_t1.0", "pass8_t0.7"]
Trained = Literal[
    "useful_early",
    "reward_early",
    "useful_late",
    "spurious_late",
    "entropy_late",
    "reward_late",
    "entropy_growth",
    "spurious_growth",
    "collapse_step",
]
Measure = Literal[Answered, Trained, "precision"]
FACTOR: dict[str, float] = {
    "entropy_late": 1, "entropy_growth": 1, "reward_early": 1, "reward_late": 1, "collapse_step": 1,
}  # fmt: skip
"""From a record's unit to the printed one; 100 for all others: percent, and words per 100 responses."""

BENCHMARK, REFERENCE = "mini-add", "justrl"
NEAR_BASE = 2
"""Steps in which precision is measured. The first one's learning rate is 0 and the second's half of the rest's: until
the second's end the policy is the base model's, or three small updates away."""
EARLY = 16
"""Steps in which the task is learnt: the slowest run of the pilot was half way after 15. Their mean says how fast."""
COLLAPSE, FOR_GOOD = 0.05, 3  # of accuracy in validation, and validations: fewer may be noise of their samples
_EARLY = {"useful_early": "useful_rate", "reward_early": "reward"}
_LATE = {"useful_late": "useful_rate", "spurious_late": "spurious_rate",
         "entropy_late": "entropy", "reward_late": "reward"}  # fmt: skip
_GROWTH = {"entropy_growth": "entropy", "spurious_growth": "spurious_rate"}
MASK_OF = {method: mask for mask, method in planted.METHODS.items()}
"""The mask that an arm trains with, measured on the tokens of JustRL."""
Key = tuple[str, str]
"""(world, arm)"""


@dataclass(frozen=True)
class Quantity:
    """A quantity over seeds in its printed unit, rounded to eight decimals (beyond that two machines may differ).

    Attributes:
        status: "run" with every seed that any of its arms has, "incomplete" with fewer, "not run" without any.
        low, high: 95 % interval; None with a single seed.
        se, df: behind it. p: two-sided, of "it is the claim's reference".
        sd: standard deviation between seeds.
        seeds: the value of each.
        missing: by arm, such as "JustRL seeds 1, 2".
        raw: what was measured, before rounding and in fractions; not written.
    """

    status: Literal["run", "incomplete", "not run"]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    se: float | None = None
    df: float | None = None
    p: float | None = None
    sd: float | None = None
    seeds: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    raw: Crossed | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Evidence:
    """One part of the testbed: the main runs, the pilot's, or the long ones.

    Attributes:
        scores: (world, arm) -> measure -> seed -> problem -> value in [0, 1] (NaN: a sample is missing).
        values: (world, arm) -> seed -> measure -> value of a finished training; what was not logged is not there.
        tokens: world -> seed -> the counts of JustRL's tokens.
        runs: all trainings, for curves.
        steps: of all finished trainings; None without any.
    """

    scores: Mapping[Key, Mapping[str, Mapping[int, Mapping[str, float]]]]
    values: Mapping[Key, Mapping[int, Mapping[str, float]]]
    tokens: Mapping[str, Mapping[int, counts.PlantedCounts]]
    runs: Sequence[TrainingRun] = ()
    steps: int | None = None

    def seeds(self, world: str, arms: Collection[str]) -> list[int]:
        """Every seed that any of these arms has in a world, trained or evaluated."""
        found = {s for arm in arms for s in self.values.get((world, arm), {})}
        evaluated = (of for arm in arms for of in self.scores.get((world, arm), {}).values())
        return sorted(found.union(*evaluated))

    def arms(self, world: str) -> list[str]:
        """The arms of a world with any record: those of every world first, then others by name."""
        found = {a for w, a in (*self.scores, *self.values) if w == world} - {labels.BASE}
        return [*(a for a in labels.ARMS if a in found), *sorted(found - labels.ARMS.keys())]


def run_values(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """The numbers of one training: means over the first `EARLY` steps, means over the steps k with 4 k > 3 K (K the
    last), these less the mean over the second quarter (growth), and where it collapsed; a run that does not counts as
    one that would at the validation after its last.

    Of 20 steps the late ones are 16 to 20. A measure is left out where one of its steps lacks its metric.
    """
    trained = [s for s in steps if s.step >= 1]
    last = max((s.step for s in trained), default=0)
    early, late = [s for s in trained if s.step <= EARLY], [s for s in trained if 4 * s.step > 3 * last]
    of = ((name, metric, part) for names, part in ((_EARLY, early), (_LATE, late)) for name, metric in names.items())
    found = {name: math.fsum(v) / len(v) for name, metric, part in of if (v := _all(part, metric))}
    second = [s for s in trained if last < 4 * s.step <= 2 * last]
    for name, metric in _GROWTH.items():
        if (before := _all(second, metric)) and (after := _all(late, metric)):
            found[name] = math.fsum(after) / len(after) - math.fsum(before) / len(before)
    validations = [(s.step, s.values["accuracy"]) for s in steps if "accuracy" in s.values]
    if len(validations) > 1:
        collapse = collapse_step(validations)
        found["collapse_step"] = validations[-1][0] + VALIDATION_EVERY if collapse is None else collapse
    return found


def _all(steps: Sequence[StepMetrics], metric: str) -> list[float]:
    values = [s.values.get(metric, math.nan) for s in steps]
    return values if all(map(math.isfinite, values)) else []


def collapse_step(validations: Sequence[tuple[int, float]]) -> int | None:
    """The step of the first validation from which accuracy stays more than 5 points under its best before, to the end
    and for three validations at least; None without one, as for a run that never learnt.

    Args:
        validations: (step, accuracy as a fraction), in order, not empty.
    """
    best = -math.inf
    for i, (step, accuracy) in enumerate(validations):
        if len(validations) - i >= FOR_GOOD and all(later < best - COLLAPSE for _, later in validations[i:]):
            return step
        best = max(best, accuracy)
    return None


def gather(cells: Sequence[Loaded], runs: Sequence[TrainingRun]) -> Evidence:
    """Order the records of one part. Trainings that are not finished count as not there; a model's samples of several
    evaluation seeds count together.

    Raises:
        RecordError: a record of something else, two of one thing, other problems, other steps, or a broken log.
    """
    scores: dict[Key, dict[str, dict[int, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    values: dict[Key, dict[int, dict[str, float]]] = defaultdict(dict)
    tokens: dict[str, dict[int, counts.PlantedCounts]] = defaultdict(dict)
    pooled: dict[tuple[Key, str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    problems: dict[str, tuple[set[str], str]] = {}
    lengths: dict[int, str] = {}
    for c in final_step(cells)[0]:
        cell = c.record.cell
        world = _world(cell.size, c.path)
        if cell.benchmark != BENCHMARK:
            continue
        rows = {p.problem_id: parse_verdicts(p.verdicts) for p in c.record.problems}
        ids, first = problems.setdefault(world, (set(rows), c.path))
        if ids != set(rows):
            raise RecordError(f"two records of {BENCHMARK} hold different problems",
                              found=f"{first}: {len(ids)}, {c.path}: {len(rows)}",
                              expected="the same problems for every arm and seed of a world",
                              next_step="evaluate all with the same --limit")  # fmt: skip
        for i, verdicts in rows.items():
            pooled[(world, cell.method), cell.setting, cell.train_seed][i] += verdicts
        if cell.step != "base":
            lengths.setdefault(int(cell.step), c.path)
    for (key, setting, seed), by in pooled.items():
        scores[key][f"accuracy_{setting}"][seed] = {i: math.fsum(v) / len(v) for i, v in by.items()}
        scores[key][f"pass8_{setting}"][seed] = {i: pass_at_k([v], 8) for i, v in by.items()}
    for r in runs:
        world = _world(r.size, r.path)
        if r.status != "done" or not r.steps:
            continue
        if r.seed in values[world, r.method]:
            raise RecordError(f"two trainings of {r.method} with seed {r.seed} in {world}", found=r.path,
                              expected="one")  # fmt: skip
        values[world, r.method][r.seed] = run_values(r.steps)
        lengths.setdefault(r.steps[-1].step, r.path)
        if r.method == REFERENCE and (found := counts.of_run(r.folder, r.run_id)) is not None:
            tokens[world][r.seed] = found
    if len(lengths) > 1:
        raise RecordError(
            "the testbed's runs were not trained equally long",
            found=", ".join(f"{path}: {step} steps" for step, path in sorted(lengths.items())),
            expected="one number of steps",
            next_step="collect the runs of one `stapo-repro testbed` into a folder of their own",
        )
    plain = {key: {m: dict(seeds) for m, seeds in by.items()} for key, by in scores.items()}
    return Evidence(plain, dict(values), dict(tokens), runs, next(iter(lengths), None))


def _world(size: str, path: str) -> str:
    world = world_of(size)
    if world is None:
        raise RecordError(f"{path} is no record of the testbed", found=f"size {size}",
                          expected=" | ".join(labels.WORLDS.values()),
                          next_step="name a folder that holds a run of `stapo-repro testbed` alone")  # fmt: skip
    return world


def silenced(record: counts.PlantedCounts, mask: str, tau_p: float = 0.002, q: float = 0.75) -> counts.ByClass:
    """The tokens that a mask would silence in the first `NEAR_BASE` steps of a run, by class."""
    q = 1.0 if mask == planted.FULL else q
    found = next(m.tokens for m in record.masks if (m.mask, m.tau_p, m.q) == (mask, tau_p, q))
    return total(record, found)


def total(record: counts.PlantedCounts, tokens: Sequence[counts.ByClass]) -> counts.ByClass:
    """Sums over the first `NEAR_BASE` steps."""
    near = [t for step, t in zip(record.steps, tokens, strict=True) if step <= NEAR_BASE]
    spurious, useful, other = (math.fsum(t[i] for t in near) for i in range(3))
    return spurious, useful, other


def precision(record: counts.PlantedCounts, mask: str) -> float:
    """Spurious tokens among those that a mask would silence; NaN where it silences none."""
    tokens = silenced(record, mask)
    return tokens[0] / sum(tokens) if sum(tokens) else math.nan


def _by_seed(e: Evidence, world: str, arm: str, measure: Measure) -> dict[int, float | Mapping[str, float]]:
    """Seed -> value, or problem -> value; only seeds that have all of it."""
    if measure in get_args(Answered):
        found = e.scores.get((world, arm), {}).get(measure, {})
        return {s: by for s, by in found.items() if not any(map(math.isnan, by.values()))}
    if measure == "precision":
        shares = {s: precision(r, MASK_OF[arm]) for s, r in e.tokens.get(world, {}).items()}
        return {s: v for s, v in shares.items() if not math.isnan(v)}
    return {s: v[measure] for s, v in e.values.get((world, arm), {}).items() if measure in v}


def quantity(
    e: Evidence, world: str, measure: Measure, terms: Sequence[tuple[float, str]], reference: float = 0.0
) -> Quantity:
    """A sum of one measure over arms, averaged over seeds (and problems).

    The interval of a single arm ends where the quantity does: at 0, unless it is a reward or a growth.

    Args:
        terms: (sign, arm).
        reference: what `p` tests against, in the printed unit.
    """
    found = {arm: _by_seed(e, world, arm, measure) for _, arm in terms}
    planned = e.seeds(world, [REFERENCE] if measure == "precision" else list(found))
    seeds = [s for s in planned if all(s in by for by in found.values())]
    missing = [_missing(arm, gone) for arm, by in found.items() if (gone := [s for s in planned if s not in by])]
    if not seeds:
        return Quantity("not run", missing=missing)

    def at(seed: int, problem: str | None = None) -> float:
        values = [(sign, found[arm][seed]) for sign, arm in terms]
        return math.fsum(sign * (v[problem] if isinstance(v, Mapping) and problem else float(v)) for sign, v in values)  # type: ignore[arg-type]

    one = found[terms[0][1]][seeds[0]]
    if isinstance(one, Mapping):
        table = np.array([[at(s, i) for s in seeds] for i in sorted(one)])
        c = crossed([table], fractions=len(terms) == 1)
    else:
        c = over_seeds([at(s) for s in seeds])
    factor = FACTOR.get(measure, 100.0)
    p = two_sided_p(replace(c, mean=c.mean - reference / factor))
    spread = float(np.std(c.seeds, ddof=1)) if len(seeds) > 1 else math.nan
    by_seed = {str(s): v for s, x in zip(seeds, c.seeds, strict=True) if (v := rounded(x, factor)) is not None}
    signed = len(terms) > 1 or terms[0][0] < 0 or measure.startswith("reward") or measure in _GROWTH
    least = -math.inf if signed else 0.0
    mean, low, high, se, sd = (rounded(x, factor) for x in (c.mean, max(c.low, least), c.high, c.se, spread))
    status = "incomplete" if missing else "run"
    return Quantity(status, mean, low, high, se, rounded(c.df), rounded(p), sd, by_seed, missing, c)


def two_sided_p(c: Crossed) -> float:
    """The t test's p of "the mean is 0"; where no seed differs from another, which a t test takes for certainty, that
    of the sign-flip test: 2^(1 - seeds)."""
    return 2.0 ** (1 - len(c.seeds)) if no_spread(c) and c.mean != 0 else t_test_p(c)


def no_spread(c: Crossed) -> bool:
    """Whether the seeds differ by rounding at most."""
    return c.se <= 1e-12 * max(1.0, abs(c.mean))


def _missing(arm: str, seeds: Sequence[int]) -> str:
    return f"{labels.method_label(arm)} seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def rounded(value: float, factor: float = 1.0) -> float | None:
    """Eight decimals, None for NaN."""
    return None if math.isnan(value) else round(value * factor, 8) + 0.0
