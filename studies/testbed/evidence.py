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
from typing import Any, Literal

import numpy as np

from stapo_repro import labels
from stapo_repro.read import Loaded, TrainingRun, final_step
from stapo_results.errors import RecordError
from stapo_results.schema import StepMetrics
from stapo_results.statistics import Number, crossed, over_seeds, parse_verdicts, pass_at_k
from studies import masks
from studies.testbed import counts
from studies.testbed.plan import VALIDATION_EVERY, world_of

BENCHMARK, REFERENCE = "mini-add", "justrl"
VALIDATED = {"easy": "mini-add", "hard": "mini-add-hard"}
"""The benchmarks of a validation, by the names of their measures."""
EARLY = 16
"""Steps in which the task is learnt: the slowest run of the pilot was half way after 15. Their mean says how fast."""
COLLAPSE, FOR_GOOD = 0.05, 3  # of accuracy in validation, and validations: fewer may be noise of their samples
LEARNT = 0.9  # of accuracy in validation
METRICS = {"useful": "useful_rate", "spurious": "spurious_rate", "entropy": "entropy", "reward": "reward"}

_WORDS = "words per 100 responses"
MEASURES: dict[str, tuple[str, str, int, float]] = {
    "tokens": ("tokens silenced", "tokens", 0, 1),
    "precision": ("precision for spurious tokens", "points", 1, 100),
    "recall": ("rare spurious tokens silenced", "points", 1, 100),
    "useful_silenced": ("rare useful tokens silenced", "points", 1, 100),
    "accuracy_t1.0": ("accuracy at T=1.0", "points", 1, 100),
    "accuracy_t0.7": ("accuracy at T=0.7", "points", 1, 100),
    "pass8_t1.0": ("pass@8 at T=1.0", "points", 1, 100),
    "useful_early": (f"useful words in steps 1 to {EARLY}", _WORDS, 1, 100),
    "reward_early": (f"reward in steps 1 to {EARLY}", "", 3, 1),
    "useful_late": ("useful words late in training", _WORDS, 1, 100),
    "spurious_late": ("spurious words late in training", _WORDS, 1, 100),
    "entropy_late": ("entropy late in training", "nats", 3, 1),
    "reward_late": ("reward late in training", "", 3, 1),
    "entropy_growth": ("growth of entropy", "nats", 3, 1),
    "spurious_growth": ("growth of spurious words", _WORDS, 1, 100),
    "collapse_step": ("step of collapse", "steps", 0, 1),
    **{
        f"{name}_step{step}": (f"accuracy on {which} after {step} steps", "points", 1, 100)
        for step in (10, 20, 40, 80, 120)
        for name, which in (("easy", "trained lengths"), ("hard", "longer problems"))
    },
}
"""Name in a sentence, printed unit, digits, and the factor from a record's unit to the printed one."""
MASKED = ("tokens", "precision", "recall", "useful_silenced")
"""Of the mask that an arm trains with, on the tokens of JustRL; all others are of the arm's own runs."""


@dataclass(frozen=True)
class Quantity:
    """A quantity over seeds.

    Attributes:
        status: "run" with every seed that any of its arms has, "incomplete" with fewer, "not run" without any.
        number: in its printed unit; without an interval of a single seed.
        p: two-sided, of "it is the claim's reference", with the digits that are written.
        trained: the training seeds, in the order of `number.seeds`.
        missing: by arm, such as "JustRL seeds 1, 2".
    """

    status: Literal["run", "incomplete", "not run"]
    number: Number = Number()
    p: float = math.nan
    trained: Sequence[int] = ()
    missing: Sequence[str] = ()

    @property
    def sd(self) -> float:
        """Between seeds."""
        values = self.number.seeds
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    @property
    def seeds(self) -> dict[int, float]:
        """Training seed -> value."""
        return dict(zip(self.trained, self.number.seeds, strict=True))


@dataclass(frozen=True)
class Evidence:
    """One part of the testbed: the main runs, the pilot's, or the long ones.

    Attributes:
        values: (world, arm, measure) -> seed -> a number, or of an accuracy problem -> number; what was not logged is
            not there. NaN is a share of nothing, or of a problem that lacks a sample.
        problems: world -> the ids of its evaluated problems.
        runs: all trainings, for curves.
        steps: of all finished trainings; None without any.
    """

    values: Mapping[tuple[str, str, str], Mapping[int, Any]]
    problems: Mapping[str, Collection[str]] = field(default_factory=dict)
    runs: Sequence[TrainingRun] = ()
    steps: int | None = None

    def arms(self, world: str) -> dict[str, set[int]]:
        """The base model, the arms of every world, then others of this one, with every seed trained or evaluated."""
        others = sorted(arm for w, arm, _ in self.values if w == world)
        seeds = {arm: set[int]() for arm in (labels.BASE, *labels.ARMS, *others)}
        for (w, arm, measure), by in self.values.items():
            if w == world and measure not in MASKED:
                seeds[arm] |= by.keys()
        return seeds


def run_values(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """The numbers of one training, each left out where one of its steps lacks its metric.

    Of each of `METRICS` the mean over the first `EARLY` steps, over the second quarter and over the last (`_late`; of
    20 steps 16 to 20), and the last less the second (`_growth`). The best and the last accuracy in validation; the
    first step at which it was learnt, and where it collapsed (`collapsed_step`), both left out where it did not.
    `collapse_step` counts a run that does not collapse as one that would at the validation after its last.
    """
    trained = [s for s in steps if s.step >= 1]
    last = max((s.step for s in trained), default=0)
    parts = {
        "early": [s for s in trained if s.step <= EARLY],
        "second": [s for s in trained if last < 4 * s.step <= 2 * last],
        "late": [s for s in trained if 4 * s.step > 3 * last],
    }
    found: dict[str, float] = {}
    for name, metric in METRICS.items():
        for part, of in parts.items():
            values = [s.values.get(metric, math.nan) for s in of]
            if values and all(map(math.isfinite, values)):
                found[f"{name}_{part}"] = math.fsum(values) / len(values)
        if {f"{name}_second", f"{name}_late"} <= found.keys():
            found[f"{name}_growth"] = found[f"{name}_late"] - found[f"{name}_second"]
    for s in steps:
        for name, benchmark in VALIDATED.items():
            if (value := s.values.get(f"val-core/{benchmark}/acc/mean@8")) is not None:
                found[f"{name}_step{s.step}"] = value
    validations = [(s.step, s.values["accuracy"]) for s in steps if "accuracy" in s.values]
    if len(validations) > 1:
        accuracies, collapse = [a for _, a in validations], collapse_step(validations)
        found |= {"validation_best": max(accuracies), "validation_last": accuracies[-1]}
        if learnt := [step for step, a in validations if a >= LEARNT]:
            found["learnt_step"] = learnt[0]
        if collapse is not None:
            found["collapsed_step"] = collapse
        found["collapse_step"] = validations[-1][0] + VALIDATION_EVERY["long"] if collapse is None else collapse
    return found


def collapse_step(validations: Sequence[tuple[int, float]]) -> int | None:
    """The step of the first validation from which accuracy stays more than 5 points under its best before, to the end
    and for three validations at least; None without one, as for a run that never learnt."""
    best = -math.inf
    for i, (step, accuracy) in enumerate(validations):
        if len(validations) - i >= FOR_GOOD and all(later < best - COLLAPSE for _, later in validations[i:]):
            return step
        best = max(best, accuracy)
    return None


def gather(cells: Sequence[Loaded], runs: Sequence[TrainingRun], judging: Collection[int] | None = None) -> Evidence:
    """Order the records of one part. Trainings that are not finished count as not there; a model's samples of several
    evaluation seeds count together.

    Args:
        judging: the seeds whose trainings have values; the others are for curves alone. Default: all.

    Raises:
        RecordError: a record of something else, two of one thing, other problems, other steps, or a broken log.
    """
    values: dict[tuple[str, str, str], dict[int, Any]] = defaultdict(dict)
    pooled = defaultdict(lambda: defaultdict(list))  # a cell without its evaluation seed -> problem -> verdicts
    problems: dict[str, set[str]] = {}
    lengths: dict[int, str] = {}
    finished: set[tuple[str, str, int]] = set()
    for c in final_step(cells)[0]:
        cell, world = c.record.cell, world_of(c.record.cell.size, c.path)
        if cell.benchmark != BENCHMARK:
            continue
        ids = {p.problem_id for p in c.record.problems}
        if ids != problems.setdefault(world, ids):
            raise RecordError(f"{c.path} holds other problems of {BENCHMARK} than the records before it",
                              found=f"{len(ids)} problems", expected=f"those {len(problems[world])} of {world}",
                              next_step="evaluate all with the same --limit")  # fmt: skip
        for p in c.record.problems:
            pooled[world, cell.method, cell.setting, cell.train_seed][p.problem_id] += parse_verdicts(p.verdicts)
        if cell.step != "base":
            lengths.setdefault(int(cell.step), c.path)
    for (world, arm, setting, seed), by in pooled.items():
        values[world, arm, f"accuracy_{setting}"][seed] = {i: math.fsum(v) / len(v) for i, v in by.items()}
        values[world, arm, f"pass8_{setting}"][seed] = {i: pass_at_k([v], 8) for i, v in by.items()}
    for r in runs:
        world = world_of(r.size, r.path)
        if r.status != "done" or not r.steps:
            continue
        if (world, r.method, r.seed) in finished:
            raise RecordError(f"two trainings of {r.method} with seed {r.seed} in {world}", found=r.path,
                              expected="one", next_step="name one of the two folders alone")  # fmt: skip
        finished.add((world, r.method, r.seed))
        lengths.setdefault(r.steps[-1].step, r.path)
        for measure, value in run_values(r.steps).items() if judging is None or r.seed in judging else ():
            values[world, r.method, measure][r.seed] = value
        if r.method == REFERENCE and (record := counts.of_run(r.folder, r.run_id)):
            for mask, arm in masks.METHODS.items():
                for measure, value in record.of_mask(mask).items():
                    values[world, arm, measure][r.seed] = value
    if len(lengths) > 1:
        raise RecordError(
            "the testbed's runs were not trained equally long",
            found=", ".join(f"{path}: {step} steps" for step, path in sorted(lengths.items())),
            expected="one number of steps",
            next_step="collect the runs of one `python -m studies.testbed run` into a folder of their own",
        )
    return Evidence(dict(values), problems, runs, next(iter(lengths), None))


def _whole(value: Any) -> bool:
    return not any(map(math.isnan, value.values() if isinstance(value, Mapping) else [value]))


def quantity(
    e: Evidence, world: str, measure: str, terms: Sequence[tuple[float, str]], reference: float = 0.0
) -> Quantity:
    """A sum of one measure over arms, averaged over seeds (and problems).

    The interval of a single arm ends where the quantity does: at 0 unless it is a reward or a growth, and a share's at
    100 %.

    Args:
        terms: (sign, arm).
        reference: what `p` tests against, in the printed unit.
    """
    arms, masked, known = [arm for _, arm in terms], measure in MASKED, e.arms(world)
    found = {arm: {s: v for s, v in e.values.get((world, arm, measure), {}).items() if _whole(v)} for arm in arms}
    planned = sorted(set().union(*(known.get(arm, ()) for arm in ([REFERENCE] if masked else arms))))
    seeds = [s for s in planned if all(s in by for by in found.values())]
    gone = {labels.method_label(arm): [str(s) for s in planned if s not in by] for arm, by in found.items()}
    missing = [f"{arm} seed{'s' if len(of) > 1 else ''} {', '.join(of)}" for arm, of in gone.items() if of]
    if not seeds:
        return Quantity("not run", missing=missing)
    first, factor, single = found[arms[0]][seeds[0]], MEASURES[measure][3], len(terms) == 1 and terms[0][0] > 0
    if isinstance(first, Mapping):
        rows = [[math.fsum(sign * found[arm][s][i] for sign, arm in terms) for s in seeds] for i in sorted(first)]
        c = crossed([np.array(rows)], fractions=len(terms) == 1)
    else:
        c = over_seeds([math.fsum(sign * found[arm][s] for sign, arm in terms) for s in seeds])
    p = p_value(replace(c, mean=c.mean - reference / factor))
    least = 0.0 if single and not measure.startswith("reward") and not measure.endswith("growth") else -math.inf
    most = 1.0 if single and MEASURES[measure][1] == "points" else math.inf
    number = c.within(least, most).times(factor)
    return Quantity("incomplete" if missing else "run", number, round(p, 8), seeds, missing)


def p_value(c: Number) -> float:
    """The t test's p of "the mean is 0"; where no seed differs from another, which a t test takes for certainty, that
    of the sign-flip test: 2^(1 - seeds)."""
    return 2.0 ** (1 - len(c.seeds)) if no_spread(c) and c.mean != 0 else c.p


def no_spread(c: Number) -> bool:
    """Whether the seeds differ by rounding at most, in the printed unit too."""
    return c.se <= 1e-10 * max(1.0, abs(c.mean))
