"""The page: the claims, accuracy by arm, and the dose-response beside the testbed's trainings without noise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from stapo_repro import labels
from stapo_repro.read import TrainingRun, check_seeds, load_training_runs
from stapo_repro.statistics import ALPHA
from stapo_repro.text import grid, number_shown, p_shown, shown
from stapo_results.resampling import sign_flip_p
from stapo_results.sizes import of_world
from stapo_results.statistics import Number, holm, over_seeds
from studies import command
from studies.noise.figure import Dose, dose_response, useful_words
from studies.noise.request import NoiseClaim, NoiseClaims, label, load
from studies.power import tost_interval, tost_p

RECORDS = command.RECORDS / "noise"
WITHOUT = command.RECORDS / "testbed" / "costly"
MEASURES = {
    "longer t1.0": "Longer problems, T = 1.0 (%)",
    "longer t0.7": "Longer problems, T = 0.7 (%)",
    "useful, late": "Useful words per 100 responses, late",
    "spurious, late": "Spurious words, late",
    "trained t1.0": "Trained lengths, T = 1.0 (%)",
}
_SERIES = {
    "longer t1.0": "val-core/mini-add-hard/acc/mean@8",
    "longer t0.7": "val-t0.7/mini-add-hard/acc/mean@8",
    "trained t1.0": "val-core/mini-add/acc/mean@8",
}
_WORDS = {"useful, late": "useful_rate", "spurious, late": "spurious_rate"}
_LEARNT = 30  # by then JustRL and STAPO had learnt the task in the pilot
_MANY = 0.9  # useful words a response
_SHOWN = [(m, x) for m in ("justrl", "stapo-random") for x in ("longer t1.0", "useful, late")]
Values = dict[str, dict[str, dict[int, float]]]
"""arm -> measure -> seed -> a number, in points or words per 100 responses."""


def value(run: TrainingRun, measure: str, first: int) -> float | None:
    """One number of a run; None where it was not logged."""
    if measure in _SERIES:
        found = [v for step, v in run.series(_SERIES[measure]).items() if step >= first]
    else:
        rates = run.series(_WORDS[measure])
        found = [v for step, v in rates.items() if step > 0.75 * max(rates)]
    return 100 * fmean(found) if found else None


def finished(runs: Sequence[TrainingRun], seeds: Sequence[int], steps: int) -> list[TrainingRun]:
    """Those of so many steps."""
    return [r for r in runs if r.status == "done" and r.seed in seeds and max(s.step for s in r.steps) == steps]


def values(
    runs: Sequence[TrainingRun], names: Mapping[str, str], first: int, seeds: Sequence[int], steps: int
) -> Values:
    """Of finished runs of so many steps. names: an arm -> the method label of its runs."""
    found: Values = defaultdict(lambda: defaultdict(dict))
    for arm, method in names.items():
        for run in (r for r in finished(runs, seeds, steps) if r.method == method):
            for m in MEASURES:
                if (x := value(run, m, first)) is not None:
                    found[arm][m][run.seed] = x
    return found


def mean(found: Values, arm: str, measure: str) -> Number:
    """Over the seeds of an arm, its interval within what the measure can be; no number without a seed."""
    by_seed = found[arm][measure]
    number = over_seeds([*by_seed.values()]) if by_seed else Number()
    return number.within(0.0, 100.0 if measure in _SERIES else math.inf)


def minus(found: Values, first: str, second: str, measure: str) -> Number:
    """First minus second, paired by the seeds that both have; no number without one."""
    a, b = found[first][measure], found[second][measure]
    both = sorted(a.keys() & b.keys())
    return over_seeds([a[s] - b[s] for s in both]) if both else Number()


def judged(claims: Sequence[NoiseClaim], found: Values, seeds: int) -> list[tuple[Number, float, str]]:
    """Of each claim STAPO's difference, its p after Holm, and the verdict; "not run" unless every seed is there."""
    numbers = [minus(found, "stapo", c.against, c.measure) for c in claims]
    if any(len(n.seeds) < seeds for n in numbers):
        return [(n, math.nan, "not run") for n in numbers]
    adjusted = holm([tost_p(n, c.within) if c.within else n.p for n, c in zip(numbers, claims, strict=True)])
    out = []
    for c, n, p in zip(claims, numbers, adjusted, strict=True):
        against = n.low > c.within or n.high < -c.within if c.within else n.mean < 0 and p < ALPHA
        for_it = p < ALPHA and (bool(c.within) or n.mean > 0)
        out.append((n, p, "holds" if for_it else "fails" if against else "undecided"))
    return out


def add(files: dict[Path, bytes]) -> None:
    """Add results/tables/noise.md from the committed records."""
    c = load()
    size = of_world(c.world)
    runs = [r for r in load_training_runs([RECORDS]) if r.size == size] if RECORDS.exists() else []
    check_seeds(runs)
    without = [r for r in load_training_runs([WITHOUT]) if r.size == size]
    lines = ["# A noisy reward", "", c.question, "", c.rule, "", c.pilot.rule, "", c.expected, "", *_claims(c, runs)]
    lines += ["", *_explored(c, runs), *_pilot(c, runs)]
    lines += ["## Dose-response", "", "Ratio: how many times as likely a useful word makes a reward of +1. The "
              "trainings without noise are the testbed's, of 40 steps and other seeds.", ""]  # fmt: skip
    doses = [(noise, n.ratio, values(runs, {m: label(m, noise) for m in c.arms}, c.first, n.seeds, c.steps))
             for noise, n in sorted(c.noises.items(), reverse=True)]  # fmt: skip
    w = c.without
    doses.append(("0", w.ratio, values(without, {m: m for m in c.arms}, c.first, w.seeds, w.steps)))
    rows = [[noise, f"{ratio:g}", *_differences(found)] for noise, ratio, found in doses]
    head = ["Noise", "Ratio", *(f"STAPO minus {labels.method_label(m)}: {MEASURES[x]}" for m, x in _SHOWN)]
    lines += [*grid(head, rows), "", f"First step with {100 * _MANY:.0f} useful words per 100 responses, without a "
              "claim: the runs' lowest to highest, and how many have one.", ""]  # fmt: skip
    trained = {noise: finished(runs, n.seeds, c.steps) for noise, n in sorted(c.noises.items(), reverse=True)}
    steps = [[noise, *(first_steps(of, label(m, noise)) for m in c.arms)] for noise, of in trained.items()]
    steps.append(["0", *(first_steps(finished(without, w.seeds, w.steps), m) for m in c.arms)])
    lines += grid(("Noise", *map(labels.method_label, c.arms)), steps)
    files[command.TABLES / "noise.md"] = "\n".join([*lines, ""]).encode()
    means = [Dose(noise, ratio, {arm: {m: mean(found, arm, m) for m in MEASURES} for arm in c.arms})
             for noise, ratio, found in doses]  # fmt: skip
    drawn = dose_response(means, c.arms, {m: MEASURES[m] for m in ("longer t1.0", "useful, late")})
    words = useful_words(trained[c.judged], {m: label(m, c.judged) for m in c.arms}, c.judged)
    command.add_figures(files, "noise", [drawn, words])


def _differences(found: Values) -> list[str]:
    numbers = [minus(found, "stapo", m, x) for m, x in _SHOWN]
    return [f"{number_shown(n, 1, sign=True)}, {len(n.seeds)} seeds" if n.known else "not run" for n in numbers]


def first_steps(runs: Sequence[TrainingRun], method: str) -> str:
    """When a method's runs first had `_MANY` useful words a response, such as "13 to 18, 4 of 4"; "not run"."""
    rates = [run.series("useful_rate") for run in runs if run.method == method]
    if not rates:
        return "not run"
    firsts = sorted(min(many) for of in rates if (many := [step for step, rate in of.items() if rate >= _MANY]))
    ends = " to ".join(dict.fromkeys(map(str, (firsts[0], firsts[-1])))) if firsts else "never"
    return f"{ends}, {len(firsts)} of {len(rates)}"


def _explored(c: NoiseClaims, runs: Sequence[TrainingRun]) -> list[str]:
    """The differences of the claims without the time of learning, and at the end."""
    names, rows = {m: label(m, c.judged) for m in c.arms}, []
    for words, first in ((f"From step {_LEARNT} on", _LEARNT), ("At the last step", c.steps)):
        found = values(runs, names, first, c.noises[c.judged].seeds, c.steps)
        for against in ("stapo-random", "justrl"):
            for m in ("longer t1.0", "longer t0.7"):
                n = minus(found, "stapo", against, m)
                numbers = [number_shown(n, 1, sign=True), p_shown(sign_flip_p(n.seeds))] if n.known else ["not run", ""]
                rows.append([words, f"STAPO minus {labels.method_label(against)}", MEASURES[m], *numbers])
    text = "Without a claim: the mean from step 20 on measures the time of learning too. p of the exact sign-flip test."
    return [text, "", *grid(("", "Difference", "Of", "Found", "p"), rows, 3), ""]


def _pilot(c: NoiseClaims, runs: Sequence[TrainingRun]) -> list[str]:
    found = values(runs, {"justrl": label("justrl", c.judged)}, c.steps, c.pilot.seeds, c.steps)
    numbers = [f"{x:.1f}" for _, x in sorted(found["justrl"]["trained t1.0"].items())]
    return [f"In the pilot JustRL had {' and '.join(numbers)} % at step {c.steps}.", ""] if numbers else []


def _claims(c: NoiseClaims, runs: Sequence[TrainingRun]) -> list[str]:
    seeds = c.noises[c.judged].seeds
    found = values(runs, {m: label(m, c.judged) for m in c.arms}, c.first, seeds, c.steps)
    rows = []
    for claim, (n, p, verdict) in zip(c.claims, judged(c.claims, found, len(seeds)), strict=True):
        difference = f"STAPO minus {labels.method_label(claim.against)}"
        number = number_shown(n, 1, sign=True) if n.known else "not run"
        if claim.within and n.has_interval:
            number += "; {:.0f} %: {} to {}".format(100 * (1 - 2 * ALPHA), *map(shown, tost_interval(n)))
        rows.append([claim.claim, difference, number, "" if math.isnan(p) else p_shown(p), verdict])
    lines = ["## Claims", "", *grid(("Claim", "Difference", "Found", "p after Holm", "It"), rows, 2), ""]
    means = []
    for arm in c.arms:
        of_arm = (mean(found, arm, m) for m in MEASURES)
        means.append([labels.method_label(arm), *(number_shown(n, 1) if n.known else "not run" for n in of_arm)])
    return [*lines, *grid(("", *MEASURES.values()), means)]
